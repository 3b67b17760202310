// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Cause: why the operations of a communicator end. A call that fails returns nupa::Error, as everywhere.
/// This is the lowest folder of ccl, which all others may include. Thread-safe.
#include "ccl/error/cause.h"
