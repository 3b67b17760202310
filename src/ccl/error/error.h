#pragma once
/// Why things fail: Cause, by which a communicator's operations end, and Fault, what a call returns with its text.
/// Lowest folder: everybody may use it, from any thread.
#include "ccl/error/cause.h"
#include "ccl/error/fault.h"
