// SPDX-License-Identifier: Apache-2.0
#include "core/cq.h"
#include "base/probe.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>

#include "base/reason.h"
#include "base/log.h"
#include "host/completion_port.h"
#include "core/device_attr.h"
#include "core/qp.h"
#include "core/srq.h"
#include "progress/cpu.h"
#include "progress/deadline.h"
#include "progress/neighbours.h"
#include "progress/poll_policy.h"
#include "progress/waiter.h"

namespace nupa::core {

using shm::Armed;
using shm::CompletionRing;
using shm::CqEntry;

namespace {

/// A writer takes nanoseconds between its claim and its entry. A writer that takes longer was preempted or stopped.
/// close_ring() then opens the ring again for the other writers, which wait with their send locks held.
constexpr int64_t kClosedNs = 1'000'000;
constexpr int64_t kOpenNs = 1'000'000;
/// The longest time that a resize waits for such a writer.
constexpr int64_t kWriterLimitNs = 2'000'000'000;

}  // namespace

Cq::Cq(DeviceImpl& device, uint32_t index, const shm::Segment::Block& block, uint32_t log2_slots,
       const CqOptions& options)
    : CompletionSink(index),
      device_(device),
      shared_(&device.process().tables().cq[index]),
      block_(block),
      user_context_(options.user_context),
      channel_(static_cast<Channel*>(options.channel)),
      timestamps_(options.timestamps),
      pollers_(device.process().transports().pollers()) {
  shared_->channel = channel_ == nullptr ? 0 : channel_->index() + 1;
  ring_ = CompletionRing(shared_, block.address, log2_slots);
  look_at_next();
  shared_->armed.store(shm::pack_armed(0, Armed::kNo));
  shared_->events.store(0);
  shared_->unsignalled.store(0);
  shared_->overrun.store(0);
  shared_->flags = (options.timestamps ? shm::kCqTimestamps : 0) | (options.ignore_overrun ? shm::kCqIgnoreOverrun : 0);
  shared_->where.store(shm::pack_ring(block.offset, log2_slots), std::memory_order_release);
  if (channel_ != nullptr) channel_->attach(this);
  if (channel_ == nullptr && !timestamps_) side_slot_ = &side_;
  device_.users.add();
  device_.process().objects().cqs().enter(*this, index);
}

Cq::~Cq() {
  if (open_ && close() != 0) NUPA_ERROR("completion queue %u deleted while in use", index_);
}

int Cq::close() {
  if (users.any()) return base::reject(EBUSY, "queue pairs or shared receive queues use the completion queue");
  open_ = false;
  if (Process& process = device_.process(); process.is_here()) {
    process.objects().cqs().leave(index_);
    shared_->where.store(0);
    if (channel_ != nullptr) channel_->detach(this);
    device_.events().forget(this);
    process.ring_memory().give_back(block_);
    process.objects().cqs().numbers().give_back(index_);
  }
  device_.users.drop();
  return 0;
}

inline void Cq::fill(const CqEntry& entry, WorkCompletion* wc) {
  wc->wr_id = entry.wr_id;
  wc->status = static_cast<WcStatus>(entry.status);
  wc->opcode = static_cast<WcOpcode>(entry.opcode);
  wc->vendor_err = entry.vendor_err;
  wc->byte_len = entry.byte_len;
  wc->imm_data = entry.imm_data;
  wc->qp_num = entry.qp_num;
  wc->src_qp = entry.src_qp;
  wc->wc_flags = entry.wc_flags;
  wc->pkey_index = 0;
  wc->slid = entry.slid;
  wc->sl = entry.sl;
  wc->dlid_path_bits = entry.dlid_path_bits;
  NUPA_PROBE(completion, entry.qp_num, entry.wr_id, static_cast<uint32_t>(entry.status),
             static_cast<uint32_t>(entry.opcode), entry.byte_len);
  make_room(entry, true);
}

inline void Cq::make_room(const CqEntry& entry, bool polled) {
  if (entry.srq_number != 0) {
    if (Srq* srq = device_.process().objects().srqs().at(shm::index_of(entry.srq_number)); srq != nullptr)
      srq->retire_receive();
  }
  // XRC: the queue pair may belong to another process. A queue pair of this process purges its entries before it is
  // destroyed, so its number still means the same queue pair.
  if (!polled) return;
  Qp* qp = queue_pair(entry.qp_num);
  if (qp == nullptr) return;
  if ((entry.opcode & static_cast<uint8_t>(WcOpcode::kRecv)) == 0) {
    qp->retire(entry.sq_position);
  } else {
    qp->count_received();
    if (entry.srq_number == 0) qp->retire_receive();
  }
}

inline Qp* Cq::queue_pair(uint32_t number) {
  return __builtin_expect(number == last_number_, 1) ? last_ : find_queue_pair(number);
}

Qp* Cq::find_queue_pair(uint32_t number) {
  Qp* const qp = device_.process().objects().qps().find(number);
  // Cache only a queue pair that calls forget() here before it is destroyed.
  if (qp != nullptr && (qp->send_cq() == this || qp->recv_cq() == this)) {
    last_number_ = number;
    last_ = qp;
  }
  return qp;
}

void Cq::forget(uint32_t qp_num) {
  std::lock_guard lock(lock_);
  if (last_number_ != qp_num) return;
  last_number_ = 0;
  last_ = nullptr;
}

void Cq::abandon() {
  side_.clear();
  // The ring is blank in the child, so it stays empty. If the lock is held, a thread of the parent may have been in
  // look_at_next(), so the stamp is built again.
  if (!lock_.is_held()) return;
  static constinit const std::atomic<uint64_t> kNothing{0};
  next_.~NextStamp();
  new (&next_) NextStamp;
  next_.look_at(kNothing, 1);
}

void Cq::look_at_next() { next_.look_at(ring_.slot(head_).stamp, ring_.turn(head_)); }

bool Cq::take_packets() {
  if (__builtin_expect(pending_qps.load(std::memory_order_relaxed) != 0, 0)) device_.process().pending().poll(*this);
  bool warm = false;
  for (progress::Poller* poller : pollers_)
    if (__builtin_expect(poller->is_warm(), 0)) {
      warm = true;
      poller->poll();
    }
  return warm;
}

int Cq::nothing_there(bool packets) {
  // The count is approximate: two threads that poll at the same time may count one poll.
  const uint32_t empty = empty_polls_.load(std::memory_order_relaxed) + 1;
  empty_polls_.store(empty, std::memory_order_relaxed);
  if (__builtin_expect(packets, 0)) {
    progress::relax();
    progress::Neighbours::of_thread().polled_in_vain(empty);
  } else if (__builtin_expect(progress::yields_after_empty_polls(empty), 0))
    progress::yield();
  if (__builtin_expect(shared_->overrun.load(std::memory_order_relaxed) != 0, 0)) return -EIO;
  return 0;
}

namespace {

WorkCompletion& ordinary(WorkCompletion* wc) { return *wc; }
WorkCompletion& ordinary(WorkCompletionEx* wc) { return wc->wc; }
void set_timestamp(WorkCompletion*, uint64_t) {}
void set_timestamp(WorkCompletionEx* wc, uint64_t timestamp) { wc->timestamp = timestamp; }

}  // namespace

template <class Completion>
inline void Cq::take_from_side(Completion* to) {
  WorkCompletion& wc = ordinary(to);
  wc = side_.completion();
  set_timestamp(to, 0);
  NUPA_PROBE(completion, wc.qp_num, wc.wr_id, static_cast<uint32_t>(wc.status), static_cast<uint32_t>(wc.opcode),
             wc.byte_len);
  if (Qp* const qp = queue_pair(wc.qp_num); qp != nullptr) qp->retire(side_.position());
  side_.clear();
}

template <class Completion>
int Cq::poll_into(Completion* completions, int count) {
  bool ring_is_empty = next_.surely_empty();
  if (ring_is_empty && !side_.holds()) {
    const bool packets = take_packets();
    ring_is_empty = next_.surely_empty();
    if (!packets || (ring_is_empty && !side_.holds())) return nothing_there(packets);
  }
  // The usual poll for a send of this process.
  if (ring_is_empty && count > 0) {
    std::lock_guard lock(lock_);
    if (side_.holds()) {
      take_from_side(completions);
      empty_polls_.store(0, std::memory_order_relaxed);
      return 1;
    }
  }
  return poll_both(completions, count);
}

template <class Completion>
int Cq::poll_both(Completion* completions, int count) {
  int taken = 0;
  lock_.lock();
  // Copies, which the compiler need not load again after each atomic access.
  const CompletionRing ring = ring_;
  const uint64_t before = head_;
  uint64_t head = before;
  while (taken < count) {
    // In this order: an entry that is ready shows all that was completed before it.
    const bool ready = ring.ready(head);
    const CqEntry& entry = ring.slot(head).entry;
    if (side_.holds() && (!ready || (uint64_t{generation_} << 48 | head) >= side_.place())) {
      take_from_side(&completions[taken++]);
      continue;
    }
    if (!ready) break;
    ++head;
    if (__builtin_expect(entry.status == shm::kVoidStatus, 0)) continue;
    fill(entry, &ordinary(&completions[taken]));
    set_timestamp(&completions[taken], entry.timestamp);
    ++taken;
  }
  head_ = head;
  if (head != before) {
    ring.publish_head(head);
    next_.look_at(ring.slot(head).stamp, ring.turn(head));
    // The specification raises an event only for an entry that comes after arming. Adapters also raise one for entries
    // that were in the queue before. Programs that take a fixed number of entries for each event would otherwise sleep
    // forever although entries are left.
    if (channel_ != nullptr && taken == count && ring.ready(head) && ring_.needs_event(false))
      host::raise_cq_event(device_.process().node().self(), index_);
  }
  lock_.unlock();
  if (taken == 0) return nothing_there(take_packets());
  empty_polls_.store(0, std::memory_order_relaxed);
  return taken;
}

int Cq::poll(WorkCompletion* completions, int count) { return poll_into(completions, count); }
int Cq::poll_ex(WorkCompletionEx* completions, int count) { return poll_into(completions, count); }

int Cq::arm(bool solicited_only) {
  CompletionRing::arm(*shared_, solicited_only ? Armed::kSolicited : Armed::kNext);
  // Also for a queue that is still armed: something else has woken the program, which is about to sleep again.
  if (channel_ != nullptr)
    for (progress::Poller* poller : pollers_) poller->program_sleeps();
  return 0;
}

uint32_t Cq::reported_events() const {
  const uint32_t raised = shared_->events.load(std::memory_order_acquire) - taken_.load();
  return raised - std::min(raised, shared_->unsignalled.load());
}

bool Cq::take_event() {
  uint32_t taken = taken_.load();
  while (taken != shared_->events.load(std::memory_order_acquire))
    if (taken_.compare_exchange_weak(taken, taken + 1)) return true;
  return false;
}

int Cq::moderate(uint16_t, uint16_t) {
  // Moderation limits how late an event may come and does not require a delay: here it comes at once.
  return 0;
}

void Cq::reopen_ring() {
  for (uint64_t i = 0; i < ring_.capacity(); ++i) ring_.reopen(head_ + i);
}

bool Cq::close_ring(std::unique_lock<progress::SpinLock>& lock) {
  // Writers find every free slot closed. The loop below waits for entries that are being written; recover() voids the
  // claim of a writer that died.
  const auto close_all = [this] {
    for (uint64_t i = 0; i < ring_.capacity(); ++i)
      if (!ring_.close(head_ + i) && !ring_.ready(head_ + i)) return false;
    return true;
  };
  const auto without_lock = [&lock](auto&& wait) {
    lock.unlock();
    wait();
    lock.lock();
  };
  for (const auto limit = progress::Deadline::in_ns(kWriterLimitNs);;) {
    const auto closed_until = progress::Deadline::in_ns(kClosedNs);
    progress::Waiter waiter(progress::kLockPolicy);
    while (!closed_until.passed()) {
      if (close_all()) return true;  // all slots each time: other threads may have polled meanwhile
      without_lock([&waiter] { waiter.turn(); });
    }
    reopen_ring();
    if (limit.passed()) return false;
    without_lock([] { progress::sleep_for(kOpenNs); });
  }
}

int Cq::resize(uint32_t entries) {
  if (!device_.is_here()) return ENODEV;
  const DeviceAttr limits = device_attr();
  if (entries == 0 || entries > static_cast<uint32_t>(limits.max_cqe))
    return base::reject(EINVAL, entries, " entries (from 1 to ", limits.max_cqe, ")");
  const auto log2 = static_cast<uint32_t>(std::bit_width(entries));
  auto block = device_.process().ring_memory().allocate(CompletionRing::bytes_for(log2));
  if (!block) return block.error().code();

  std::unique_lock lock(lock_);
  CompletionRing fresh(shared_, block->address, log2);
  if (!close_ring(lock)) {
    lock.unlock();
    device_.process().ring_memory().give_back(*block);
    return EBUSY;
  }
  uint64_t kept = 0;
  while (kept < ring_.capacity() && ring_.ready(head_ + kept)) ++kept;
  if (kept >= fresh.capacity()) {
    reopen_ring();
    lock.unlock();
    device_.process().ring_memory().give_back(*block);
    return base::reject(EINVAL, entries, " entries (", kept, " completions wait in the queue)");
  }
  for (uint64_t i = 0; i < kept; ++i) fresh.write(i, ring_.slot(head_ + i).entry);
  fresh.start_at(kept);
  head_ = 0;
  ring_ = fresh;
  look_at_next();
  const shm::Segment::Block old = block_;
  block_ = *block;
  shared_->where.store(shm::pack_ring(block->offset, log2, ++generation_), std::memory_order_release);
  lock.unlock();
  device_.process().ring_memory().give_back(old);
  return 0;
}

void Cq::purge(uint32_t qp_num) {
  std::lock_guard lock(lock_);
  if (side_.holds() && side_.completion().qp_num == qp_num) side_.clear();
  for (uint64_t position = head_; position < head_ + ring_.capacity(); ++position) {
    if (!ring_.ready(position)) continue;
    CqEntry& entry = ring_.slot(position).entry;
    if (entry.qp_num != qp_num || entry.status == shm::kVoidStatus) continue;
    make_room(entry, false);
    entry.status = shm::kVoidStatus;
  }
}

bool Cq::completed(uint64_t intent) {
  constexpr uint64_t kPosition = (uint64_t{1} << 48) - 1;
  const uint64_t position = (intent & kPosition) - 1;
  std::lock_guard lock(lock_);
  // A resize ends only when every claim was completed, or voided by recover(), which runs after this check.
  if (shm::ring_generation(intent) != generation_) return true;
  if (position < head_) return true;
  return position < head_ + ring_.capacity() && ring_.ready(position);
}

void Cq::recover(uint32_t dead_tag) {
  {
    std::lock_guard lock(lock_);
    ring_.void_claims_of(dead_tag);
  }
  // A process that died after disarming and before raising lost an event. A living process between these two steps
  // finds its event raised already.
  if (channel_ == nullptr) return;
  while (CompletionRing::count_event(*shared_)) channel_->wake();
  // The process may also have died before it called for attention.
  wake_channel();
}

void Cq::on_overrun() { device_.events().push({EventType::kCqErr, this, nullptr, nullptr, 1}); }

void Cq::wake_channel() {
  const uint32_t events = take_unsignalled();
  if (channel_ != nullptr && events != 0) channel_->wake(events);
}

}  // namespace nupa::core
