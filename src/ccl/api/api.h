// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The C functions of nupa/ccl.h: they check arguments, fill in a Call and pass it to a communicator. Only this folder
/// and its tests include it. Thread-safe; each thread has its own call group and its own error text.
#include "ccl/api/handles.h"
