#include <cerrno>

#include "ccl/lane/algorithms.h"
#include "ccl/lane/transfer.h"

namespace nupa::ccl::lanes {
namespace {

/// Until there is room for a piece to `rank`, then sends it that part of a block; nothing where there is none.
Steps send_part(LaneGroup& group, Loans& loans, uint32_t rank, const void* block, size_t length, size_t begin) {
  Lane& lane = group.lane(rank);
  const size_t part = part_length(length, begin, lane.piece_bytes());
  if (part == 0) co_return 0;
  if (const int error = co_await lane.can_send(); error != 0) co_return error;
  loans.send(lane, bytes_at(block, begin), part);
  co_return 0;
}

Steps receive_part(LaneGroup& group, uint32_t rank, void* block, size_t length, size_t begin) {
  Lane& lane = group.lane(rank);
  const size_t part = part_length(length, begin, lane.piece_bytes());
  if (part == 0) co_return 0;
  if (const int error = co_await lane.can_receive(); error != 0) co_return error;
  co_return take_piece(lane, bytes_at(block, begin), part);
}

/// Each rank sends every other one a block, which may be empty, and gets one. Each begins with another one, so that not
/// all send to the same. `stays`: what comes is put elsewhere than what is sent.
Steps exchange(LaneGroup& group, const void* in, const Blocks& in_blocks, void* out, const Blocks& out_blocks,
               bool stays) {
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  const uint32_t ranks = group.ranks();
  const size_t longest = std::max(in_blocks.longest(ranks), out_blocks.longest(ranks));
  const size_t at_once = ranks == 1 ? longest : group.lane(group.rank() == 0 ? 1 : 0).piece_bytes();
  Loans loans(group, stays, in_blocks.longest(ranks));
  size_t sent = 0;
  for (size_t begin = 0; ranks > 1 && begin < longest; begin += at_once) {
    for (; sent < longest && sent < begin + group.ahead() * at_once; sent += at_once)
      for (uint32_t i = 1; i < ranks; ++i) {
        const uint32_t to = (group.rank() + i) % ranks;
        const int error =
            co_await send_part(group, loans, to, bytes_at(in, in_blocks.offset(to)), in_blocks.length(to), sent);
        if (error != 0) co_return error;
      }
    for (uint32_t i = 1; i < ranks; ++i) {
      const uint32_t from = (group.rank() + ranks - i) % ranks;
      const int error =
          co_await receive_part(group, from, bytes_at(out, out_blocks.offset(from)), out_blocks.length(from), begin);
      if (error != 0) co_return error;
    }
  }
  co_return co_await loans.settle();
}

/// Where every other rank's block is one and the same.
struct SameForAll {
  std::vector<size_t> lengths;
  std::vector<size_t> offsets;
  SameForAll(uint32_t ranks, size_t bytes) : lengths(ranks, bytes), offsets(ranks, 0) {}
  Blocks blocks() const { return {0, lengths.data(), offsets.data()}; }
};

}  // namespace

Steps broadcast_direct(LaneGroup& group, BroadcastTask task) {
  if (group.rank() != task.root) co_return co_await receive_array(group, task.root, task.data, task.bytes);
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  Loans loans(group, true, task.bytes);
  size_t begin = 0;
  size_t length = 0;
  do {
    for (uint32_t i = 1; i < group.ranks(); ++i) {
      Lane& lane = group.lane((task.root + i) % group.ranks());
      if (const int error = co_await lane.can_send(); error != 0) co_return error;
      length = part_length(task.bytes, begin, lane.piece_bytes());
      loans.send(lane, bytes_at(task.data, begin), length);
    }
    begin += group.ranks() == 1 ? task.bytes : length;
  } while (begin < task.bytes);
  co_return co_await loans.settle();
}

Steps gather_direct(LaneGroup& group, GatherTask task) {
  if (group.rank() != task.root) {
    Loans loans(group, true, task.bytes);
    if (const int error = co_await send_array(group, task.root, task.in, task.bytes, &loans); error != 0)
      co_return error;
    co_return co_await loans.settle();
  }
  copy_unless_same(bytes_at(task.out, task.blocks.offset(group.rank())), task.in, task.bytes);
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (rank == task.root) continue;
    void* const to = bytes_at(task.out, task.blocks.offset(rank));
    if (const int error = co_await receive_array(group, rank, to, task.blocks.length(rank)); error != 0)
      co_return error;
  }
  co_return 0;
}

Steps scatter_direct(LaneGroup& group, ScatterTask task) {
  if (group.rank() != task.root) co_return co_await receive_array(group, task.root, task.out, task.bytes);
  copy_unless_same(task.out, bytes_at(task.in, task.blocks.offset(group.rank())), task.bytes);
  Loans loans(group, true, task.blocks.longest(group.ranks()));
  for (uint32_t i = 1; i < group.ranks(); ++i) {
    const uint32_t rank = (task.root + i) % group.ranks();
    const void* const from = bytes_at(task.in, task.blocks.offset(rank));
    const int error = co_await send_array(group, rank, from, task.blocks.length(rank), &loans);
    if (error != 0) co_return error;
  }
  co_return co_await loans.settle();
}

Steps all_gather_direct(LaneGroup& group, GatherTask task) {
  copy_unless_same(bytes_at(task.out, task.blocks.offset(group.rank())), task.in, task.bytes);
  const SameForAll own(group.ranks(), task.bytes);
  co_return co_await exchange(group, task.in, own.blocks(), task.out, task.blocks, true);
}

Steps all_to_all_direct(LaneGroup& group, ExchangeTask task) {
  const uint32_t self = group.rank();
  if (task.in != task.out)
    copy_array(bytes_at(task.out, task.out_blocks.offset(self)), bytes_at(task.in, task.in_blocks.offset(self)),
               task.in_blocks.length(self));
  co_return co_await exchange(group, task.in, task.in_blocks, task.out, task.out_blocks, task.in != task.out);
}

}  // namespace nupa::ccl::lanes
