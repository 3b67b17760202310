// SPDX-License-Identifier: Apache-2.0
/// all_gather: each rank sends to each other one. No paper.
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/direct.h"

namespace nupa::ccl::messages {
namespace {

/// Blocks for an exchange in which every other rank gets the same block.
struct SameForAll {
  std::vector<size_t> lengths;
  std::vector<size_t> offsets;
  SameForAll(uint32_t ranks, size_t bytes) : lengths(ranks, bytes), offsets(ranks, 0) {}
  Blocks blocks() const { return {0, lengths.data(), offsets.data()}; }
};

}  // namespace

CollectiveTask all_gather_direct(ChannelGroup& group, const Call& call) {
  copy_unless_same(bytes_at(call.out, call.out_blocks().offset(group.rank())), call.in, call.bytes());
  const SameForAll own(group.ranks(), call.bytes());
  co_return co_await exchange_blocks(group, call.in, own.blocks(), call.out, call.out_blocks(), true);
}

}  // namespace nupa::ccl::messages
