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

/// Decides which thread takes a source's packets: one of the program that polls, one of the program that sleeps until
/// an event comes, or else a thread that this starts. docs/design/progress.md has the states. What it decides by is in
/// poll_policy.h. Any thread, except where said.
class AdaptivePoller final : public Poller {
 public:
  explicit AdaptivePoller(PacketSource& source) : source_(source) {}
  /// stop() was called, or this is a child.
  ~AdaptivePoller() override = default;
  AdaptivePoller(const AdaptivePoller&) = delete;
  AdaptivePoller& operator=(const AdaptivePoller&) = delete;

  /// EMFILE, ENFILE, ENOMEM.
  Result<void> open();
  /// Starts the serving thread if it does not run yet. EAGAIN, ENOMEM: there can be none.
  Result<void> start(ThreadName name);
  /// Ends it.
  void stop();
  /// Descriptors that are readable while packets wait are added here.
  ReceiveRight& right() { return right_; }
  /// What wakes the serving thread beside packets.
  Alarm& alarm() { return alarm_; }

  /// A thread of the program polls and found nothing: it handles what has come. Never waits.
  void poll() override;
  /// It turns to something that takes long: what its last poll left for the next one is done. Never waits.
  void finish_poll() override;
  /// It has armed a completion queue: it looks there once more and then sleeps. From now on packets wake the serving
  /// thread, unless others poll.
  void program_sleeps() override;
  Slept sleep(EventCatch& events) override;
  /// Packets leave or come: polls may find some.
  void note_traffic() {
    if (!is_warm()) warm_.store(true, std::memory_order_relaxed);
  }

  // For the source.
  /// In a turn, after its look for packets: what follows.
  PollPolicy::Step after(const PollPolicy::Look& look) { return policy_.after(look); }
  /// In a turn of a thread of the program, which looked for packets at `now`.
  void looked(int64_t now) {
    const auto seen = [this](int64_t at) {
      return PollsSeen{at, polls_.load(std::memory_order_relaxed), source_.packets()};
    };
    alarm_.put_off_look(now, seen);
  }
  /// Something is to be sent or timed at `deadline`: the serving thread takes a turn by then.
  void expect(int64_t deadline) { alarm_.expect(deadline); }
  /// The earliest of what is expected.
  int64_t wanted_at() const { return alarm_.earliest(); }
  /// No turn is taken while the lock is held, which is for microseconds; the serving thread, in the middle of a stream,
  /// makes way.
  std::unique_lock<std::mutex> claim();

  // fork(), under the source's stage: no turn is taken meanwhile. A child has no thread, and no right to the
  // descriptors of its parent.
  void before_fork() { claim().release(); }
  void in_parent() { turn_mutex_.unlock(); }
  void in_child();

 private:
  void serve();
  bool is_due() const;
  bool has_packets() const;
  /// A turn of a thread that descriptors woke.
  bool take_woken_turn(Receiver receiver);
  /// Takes packets for a while without sleeping. True: an event is there.
  bool look_for(const EventCatch& events);
  /// Whether packets wait that nobody who polls fetches; waits a little to know.
  bool left_waiting();
  /// After a part of a stream: waits a little for the next one without sleeping. `lock`: on the turns.
  void linger(std::unique_lock<std::mutex>& lock);

  PacketSource& source_;
  std::mutex turn_mutex_;            ///< of the thread that takes a turn
  std::atomic<uint32_t> wanted_{0};  ///< threads that wait for it and take no turn
  PollPolicy policy_;                ///< of the turns
  ReceiveRight right_;               ///< of the serving thread, or of one that sleeps in the program
  Alarm alarm_;
  std::atomic<uint64_t> polls_{0};        ///< by threads of the program
  std::atomic<uint64_t> slept_after_{0};  ///< so many of them one went to sleep; 0: none ever did
  std::atomic<bool> watches_{false};      ///< the serving thread leaves packets to those who poll
  std::atomic<bool> stop_{false};
  std::mutex start_mutex_;
  Thread thread_;
  std::atomic<bool> running_{false};
};

}  // namespace nupa::progress
