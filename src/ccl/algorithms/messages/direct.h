#pragma once
/// What algorithms have in common in which each rank gets a piece of each other one.
#include "ccl/algorithms/messages/transfer.h"
#include "ccl/call/call.h"

namespace nupa::ccl::lanes {

/// Until each rank in [begin, end) but this one has sent a piece of that length.
Steps pieces_of(LaneGroup& group, uint32_t begin, uint32_t end, size_t bytes);
/// Combines this rank's part with the pieces that are there of ranks [0, count), and takes those.
void combine_pieces(LaneGroup& group, const Reducer& reducer, const Factors& factors, void* out, const void* own,
                    uint32_t count, size_t elements);
/// Elements of one piece.
size_t elements_at_once(LaneGroup& group, const Reducer& reducer, size_t all);
Steps send_to_all(LaneGroup& group, Loans& loans, const void* data, size_t bytes);

/// Each rank sends every other one a block, which may be empty, and gets one. Each begins with another one, so that not
/// all send to the same. `stays`: what comes is put elsewhere than what is sent.
Steps exchange_blocks(LaneGroup& group, const void* in, const Blocks& in_blocks, void* out, const Blocks& out_blocks,
                      bool stays);

}  // namespace nupa::ccl::lanes
