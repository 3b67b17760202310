// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Common parts of the algorithms that exchange messages: rings, trees, transfers between pairs, and the folding of
/// ranks beyond a power of two. One thread at a time uses a group.
#include "ccl/algorithms/messages/direct.h"
#include "ccl/algorithms/messages/folded.h"
#include "ccl/algorithms/messages/ring.h"
#include "ccl/algorithms/messages/transfer.h"
#include "ccl/algorithms/messages/tree.h"
