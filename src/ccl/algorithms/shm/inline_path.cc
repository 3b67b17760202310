// SPDX-License-Identifier: Apache-2.0
#include "ccl/algorithms/shm/inline_path.h"

#include "ccl/algorithms/shm/parts.h"
#include "progress/cpu.h"

namespace nupa::ccl::shm {
namespace {

/// The first looks are without a pause, which takes as long as the transfer of a cache line. The later ones have a
/// pause.
constexpr int kQuickLooks = 16;
constexpr int kLooks = 64;

/// Returns whether this rank waits for `rank`.
bool needs(const ShmGroup& group, const Exchange& exchange, uint32_t rank) {
  if (exchange.operation != Operation::kBroadcast) return true;
  return rank == exchange.root && rank != group.rank();
}

Wait came(const ShmGroup& group, const Exchange& exchange, uint32_t rank) {
  return exchange.operation == Operation::kBarrier ? group.reached(rank, exchange.step)
                                                   : group.wrote_line(rank, exchange.turn, exchange.step);
}

bool look(const Wait& wait) {
  for (int i = 0; i < kLooks; ++i) {
    if (wait.is_over()) return true;
    if (i >= kQuickLooks) progress::relax();
  }
  return false;
}

}  // namespace

bool may_begin(ShmGroup& group, const InlineCall& call) {
  const bool writes =
      call.operation != Operation::kBarrier && (call.operation != Operation::kBroadcast || call.root == group.rank());
  return !writes || group.may_write_next_line();
}

Exchange begin_line(ShmGroup& group, const InlineCall& call) {
  const uint32_t step = group.begin(1) + 1;
  Exchange exchange{step, 0, call.operation, call.root};
  if (call.operation != Operation::kBarrier) exchange.turn = group.next_turn(step);
  const bool writes = call.operation != Operation::kBroadcast || call.root == group.rank();
  if (call.operation != Operation::kBarrier && writes) group.write_line(exchange.turn, call.in, call.bytes(), step);
  if (call.operation == Operation::kBarrier || call.operation == Operation::kBroadcast) group.publish(step);
  return exchange;
}

bool all_came(ShmGroup& group, const Exchange& exchange) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (needs(group, exchange, rank) && !look(came(group, exchange, rank))) return false;
  return true;
}

CollectiveTask until_all_came(ShmGroup& group, Exchange exchange) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (needs(group, exchange, rank))
      if (const int error = co_await came(group, exchange, rank); error != 0) co_return error;
  co_return 0;
}

void end_line(ShmGroup& group, const InlineCall& call, const Exchange& exchange) {
  const auto line = [&](uint32_t rank) -> const void* { return group.line_of(rank, exchange.turn).payload; };
  const size_t bytes = call.bytes();
  switch (call.operation) {
    case Operation::kBroadcast:
      if (call.root != group.rank()) copy_array(call.out, line(call.root), bytes);
      return;
    case Operation::kAllReduce: {
      static const Factors none;
      combine_ranks({call.reduction}, none, call.out, group.ranks(), call.elements, line);
      break;
    }
    case Operation::kAllGather:
      for (uint32_t rank = 0; rank < group.ranks(); ++rank)
        copy_array(bytes_at(call.out, rank * bytes), line(rank), bytes);
      break;
    default:
      break;
  }
  group.all_have_begun();
}

}  // namespace nupa::ccl::shm
