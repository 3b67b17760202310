// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <vector>

#include "core/completion_sink.h"
#include "core/next_stamp.h"
#include "progress/event_descriptor.h"
#include "progress/spin_lock.h"
#include "shm/completion_ring.h"

namespace nupa::core {

class Channel final : public CompletionChannel {
 public:
  Channel(DeviceImpl& device, std::unique_ptr<progress::EventDescriptor> events, uint32_t index);
  ~Channel() override;
  int fd() const override { return events_->fd(); }
  int signal_fd() const override { return events_->signal_fd(); }
  Result<CompletionQueue*> wait() override;
  int close() override;

  uint32_t index() const { return index_; }
  void attach(Cq* cq);
  /// Also takes back the wake-ups of events that no thread will fetch any more.
  void detach(Cq* cq);
  void wake(uint32_t events = 1) const;
  /// Wakes threads for events that a dead process raised without waking a thread.
  void recover();

 private:
  Cq* next_with_event();
  /// Looking at the queues costs less than a system call if there are few of them.
  bool may_have_event();

  DeviceImpl& device_;
  const std::unique_ptr<progress::EventDescriptor> events_;
  uint32_t index_;
  std::mutex mutex_;
  std::vector<Cq*> cqs_;
  size_t turn_ = 0;
  std::atomic<bool> open_{true};
};

class Cq final : public CompletionSink {
 public:
  /// DeviceImpl::create_cq takes the table entry and allocates the ring.
  Cq(DeviceImpl& device, uint32_t index, const shm::Segment::Block& block, uint32_t log2_slots,
     const CqOptions& options);
  ~Cq() override;

  int poll(WorkCompletion* completions, int count) override;
  int poll_ex(WorkCompletionEx* completions, int count) override;
  int arm(bool solicited_only) override;
  int resize(uint32_t entries) override;
  int moderate(uint16_t count, uint16_t period_us) override;
  uint32_t entries() const override { return static_cast<uint32_t>(ring_.capacity()) - 1; }
  uint32_t handle() const override { return index_; }
  void* user_context() const override { return user_context_; }
  CompletionChannel* channel() const override { return channel_; }
  Channel* event_channel() const { return channel_; }
  uint32_t events_delivered() const override { return delivered_.load(); }
  int close() override;

  bool timestamps() const { return timestamps_; }
  DeviceImpl& device() { return device_; }

  /// Channel: the number of events that were raised and not taken, without those that the service thread still has to
  /// report.
  uint32_t reported_events() const;
  /// Channel: true if an event was raised and not taken.
  bool has_event() const { return taken_.load() != shared_->events.load(std::memory_order_acquire); }
  /// Channel: takes one raised event; false if there is none.
  bool take_event();
  void count_delivered() { delivered_.fetch_add(1); }
  /// In a forked child: polls find nothing, even if a thread of the parent was in the middle of a poll.
  void abandon();
  void purge(uint32_t qp_num) override;
  void forget(uint32_t qp_num) override;
  /// Voids the entries that a dead process had claimed and not completed, and raises a lost event. Channel::recover()
  /// has to follow: it wakes the program for events that the dead process raised without waking it.
  void recover(uint32_t dead_tag);
  bool completed(uint64_t intent) override;
  void on_overrun();
  /// Service thread: wakes the channel for events of peers that do not have its descriptor.
  void wake_channel();
  /// Takes the number of those events for which no thread was woken.
  uint32_t take_unsignalled() { return shared_->unsignalled.exchange(0); }

 private:
  template <class Completion>
  int poll_into(Completion* completions, int count);
  /// poll_into() for a ring that may have entries.
  template <class Completion>
  [[gnu::noinline]] int poll_both(Completion* completions, int count);
  void fill(const shm::CqEntry& entry, WorkCompletion* wc);
  /// Called with the lock held, while the slot beside the ring holds a completion.
  template <class Completion>
  void take_from_side(Completion* to);
  /// Lets the work queue of this entry take one more request. `polled` false: the entry is dropped.
  void make_room(const shm::CqEntry& entry, bool polled);
  /// This process's queue pair of that number; null: there is none. Called with the lock held.
  Qp* queue_pair(uint32_t number);
  [[gnu::noinline]] Qp* find_queue_pair(uint32_t number);
  /// Called with the lock held when head_ or ring_ has changed.
  void look_at_next();
  /// Takes what has arrived as packets. Returns true if packets may come.
  bool take_packets();
  /// The result of a poll that finds no entry. Lets others have the core after many of them.
  int nothing_there(bool packets);
  /// Keeps writers out of the ring. `lock` holds this queue's lock, and is released between turns. Returns false if an
  /// entry was still being written after two seconds; writers then use the ring as before.
  bool close_ring(std::unique_lock<progress::SpinLock>& lock);
  void reopen_ring();

  DeviceImpl& device_;
  shm::CqShared* shared_;
  shm::Segment::Block block_;
  shm::CompletionRing ring_;
  uint16_t generation_ = 0;  ///< counts the resizes of the ring
  void* user_context_;
  Channel* channel_;
  bool timestamps_;
  const std::vector<progress::Poller*>& pollers_;  ///< polled by a thread that finds no entry
  progress::SpinLock lock_;
  uint64_t head_ = 0;
  // The queue pair whose entry was polled last, if it completes here. A lookup in the table costs three dependent
  // loads.
  uint32_t last_number_ = 0;  ///< 0: none
  Qp* last_ = nullptr;
  NextStamp next_;  ///< describes the entry at head_
  SideSlot side_;
  std::atomic<uint32_t> empty_polls_{0};
  std::atomic<uint32_t> taken_{0};      ///< raised events that were handed out, or dropped with the queue
  std::atomic<uint32_t> delivered_{0};  ///< events that were handed out
  bool open_ = true;
};

}  // namespace nupa::core
