// SPDX-License-Identifier: Apache-2.0
#include "copy/dsa_engine.h"

#include <algorithm>
#include <array>
#include <new>

#include "base/log.h"
#include "base/racing_copy.h"
#include "copy/guarded_copy.h"
#include "progress/clock.h"
#include "progress/deadline.h"
#include "progress/waiter.h"

namespace nupa::copy {

namespace {

constexpr uint64_t kPage = 4096;
/// Page faults in turn without a byte of progress, after which the processor copies one page.
constexpr uint32_t kMostStuck = 3;
/// The bandwidth from which the time of the next look is computed, bytes in a nanosecond: a third of what a device of
/// the first generation reaches.
constexpr uint64_t kBytesPerNs = 10;
constexpr int64_t kShortestLookNs = 20 * progress::kNsPerUs;
constexpr int64_t kLongestLookNs = 2 * progress::kNsPerMs;
/// A device that does not end a descriptor for this time does not work.
constexpr int64_t kCancelLimitNs = 2 * progress::kNsPerSecond;

bool touch_to_read(const std::byte* at) {
  return guarded([&] { [[maybe_unused]] const std::byte seen = *static_cast<const volatile std::byte*>(at); });
}

bool touch_to_write(std::byte* at) {
  // The whole word around it, in the same page.
  const uintptr_t word = reinterpret_cast<uintptr_t>(at) & ~uintptr_t{7};
  return guarded([&] { base::touch_for_write(reinterpret_cast<uint64_t*>(word)); });
}

}  // namespace

struct DsaEngine::Flight {
  enum class State : uint8_t {
    kFree,
    kRefused,   ///< the queue had no room
    kUnderWay,  ///< the device writes the record
  };
  // The device requires an address that is a multiple of 32.
  alignas(64) dsa_completion_record record;
  Copy rest;  ///< bytes of the piece that are not copied
  State state = State::kFree;
  uint32_t stuck = 0;
};

class DsaEngine::Job final : public CopyJob {
 public:
  using Flights = std::array<Flight, kFlights>;

  bool allocate() {
    flights_.reset(new (std::nothrow) Flights{});
    return flights_ != nullptr;
  }
  /// A device that does not end may still write the records.
  void leave_flights_to_device() { [[maybe_unused]] const Flights* const kept = flights_.release(); }

  void begin() {
    next_ = 0;
    offset_ = 0;
    failed = JobState::kRunning;
    left = last.length;
    for (const Copy& copy : copies) left += copy.length;
    state_.store(JobState::kRunning, std::memory_order_relaxed);
  }
  void undo() { state_.store(JobState::kIdle, std::memory_order_relaxed); }
  using CopyJob::end;

  /// Fills `piece` with the next bytes. False: there are no more.
  bool take_piece(uint64_t most, Copy* piece) {
    if (next_ == copies.size()) return false;
    const Copy& whole = copies[next_];
    const uint64_t length = std::min(most, whole.length - offset_);
    *piece = {whole.to + offset_, whole.from + offset_, length};
    offset_ += length;
    if (offset_ == whole.length) {
      ++next_;
      offset_ = 0;
    }
    return true;
  }
  bool has_more() const { return next_ < copies.size(); }
  Flights& flights() { return *flights_; }
  bool has_flights() const { return flights_ != nullptr; }
  bool is_quiet() const {
    return std::all_of(flights_->begin(), flights_->end(),
                       [](const Flight& flight) { return flight.state == Flight::State::kFree; });
  }
  bool is_under_way() const {
    return std::any_of(flights_->begin(), flights_->end(),
                       [](const Flight& flight) { return flight.state == Flight::State::kUnderWay; });
  }
  /// Submits nothing more, and ends with `state`.
  void stop(JobState state) {
    failed = state;
    for (Flight& flight : *flights_)
      if (flight.state == Flight::State::kRefused) flight.state = Flight::State::kFree;
  }

  JobState failed = JobState::kRunning;  ///< kRunning: it has not failed
  uint64_t left = 0;                     ///< bytes that are not copied, for the time of the next look

