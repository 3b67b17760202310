#pragma once
#include <array>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include <nupa/types.h>
#include "host/node.h"

namespace nupa::host {

/// Of a copy or an atomic: the memory's owner has not done it yet, and nothing is lost. The same call goes on with it.
/// No completion has this status.
inline constexpr auto kNotServedYet = static_cast<WcStatus>(0xfe);

/// The third way to a peer's memory, after a mapping and process_vm_*: its own service thread does it. Needed for
/// atomics on bytes that cannot be mapped (a processor cannot be atomic through a copy) and where the kernel forbids
/// cross-memory copies (other PID namespaces, seccomp, ptrace_scope). Slow, about two thread wake-ups.
///
/// A process that is stopped serves nothing. So no call waits for the owner without a limit: an AgentCall stays under
/// way, and its user comes back to it.
class Agent {
 public:
  explicit Agent(host::Node& node) : node_(node) {}

  /// Service thread: does what other processes asked of this one.
  void serve();

 private:
  friend class AgentCall;
  /// This process's side of one of the requests in its segment.
  struct Place {
    shm::Segment::Block bounce;
    PeerRef owner;          ///< while it is asked
    int64_t asked_ns = 0;   ///< when it was
    bool given_up = false;  ///< the owner had begun: the place is free when that has ended
  };

  /// Under the mutex. A place for a new request, which it takes; null: all are in use, and none is to be had.
  shm::AgentShared* take(int64_t now);
  Place& place_of(const shm::AgentShared& request);
  Result<std::byte*> bounce_of(Place& place);

  host::Node& node_;
  std::mutex mutex_;
  std::array<Place, shm::kAgents> places_;
};

/// What one user asks of other processes, one request after the other. A request has one or more steps, and is repeated
/// as a whole until it has ended: it passes the steps that were done and goes on with the one that is under way. Calls
/// come one at a time.
class AgentCall {
 public:
  /// How long a step is waited for, in the call, unless the step before it was waited for in vain: as long as living
  /// processes take when there is a core for each. The service thread never waits.
  static constexpr int64_t kWaitNs = 2'000'000;

  explicit AgentCall(Agent& agent) : agent_(agent) {}
  ~AgentCall() { forget(); }
  AgentCall(const AgentCall&) = delete;
  AgentCall& operator=(const AgentCall&) = delete;

  void set_wait(int64_t ns) { wait_ns_ = ns; }

  /// One try of a request, whose steps `steps` asks for by the calls below, in the same order each time. Returns what
  /// that returns: kNotServedYet: the request is not at its end. May be nested.
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
  /// Also kRemInvReqErr: no word that a processor can be atomic on. `operand` goes in as compare, add or new value and
  /// comes back as the value found.
  WcStatus atomic(host::Peer& owner, shm::AgentOp op, uint64_t remote, uint64_t* operand, uint64_t swap);

  /// The last attempt() has not come to its end.
  bool is_waiting() const { return waits_; }
  /// Whether a step was done since this was asked last.
  bool got_on() { return std::exchange(got_on_, false); }
  /// Gives up the request. What its owner has not begun by now it does not do.
  [[gnu::cold]] void forget();

 private:
  struct Step {
    const host::Peer* owner;
    shm::AgentOp op;
    uint64_t remote;
    uint64_t length;
    const std::byte* to;  ///< READ: where the bytes go
    uint64_t operand;
    uint64_t swap;
    bool operator==(const Step&) const = default;
  };
  /// `local`: the bytes of a copy; `found`: of an atomic.
  WcStatus run(host::Peer& owner, const Step& step, std::byte* local, uint64_t* found);
  /// kSuccess: the owner was asked.
  WcStatus ask(host::Peer& owner, const Step& step, const std::byte* local);
  /// Goes on with the step that is under way, if there is one.
  WcStatus look(host::Peer& owner, std::byte* local, uint64_t* found);
  /// Whether the request is still this call's: another one may have its place.
  bool holds_place(uint32_t word) const;
  WcStatus take_result(std::byte* local, uint64_t* found);
  void drop();

  Agent& agent_;
  int64_t wait_ns_ = kWaitNs;
  shm::AgentShared* request_ = nullptr;  ///< the step that is under way
  uint32_t asked_word_ = 0;              ///< of its state, when it was asked
  Step asked_{};
  std::vector<Step> done_;  ///< of the request
  size_t next_ = 0;
  bool inside_ = false;
  bool waits_ = false;
  bool silent_ = false;  ///< the owner did not do the last step in time
  bool got_on_ = false;
};

}  // namespace nupa::host
