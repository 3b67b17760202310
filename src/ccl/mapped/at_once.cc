#include "ccl/mapped/at_once.h"

#include <immintrin.h>

#include "ccl/mapped/parts.h"

namespace nupa::ccl::mapped {
namespace {

/// Without a pause, which takes as long as a cache line's way, and then with one.
constexpr int kQuickLooks = 16;
constexpr int kLooks = 64;

Wait came(const MappedGroup& group, Operation operation, const Exchange& exchange, uint32_t rank) {
  return operation == Operation::kBarrier ? group.reached(rank, exchange.step)
                                          : group.wrote_line(rank, exchange.turn, exchange.step);
}

bool look(const Wait& wait) {
  for (int i = 0; i < kLooks; ++i) {
    if (wait.is_over()) return true;
    if (i >= kQuickLooks) _mm_pause();
  }
  return false;
}

}  // namespace

Exchange begin_line(MappedGroup& group, const LineCall& call) {
  const uint32_t step = group.begin(1) + 1;
  if (call.operation == Operation::kBarrier) {
    group.tell(step);
    return {step, 0};
  }
  const uint32_t turn = group.next_turn(step);
  group.write_line(turn, call.in, call.bytes(), step);
  return {step, turn};
}

bool all_came(MappedGroup& group, const LineCall& call, const Exchange& exchange) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (!look(came(group, call.operation, exchange, rank))) return false;
  return true;
}

Steps until_all_came(MappedGroup& group, Operation operation, Exchange exchange) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (const int error = co_await came(group, operation, exchange, rank); error != 0) co_return error;
  co_return 0;
}

void end_line(MappedGroup& group, const LineCall& call, const Exchange& exchange) {
  if (call.operation == Operation::kBarrier) return;
  const size_t bytes = call.bytes();
  if (call.operation == Operation::kAllReduce) {
    static const Factors none;
    combine_ranks({call.reduction}, none, call.out, group.ranks(), call.elements,
                  [&](uint32_t rank) -> const void* { return group.line_of(rank, exchange.turn).payload; });
  } else {
    for (uint32_t rank = 0; rank < group.ranks(); ++rank)
      copy_array(bytes_at(call.out, rank * bytes), group.line_of(rank, exchange.turn).payload, bytes);
  }
  group.all_met();
}

}  // namespace nupa::ccl::mapped
