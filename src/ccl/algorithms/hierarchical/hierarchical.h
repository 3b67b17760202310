// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Common parts of the hierarchical algorithms, within each node and between nodes. One thread at a time uses a group.
#include "ccl/algorithms/hierarchical/parts.h"
