// SPDX-License-Identifier: Apache-2.0
/// The functions of a communicator for observed operations: the checking mode, traces, profilers.
#include <cerrno>

#include "base/clock.h"
#include "ccl/communicator/communicator.h"
#include "ccl/diagnostics/trace.h"

namespace nupa::ccl {
namespace {

/// Shorter waits get no record in the trace; the operation's record has the sum of all waits.
constexpr int64_t kShortestWaitNs = 1000;

bool has_root(const Call& call) {
  return call.operation == Operation::kBroadcast || call.operation == Operation::kGather ||
         call.operation == Operation::kScatter || call.operation == Operation::kReduce;
}

int op_of(const Call& call) {
  if (call.operation < Operation::kReduce) return NUPA_CCL_NONE;
  if (call.reducer.function != nullptr) return NUPA_CCL_FUNCTION;
  static_assert(NUPA_CCL_PREMULTIPLIED_SUM == static_cast<int>(Operator::kPremultipliedSum));
  return static_cast<int>(call.reducer.reduction.op);
}

}  // namespace

Result<void> Communicator::begin_observing() {
  if (auto opened = Trace::open(rank()); !opened) return opened;
  number_in_process_ = Trace::add_communicator(rank(), ranks());
  if (!options_.checks) return {};
  checker_ = std::make_unique<Checker>(rank(), ranks(), [this](Call& call) { return do_now(call); });
  is_anybody_observing.store(true);
  return {};
}

void Communicator::on_waited(const Wait& wait, int64_t began_ns, int64_t ended_ns) {
  observed_->waited_ns += ended_ns - began_ns;
  Trace* const trace = Trace::get();
  if (trace != nullptr && ended_ns - began_ns >= kShortestWaitNs)
    trace->add_part(TraceRecord::Kind::kWait, number_in_process_, wait.rank, began_ns, ended_ns);
}

int Communicator::check(const Call& call) {
  const int64_t began = base::now_ns();
  const Cause cause = checker_->check(call, ++checked_);
  if (cause && !ended()) end(cause);
  if (Trace* const trace = Trace::get())
    trace->add_part(TraceRecord::Kind::kCheck, number_in_process_, kNoRank, began, base::now_ns());
  return cause ? ended().error : 0;
}

int Communicator::run_observed(const Call& call, int64_t queued_ns) {
  Event event{};
  event.operation = name_of(call);
  event.communicator = number_in_process_;
  event.rank = rank();
  event.ranks = ranks();
  event.root = has_root(call) ? call.root : kNoRank;
  event.number = ++calls_;
  event.count = call.elements;
  event.bytes = call.bytes();
  event.type = static_cast<int>(call.reducer.reduction.type);
  event.op = op_of(call);
  event.queued_ns = queued_ns;
  Observed observed(event);
  observed_ = &observed.event;
  int error = checker_ == nullptr ? 0 : check(call);
  if (error == 0) {
    error = do_now(call);
    observed.event.algorithm = algorithm_;
  }
  observed_ = nullptr;
  observed.event.error = error;
  observed.end();
  return error;
}

}  // namespace nupa::ccl
