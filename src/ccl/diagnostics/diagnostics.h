#pragma once
/// What is told of operations to people: the checking mode, in which ranks compare their calls before they do them
/// (Checker), the trace of a process, and the program's profiler (Observed). Nothing of it costs more than one load
/// where nobody observes. Communicators and p2p use it. A trace takes records from any thread and has a thread of its
/// own; a Checker belongs to the thread that has the communicator's turn.
#include "ccl/diagnostics/checker.h"
#include "ccl/diagnostics/observe.h"
#include "ccl/diagnostics/trace.h"
