// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/copying_endpoint.h"

#include <new>
#include <utility>

#include "base/clock.h"
#include "base/fence.h"
#include "base/ordered_copy.h"
#include "core/seam/whole_message.h"

namespace nupa::shm_transport {

using copy::Copy;
using copy::JobState;
using core::Piece;
using core::Posted;
using core::Request;
using host::RemoteRange;

namespace {

bool overlap(const std::byte* a, const std::byte* b, uint64_t a_length, uint64_t b_length) {
  return a < b + b_length && b < a + a_length;
}

}  // namespace

bool CopyingEndpoint::uses_engine(const Request& request) const {
  if (request.length < least_bytes_ || request.length == 0 || (request.wr.flags & send_flag::kInline) != 0)
    return false;
  return request.wr.opcode == Opcode::kRdmaWrite || request.wr.opcode == Opcode::kRdmaWriteWithImm ||
         request.wr.opcode == Opcode::kRdmaRead;
}

Posted CopyingEndpoint::post_large(const Request& request) {
  const bool waits = !sends().empty() || is_paused();
  if (waits || request.fault != WcStatus::kSuccess || !uses_engine(request) || sends().keep(request) == nullptr)
    return Connected::post(request);
  if (try_oldest(base::now_ns()) == 0) return Posted::taken();
  leave_to_pollers();
  if (!is_copying_) context().wake();
  return Posted::taken();
}

Outcome CopyingEndpoint::run_oldest(uint64_t* length) {
  if (is_copying_ || is_copied_) {
    *length = length_;
    return is_copying_ ? go_on() : complete_immediate();
  }
  return sends().run_front(
      context(),
      [&](const Request& request) {
        *length = request.length;
        return uses_engine(request) ? begin(request) : execute_here(request);
      },
      [](WcStatus fault) { return Outcome::done(fault); });
}

Outcome CopyingEndpoint::begin(const Request& request) {
  if (const std::optional<Outcome> outcome = not_taken()) return *outcome;
  if (job_ == nullptr) job_ = engine_.make_job();
  if (job_ == nullptr) return execute_here(request);
  const SendWr& wr = request.wr;
  Responder responder(*target(), is_reliable());
  RemoteRange range;
  const core::Verdict verdict =
      wr.opcode == Opcode::kRdmaRead
          ? responder.read(wr.remote_srqn, wr.rkey, wr.remote_addr, request.length, 0, target()->read_depth(), &range)
          : responder.destination(core::whole_write(wr, request.pieces, request.piece_count, request.length), &range);
  if (!verdict.is_accepted()) return outcome_after(verdict);
  if (!describe(request, range)) return execute_here(request);
  region_ = target()->region_of(wr.rkey);
  length_ = request.length;
  // Before submit(): the engine may end at once, and the service thread tries the queue pairs that are known to wait.
  context().wake_pollers(INT64_MAX);
  make_busy();
  if (!engine_.submit(*job_)) {
    make_idle();
    region_.reset();
    return execute_here(request);
  }
  is_copying_ = true;
  if (!engine_.reports_end()) context().wake_pollers(next_look(base::now_ns()));
  return Outcome::copying();
}

bool CopyingEndpoint::describe(const Request& request, const RemoteRange& range) try {
  if (range.direct == nullptr || range.null_region) return false;
  const bool reads = request.wr.opcode == Opcode::kRdmaRead;
  job_->copies.clear();
  job_->last = {};
  std::byte* remote = range.direct;
  for (uint32_t i = 0; i < request.piece_count; ++i) {
    const Piece& piece = request.pieces[i];
    if (piece.data == nullptr || overlap(piece.data, range.direct, piece.length, request.length)) return false;
    job_->copies.push_back(reads ? Copy{piece.data, remote, piece.length} : Copy{remote, piece.data, piece.length});
    remote += piece.length;
  }
  job_->writes_program_memory = reads || target()->memory().peer().is_self();
  job_->busy = &context().shared().copying;
  if (reads) return true;
  // A program of the peer may poll on the last word. A READ is announced by its completion alone.
  Copy& end = job_->copies.back();
  const uint64_t tail = base::last_word_bytes(reinterpret_cast<uintptr_t>(end.to), end.length);
  end.length -= tail;
  job_->last = {end.to + end.length, end.from + end.length, tail};
  if (end.length == 0) job_->copies.pop_back();
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void CopyingEndpoint::make_busy() {
  // The send lock is held. A process that has revoked the key looks at that lock first and at this number second.
  auto& number = context().shared().copying;
  number.store(number.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void CopyingEndpoint::make_idle() { make_busy(); }

Outcome CopyingEndpoint::go_on() {
  const JobState state = engine_.poll(*job_);
  if (state == JobState::kRunning) return target()->peer().alive() ? Outcome::copying() : lost();
  is_copying_ = false;
  region_.reset();
  switch (state) {
    case JobState::kDone:
      break;
    case JobState::kFault:
      return Outcome::done(WcStatus::kLocProtErr);
    default:
      return sends().run_front(
          context(), [&](const Request& request) { return execute_here(request); },
          [](WcStatus fault) { return Outcome::done(fault); });
  }
  if (sends().front().wr.opcode == Opcode::kRdmaWriteWithImm) {
    is_copied_ = true;
    return complete_immediate();
  }
  // The loads of a READ come before those of the next request.
  base::fence_after_reads();
  return Outcome::done(WcStatus::kSuccess);
}

Outcome CopyingEndpoint::complete_immediate() {
  if (const std::optional<Outcome> outcome = not_taken()) return *outcome;
  const SendWr& wr = sends().front().wr;
  core::WritePart whole = core::whole_write(wr, nullptr, 0, length_);
  whole.placed = true;
  Responder::Message message;
  core::Inbound inbound = inbound_of(wr);
  return outcome_after(Responder(*target(), is_reliable()).write(whole, &inbound, &message));
}

void CopyingEndpoint::stop_copy() {
  if (is_copying_) engine_.cancel(*job_);
  is_copying_ = is_copied_ = false;
  region_.reset();
}

}  // namespace nupa::shm_transport
