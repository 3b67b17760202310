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
  /// Also takes back the wake-ups of events that nobody will fetch any more.
  void detach(Cq* cq);
  void wake(uint32_t events = 1) const;
  /// A process is dead that may have raised events and woken nobody.
  void recover();

 private:
  Cq* next_with_event();
  /// To look at the queues costs less than a system call, where they are few.
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
  /// The table entry is taken and the ring allocated by DeviceImpl::create_cq.
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

  /// Channel: how many events were raised and not taken. Events that the service thread still has to report do not
  /// count.
  uint32_t told_events() const;
  /// Channel: one is raised that was not taken.
  bool has_event() const { return taken_.load() != shared_->events.load(std::memory_order_acquire); }
  /// Channel: takes one raised event; false if there is none.
  bool take_event();
  void count_delivered() { delivered_.fetch_add(1); }
  /// In a forked child: polls find nothing, also where a thread of the parent was in the middle of one.
  void abandon();
  void purge(uint32_t qp_num) override;
  void forget(uint32_t qp_num) override;
  /// Entries that a dead process had claimed and not completed become void; a lost event is raised.
  /// Channel::recover() has to follow: it wakes the program for events that the dead process raised without waking it.
  void recover(uint32_t dead_tag);
  bool completed(uint64_t intent) override;
  void on_overrun();
  /// Service thread: the events of peers that do not have the channel's descriptor.
  void wake_channel();
  /// How many of these nobody was woken for.
  uint32_t take_unsignalled() { return shared_->unsignalled.exchange(0); }

 private:
  template <class Completion>
  int poll_into(Completion* completions, int count);
  void fill(const shm::CqEntry& entry, WorkCompletion* wc);
  /// The queue that this entry came from may take one more request. `polled` false: the entry is thrown away.
  void make_room(const shm::CqEntry& entry, bool polled);
  /// This process's queue pair of that number. Null: it has none. Under the lock.
  Qp* queue_pair(uint32_t number);
  [[gnu::noinline]] Qp* find_queue_pair(uint32_t number);
  /// Under the lock: head_ or ring_ changed.
  void look_at_next();
  int nothing_there();
  /// Keeps writers out of the ring. `lock` is that of this queue, which is given back between turns. False: an entry
  /// was still being written after two seconds, and writers have the ring as before.
  bool close_ring(std::unique_lock<progress::SpinLock>& lock);
  void reopen_ring();

  DeviceImpl& device_;
  shm::CqShared* shared_;
  shm::Segment::Block block_;
  shm::CompletionRing ring_;
  uint16_t generation_ = 0;  ///< of the ring: counts resizes
  void* user_context_;
  Channel* channel_;
  bool timestamps_;
  const std::vector<progress::Poller*>& pollers_;  ///< a thread that polls in vain looks for transports' work
  progress::SpinLock lock_;
  uint64_t head_ = 0;
  // The queue pair whose entry was polled last, if it completes here: its place in the table is three loads away, each
  // of which needs the one before.
  uint32_t last_number_ = 0;  ///< 0: none
  Qp* last_ = nullptr;
  NextStamp next_;  ///< of the entry at head_
  std::atomic<uint32_t> empty_polls_{0};
  std::atomic<uint32_t> taken_{0};      ///< of the events raised: handed out, or thrown away with the queue
  std::atomic<uint32_t> delivered_{0};  ///< handed out
  bool open_ = true;
};

}  // namespace nupa::core
