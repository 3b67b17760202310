#pragma once
/// Parts of the algorithms in two steps, within each host and between hosts. One thread at a time uses a group.
#include "ccl/algorithms/hierarchical/parts.h"
