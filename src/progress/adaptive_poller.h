// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

#include "progress/alarm.h"
#include "progress/packet_source.h"
#include "progress/poll_policy.h"
#include "progress/poller.h"
#include "progress/receive_right.h"
#include "progress/thread.h"
#include <nupa/result.h>

namespace nupa::progress {

/// Decides which thread takes a source's packets: a thread of the program that polls, a thread of the program that
/// sleeps until an event comes, or the serving thread, which this class starts. The states are in
/// docs/design/progress.md, and the rules in poll_policy.h. Any thread, unless a function's comment states otherwise.
class AdaptivePoller final : public Poller {
 public:
  explicit AdaptivePoller(PacketSource& source) : source_(source) {}
  /// Only after stop(), or in a child of fork().
  ~AdaptivePoller() override = default;
  AdaptivePoller(const AdaptivePoller&) = delete;
  AdaptivePoller& operator=(const AdaptivePoller&) = delete;

  /// EMFILE, ENFILE, ENOMEM.
  Result<void> open();
  /// Starts the serving thread if it does not run yet. EAGAIN, ENOMEM: it cannot be started.
  Result<void> start(ThreadName name);
  /// Stops the serving thread and waits for its end.
  void stop();
  /// The descriptors that are readable while packets wait; the source adds them here.
  ReceiveRight& right() { return right_; }
  /// Wakes the serving thread for other reasons than packets.
  Alarm& alarm() { return alarm_; }

  /// For a thread of the program that polled and found nothing: handles the packets that have arrived. Never waits.
  void poll() override;
  /// For a thread that turns to other work: does what its last poll left for the next one. Never waits.
  void finish_poll() override;
  /// For a thread that has armed a completion queue, will check the queue once more and then sleep. From now on packets
  /// wake the serving thread, unless other threads poll.
  void program_sleeps() override;
  Slept sleep(EventCatch& events) override;
  /// Packets were sent or arrived, so polls may find some.
  void note_traffic() {
    if (!is_warm()) warm_.store(true, std::memory_order_relaxed);
  }

  // Functions for the source.
  /// Within a turn, after the source has looked for packets: returns the next step.
  PollPolicy::Step after(const PollPolicy::Look& look) { return policy_.after(look); }
  /// Within a turn of a thread of the program that looked for packets at `now`.
  void looked(int64_t now) {
    const auto seen = [this](int64_t at) {
      return PollsSeen{at, polls_.load(std::memory_order_relaxed), source_.packets()};
    };
    alarm_.put_off_look(now, seen);
  }
  /// A packet is to be sent, or a timer ends, at `deadline`: the serving thread takes a turn by then.
  void expect(int64_t deadline) { alarm_.expect(deadline); }
  /// The earliest deadline of expect().
  int64_t wanted_at() const { return alarm_.earliest(); }
  /// No thread takes a turn while the caller holds the lock, which must be for microseconds. A serving thread in the
  /// middle of a stream releases the lock.
  std::unique_lock<std::mutex> claim();

  // Functions for fork(), called in the source's stage: no turn is taken meanwhile. A child has no serving thread, and
  // may not use its parent's descriptors.
  void before_fork() { claim().release(); }
  void in_parent() { turn_mutex_.unlock(); }
  void in_child();

 private:
  void serve();
  bool is_due() const;
  bool has_packets() const;
  /// Takes a turn in a thread that descriptors woke.
  bool take_woken_turn(Receiver receiver);
  /// Takes packets for a while without sleeping. True: an event is there.
  bool look_for(const EventCatch& events);
  /// True if packets wait that no polling thread takes. Waits briefly to find out.
  bool left_waiting();
  /// After a part of a stream: waits briefly for the next part without sleeping. `lock` holds turn_mutex_.
  void linger(std::unique_lock<std::mutex>& lock);

  PacketSource& source_;
  std::mutex turn_mutex_;            ///< held by the thread that takes a turn
  std::atomic<uint32_t> wanted_{0};  ///< threads that wait for turn_mutex_ and will not take a turn
  PollPolicy policy_;                ///< used by the turns
  ReceiveRight right_;               ///< of the serving thread, or of a thread that sleeps in the program
  Alarm alarm_;
  std::atomic<uint64_t> polls_{0};  ///< polls by threads of the program
  // A program that sleeps stores slept_after_ and then looks at watches_; the serving thread stores watches_ and then
  // looks at slept_after_. All four are sequentially consistent: the program sees that it has to kick, or the serving
  // thread sees that the program sleeps.
  std::atomic<uint64_t> slept_after_{0};  ///< polls before a thread of the program went to sleep; 0: none ever did
  std::atomic<bool> watches_{false};      ///< the serving thread leaves packets to the polling threads
  std::atomic<bool> stop_{false};
  std::mutex start_mutex_;
  Thread thread_;
  std::atomic<bool> running_{false};
};

}  // namespace nupa::progress
