// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "ccl/channel/channel_group.h"
#include "ccl/p2p/message_peer.h"
#include "ccl/coroutine/waiter.h"
#include "progress/thread.h"

namespace nupa::ccl {

/// The sends and receives of a communicator on one rank. Messages between two ranks that match a receive's tag are
/// received in the order in which they were sent. They move while a thread waits for one of them; otherwise a thread of
/// this class moves them. Thread-safe.
class Messages {
 public:
  using Pointer = std::shared_ptr<Message>;

  /// `provider`, by the communicator's ranks, and `hooks` must outlive this.
  Messages(uint32_t rank, uint32_t ranks, ChannelGroup::Provider& provider, ProgressHooks& hooks,
           const WaitRules& rules, int64_t limit_ns);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  void begin(const Pointer& message);
  /// Begins a message that moves even if no thread waits for it. Returns an errno value if there is no thread for it;
  /// then the message was not begun.
  int begin_alone(const Pointer& message);
  /// Waits until the message is done. Returns its error.
  int wait(const Pointer& message);

 private:
  // The mutex must be held.
  bool progress();
  void give_kept(MessagePeer& peer);
  /// Returns whether a receive takes messages from `rank`, and whether one takes messages from no other rank.
  bool wants_from(uint32_t rank) const;
  bool wants_of(uint32_t rank) const;
  bool is_idle() const;
  void end_all(int error);
  std::vector<Wait> all_waits();

  /// Starts the thread if there is none. Returns 0 or an errno value.
  int have_thread();
  void serve();
  void notify_thread();

  const uint32_t rank_;
  ChannelGroup::Provider& provider_;
  ProgressHooks& hooks_;
  const WaitRules rules_;
  const int64_t limit_ns_;

  std::mutex mutex_;
  std::vector<MessagePeer> peers_;
  std::list<Pointer> receives_;  ///< those without a message yet, in their order
  progress::Thread thread_;
  std::atomic<bool> ends_{false};
  std::atomic<uint32_t> begun_{0};  ///< counts changes that the thread may not have seen
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace nupa::ccl
