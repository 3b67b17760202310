#pragma once
/// The C functions of nupa/ccl.h: they check arguments, write a Call and hand it to a communicator. Nobody includes
/// this folder but itself and its tests. Any thread; groups of calls and error texts are each thread's own.
#include "ccl/api/handles.h"