 private:
  std::unique_ptr<Flights> flights_;
  size_t next_ = 0;
  uint64_t offset_ = 0;
};

DsaEngine::DsaEngine(std::unique_ptr<WorkQueue> queue)
    : queue_(std::move(queue)), piece_(std::clamp(queue_->max_transfer(), kPage, kMostPiece)) {}

std::unique_ptr<CopyJob> DsaEngine::make_job() {
  std::unique_ptr<Job> job(new (std::nothrow) Job);
  if (job != nullptr && !job->allocate()) job.reset();
  return job;
}

void DsaEngine::break_down(const char* reason, unsigned status) {
  if (!broken_.exchange(true))
    NUPA_WARN("the DSA work queue is not used any more: %s (status 0x%x); the processor copies", reason, status);
}

void DsaEngine::launch(Flight& flight) {
  dsa_hw_desc descriptor = {};
  descriptor.opcode = DSA_OPCODE_MEMMOVE;
  // A completion record at the address below. Not IDXD_OP_FLAG_BOF: after a page fault the device reports how far it
  // got. Not IDXD_OP_FLAG_CC: bulk data would displace the caches' content.
  descriptor.flags = IDXD_OP_FLAG_CRAV | IDXD_OP_FLAG_RCR;
  descriptor.completion_addr = reinterpret_cast<uint64_t>(&flight.record);
  descriptor.src_addr = reinterpret_cast<uint64_t>(flight.rest.from);
  descriptor.dst_addr = reinterpret_cast<uint64_t>(flight.rest.to);
  descriptor.xfer_size = static_cast<uint32_t>(flight.rest.length);
  __atomic_store_n(&flight.record.status, uint8_t{DSA_COMP_NONE}, __ATOMIC_RELEASE);
  switch (queue_->submit(descriptor)) {
    case WorkQueue::Submitted::kYes:
      flight.state = Flight::State::kUnderWay;
      return;
    case WorkQueue::Submitted::kBroken:
      break_down("it takes no descriptor", 0);
      [[fallthrough]];
    case WorkQueue::Submitted::kFull:
      flight.state = Flight::State::kRefused;
  }
}

void DsaEngine::fill(Job& job) {
  for (Flight& flight : job.flights()) {
    if (flight.state == Flight::State::kUnderWay) continue;
    if (flight.state == Flight::State::kFree) {
      if (!job.take_piece(piece_, &flight.rest)) continue;
      flight.stuck = 0;
    }
    launch(flight);
    if (flight.state == Flight::State::kRefused) return;
  }
}

bool DsaEngine::submit(CopyJob& submitted) {
  Job& job = static_cast<Job&>(submitted);
  if (broken_.load(std::memory_order_relaxed) || !job.has_flights()) return false;
  job.begin();
  if (!job.has_more()) return true;  // poll() stores the last bytes
  fill(job);
  if (job.is_under_way()) return true;
  job.stop(JobState::kIdle);
  job.undo();
  return false;
}

void DsaEngine::go_on(Job& job, Flight& flight) {
  const uint64_t moved = std::min<uint64_t>(flight.record.bytes_completed, flight.rest.length);
  flight.rest.to += moved;
  flight.rest.from += moved;
  flight.rest.length -= moved;
  job.left -= moved;
  flight.stuck = moved == 0 ? flight.stuck + 1 : 0;
  if (flight.rest.length == 0) {
    flight.state = Flight::State::kFree;
    return;
  }
  // The page of the fault is one of these two, or a later one of the same range: then the next fault names it.
  bool mapped = touch_to_read(flight.rest.from) && touch_to_write(flight.rest.to);
  if (mapped && flight.stuck >= kMostStuck) {
    const Copy part{flight.rest.to, flight.rest.from, std::min(flight.rest.length, kPage)};
    mapped = copy_guarded(part);
    flight.rest = {part.to + part.length, part.from + part.length, flight.rest.length - part.length};
    job.left -= part.length;
    flight.stuck = 0;
  }
  flight.state = Flight::State::kFree;
  if (!mapped) return job.stop(JobState::kFault);
  if (flight.rest.length != 0) launch(flight);
}

void DsaEngine::look(Job& job, Flight& flight) {
  const uint8_t status = __atomic_load_n(&flight.record.status, __ATOMIC_ACQUIRE);
  if (status == DSA_COMP_NONE) return;
  queue_->ended();
  const bool goes_on = job.failed == JobState::kRunning;
  switch (status & DSA_COMP_STATUS_MASK) {
    case DSA_COMP_SUCCESS:
      job.left -= flight.rest.length;
      flight.state = Flight::State::kFree;
      return;
    case DSA_COMP_PAGE_FAULT_NOBOF:
      if (goes_on) return go_on(job, flight);
      flight.state = Flight::State::kFree;
      return;
    default:
      flight.state = Flight::State::kFree;
      break_down("it reports an error", status);  // poll() stops the job
  }
}

JobState DsaEngine::poll(CopyJob& submitted) {
  Job& job = static_cast<Job&>(submitted);
  if (state_of(job) != JobState::kRunning) return state_of(job);
  for (Flight& flight : job.flights())
    if (flight.state == Flight::State::kUnderWay) look(job, flight);
  if (job.failed == JobState::kRunning) {
    if (!broken_.load(std::memory_order_relaxed)) fill(job);
    if (broken_.load(std::memory_order_relaxed)) job.stop(JobState::kBroken);
  }
  if (!job.is_quiet()) return JobState::kRunning;
  JobState state = job.failed;
  if (state == JobState::kRunning) state = store_last(job.last) ? JobState::kDone : JobState::kFault;
  job.end(state);
  return state;
}

void DsaEngine::cancel(CopyJob& submitted) {
  Job& job = static_cast<Job&>(submitted);
  if (state_of(job) != JobState::kRunning) return;
  job.stop(JobState::kIdle);
  const bool over = progress::wait_for(
      [&] {
        for (Flight& flight : job.flights())
          if (flight.state == Flight::State::kUnderWay) look(job, flight);
        return job.is_quiet();
      },
      progress::kHolderPolicy, progress::Deadline::in_ns(kCancelLimitNs));
  if (!over) {
    break_down("a descriptor does not end", 0);
    job.leave_flights_to_device();
    job.allocate();
  }
  job.end(JobState::kIdle);
}

int64_t DsaEngine::next_look(const CopyJob& submitted, int64_t now_ns) const {
  const Job& job = static_cast<const Job&>(submitted);
  return now_ns + std::clamp(static_cast<int64_t>(job.left / kBytesPerNs), kShortestLookNs, kLongestLookNs);
}

}  // namespace nupa::copy
