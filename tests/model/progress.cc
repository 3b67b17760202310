// SPDX-License-Identifier: Apache-2.0
// The lines of src/progress that are not in headers, as all cases have them.
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "shadow.h"

#include "progress/waiter.cc"
