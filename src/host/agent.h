// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include <nupa/types.h>
#include "host/node.h"

namespace nupa::host {

/// Result of a copy or an atomic: the memory's owner has not done it yet. The same call must be repeated to go on with
/// it. No completion has this status.
inline constexpr auto kNotServedYet = static_cast<WcStatus>(0xfe);

/// The third way to a peer's memory, after a mapping and CMA: the peer's own service thread copies. Needed for atomics
/// on bytes that cannot be mapped (a processor cannot be atomic through a copy), and where the kernel forbids CMA
/// (other PID namespaces, seccomp, ptrace_scope). Slow: about two thread wake-ups.
///
/// A stopped process serves nothing. So no call waits for the owner without a limit: an AgentCall stays in progress,
/// and its user repeats the call.
class Agent {
 public:
  explicit Agent(host::Node& node) : node_(node) {}

  /// Service thread: executes the requests of other processes to this one.
  void serve();

 private:
  friend class AgentCall;
  /// The local state of one of the requests in this process's segment.
  struct Place {
    shm::Segment::Block bounce;
    PeerRef owner;          ///< while a request to it is in progress
    int64_t asked_ns = 0;   ///< when the request was made
    bool given_up = false;  ///< given up after the owner had begun; free when that has ended
  };

  /// Under the mutex. Takes a place for a new request. Null: all are in use, and none can be freed.
  shm::AgentShared* take(int64_t now);
  Place& place_of(const shm::AgentShared& request);
  Result<std::byte*> bounce_of(Place& place);

  host::Node& node_;
  std::mutex mutex_;
  std::array<Place, shm::kAgents> places_;
};

/// The requests of one user to other processes, one after the other. A request has one or more steps, and is repeated
/// as a whole until it has ended: it skips the steps that are done and goes on with the current one. One call at a
/// time.
class AgentCall {
 public:
  /// How long a call waits for a step, unless the step before it timed out: the time that living processes take when
  /// there is a core for each. The service thread never waits.
  static constexpr int64_t kWaitNs = 2'000'000;

  explicit AgentCall(Agent& agent) : agent_(agent) {}
  ~AgentCall() { forget(); }
  AgentCall(const AgentCall&) = delete;
  AgentCall& operator=(const AgentCall&) = delete;

  void set_wait(int64_t ns) { wait_ns_ = ns; }

  /// Tries a request once. `steps` makes the calls below in the same order each time. Returns its result;
  /// kNotServedYet: the request has not ended. May be nested.
  template <class Steps>
  WcStatus attempt(Steps&& steps) {
    if (inside_) return steps();
    inside_ = true;
    next_ = 0;
    const WcStatus status = steps();
    inside_ = false;
    waits_ = status == kNotServedYet;
    if (!waits_ && (request_ != nullptr || !done_.empty())) [[unlikely]]
      forget();
    return status;
  }
  // Within attempt(). kSuccess; kNotServedYet; kRemOpErr: the memory is not there; kRetryExcErr: the peer died.
  WcStatus copy(host::Peer& owner, bool write, uint64_t remote, std::byte* local, uint64_t length);
  /// Also kRemInvReqErr: the processor cannot be atomic on the word. `operand` holds the compare, add or new value, and
  /// receives the value found.
  WcStatus atomic(host::Peer& owner, shm::AgentOp op, uint64_t remote, uint64_t* operand, uint64_t swap);

  /// True if the last attempt() has not ended.
  bool is_waiting() const { return waits_; }
  /// True if a step was done since the last call of this function.
  bool got_on() { return std::exchange(got_on_, false); }
  /// Gives up the request. Its owner executes nothing that it has not begun by now.
  [[gnu::cold]] void forget();

 private:
  struct Step {
    const host::Peer* owner;
    shm::AgentOp op;
    uint64_t remote;
    uint64_t length;
    const std::byte* to;  ///< READ: destination of the bytes
    uint64_t operand;
    uint64_t swap;
    bool operator==(const Step&) const = default;
  };
  /// `local`: the bytes of a copy. `found`: the result of an atomic.
  WcStatus run(host::Peer& owner, const Step& step, std::byte* local, uint64_t* found);
  /// Sends the step's request. kSuccess: it was sent.
  WcStatus ask(host::Peer& owner, const Step& step, const std::byte* local);
  /// Checks the current step's request.
  WcStatus look(host::Peer& owner, std::byte* local, uint64_t* found);
  /// True if the place still holds this call's request, and not another one.
  bool holds_place(uint32_t word) const;
  WcStatus take_result(std::byte* local, uint64_t* found);
  void drop();

  Agent& agent_;
  int64_t wait_ns_ = kWaitNs;
  shm::AgentShared* request_ = nullptr;  ///< the current step's request
  uint32_t asked_word_ = 0;              ///< its state word when the request was made
  Step asked_{};
  std::vector<Step> done_;  ///< the request's steps that are done
  size_t next_ = 0;
  bool inside_ = false;
  bool waits_ = false;
  bool silent_ = false;  ///< the owner did not do the last step in time
  bool got_on_ = false;
};

}  // namespace nupa::host
