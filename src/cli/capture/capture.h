// SPDX-License-Identifier: Apache-2.0
#pragma once
/// `nupa capture`: the processes that are captured, the order of their packets, and the file. One thread.
#include "cli/capture/output.h"
#include "cli/capture/sources.h"
