// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How operations are reported: the checking mode, in which ranks compare their calls before they run them (Checker),
/// the trace of a process, and the program's profiler (Observed). If none of these is on, an operation pays one load
/// for them. Communicators and p2p use this folder. A trace takes records from any thread and has its own thread; a
/// Checker belongs to the thread that holds the communicator's turn.
#include "ccl/diagnostics/checker.h"
#include "ccl/diagnostics/observe.h"
#include "ccl/diagnostics/trace.h"
