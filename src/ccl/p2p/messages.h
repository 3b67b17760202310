#pragma once
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "ccl/channel/lane_group.h"
#include "ccl/p2p/message_peer.h"
#include "ccl/coroutine/waiter.h"
#include "progress/thread.h"

namespace nupa::ccl {

/// The sends and receives of a communicator, as one rank has them. Messages between two ranks are received in the order
/// in which they were sent, as far as their tags are asked for. They move while somebody waits for one, and else by a
/// thread of their own. Any thread.
class Messages {
 public:
  using Pointer = std::shared_ptr<Message>;

  /// `ways`, by the communicator's ranks, and `around` outlive this.
  Messages(uint32_t rank, uint32_t ranks, LaneGroup::Ways& ways, Surroundings& around, const WaitRules& rules,
           int64_t limit_ns);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  void begin(const Pointer& message);
  /// It moves even if nobody waits. An errno value: there is no thread for it, and the message was not begun.
  int begin_alone(const Pointer& message);
  /// Until it is done. Its error.
  int wait(const Pointer& message);

 private:
  // Under the mutex.
  bool progress();
  void give_kept(MessagePeer& peer);
  /// Whether a receive takes what this rank sends, and whether one takes nothing else.
  bool wants_from(uint32_t rank) const;
  bool wants_of(uint32_t rank) const;
  bool is_idle() const;
  void end_all(int error);
  std::vector<Wait> all_waits();

  /// Starts the thread if there is none. An errno value.
  int have_thread();
  void serve();
  void tell_thread();

  const uint32_t rank_;
  LaneGroup::Ways& ways_;
  Surroundings& around_;
  const WaitRules rules_;
  const int64_t limit_ns_;

  std::mutex mutex_;
  std::vector<MessagePeer> peers_;
  std::list<Pointer> receives_;  ///< that nothing has come for, in their order
  progress::Thread thread_;
  std::atomic<bool> ends_{false};
  std::atomic<uint32_t> begun_{0};  ///< counts whatever the thread may not know of
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace nupa::ccl
