#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "host/peer.h"
#include "host/wire.h"
#include "host/runtime_dir.h"
#include "progress/loop.h"
#include "shm/segment.h"

namespace nupa::host {

/// What the service thread calls. Each returns soon and never waits for another process.
class NodeEvents {
 public:
  virtual ~NodeEvents() = default;
  /// The doorbell rang: look at the attention bits of the own segment.
  virtual void on_attention() = 0;
  /// A peer is gone. `peer.left_politely()` tells whether it said goodbye.
  virtual void on_peer_gone(Peer& peer) = 0;
  /// A message of the communication manager, from the process itself too.
  virtual void on_payload(Peer& peer, const Payload& payload) = 0;
};

/// This process on this host: its slot and socket in the runtime directory, its segment, its peers, and the one
/// service thread that answers them. The data path never needs that thread.
class Node {
 public:
  /// Claims a slot, makes the segment. Peers wait, and `events` is not called, until serve(). `region_fd` is handed to
  /// peers. `gids`, of each device, are written to the header. `events` outlives the node. `reserve`, if given, has to
  /// say true to the slot. `describe`, if given, writes to the header what other processes read about this one's
  /// transports, before they can find it. EACCES, EPERM: the runtime directory is not this user's alone; ENOSPC: no
  /// free slot; limits of the process.
  static Result<std::unique_ptr<Node>> open(int region_fd, const std::vector<std::vector<Gid>>& gids,
                                            NodeEvents& events, const std::function<bool(uint32_t slot)>& reserve = {},
                                            const std::function<void(shm::SegmentHeader&)>& describe = {});
  /// As stop().
  virtual ~Node() = default;
  /// Starts the service thread, unless it runs already: everything that `events` needs exists. Errors of threads.
  virtual Result<void> serve() = 0;
  /// Says goodbye to all peers, stops the thread, removes the socket. `events` and handlers of the loop are not called
  /// any more. Not on the service thread.
  virtual void stop() = 0;

  virtual shm::Segment& segment() = 0;
  /// The first one.
  virtual uint32_t slot() const = 0;
  /// Takes a further slot for which `reserve` says true: the process has one more bank of queue pairs, and peers find
  /// it by that slot as well. Returns the slot. It stays until the process closes. One thread at a time. ENOSPC: the
  /// process has kMaxBanks, or no slot is free; else what claim_further() says and limits of the process.
  virtual Result<uint32_t> take_slot(const std::function<Result<bool>(uint32_t slot)>& reserve) = 0;
  /// Of all processes that this one may meet.
  virtual MemoryDomain domain() const = 0;
  virtual Peer& self() = 0;
  virtual RuntimeDir& runtime_dir() = 0;

  /// The process in `slot`, met before or met now. Waits at most `timeout` for its answer; the service thread never
  /// waits. With 0 it is asked, if it was not: the loop takes the answer, and find() has it then.
  /// EHOSTUNREACH: nobody there; EACCES: another user; EPROTO: speaks nonsense; ETIMEDOUT: does not answer (stopped); a
  /// process that answers later is met then, and find() has it. EMFILE: one of the two has as many peers as its
  /// descriptors allow (Peer::most_peers()). That is final: the two never meet, so each knows how the other decides.
  virtual Result<PeerRef> connect(uint32_t slot, std::chrono::milliseconds timeout) = 0;
  /// The process in `slot` if it was met before and lives, else null.
  virtual PeerRef find(uint32_t slot) = 0;
  /// All peers that live, this process not among them.
  virtual std::vector<PeerRef> peers() = 0;
  /// A slot of each process in the runtime directory, this one among them, the oldest first (who looks for a service or
  /// for members of a group meets them).
  virtual std::vector<uint32_t> slots() = 0;

  /// A completion channel's eventfd. A peer gets it when it has the first event for that channel and asks for it; that
  /// event goes by the service thread. Returns the channel's index; ENOSPC at kMaxChannels.
  virtual Result<uint32_t> publish_channel(int event_fd) = 0;
  virtual void withdraw_channel(uint32_t index) = 0;

  /// Sends a message of the communication manager to another process. What its socket has no room for leaves later, in
  /// order. Any thread; waits for nobody. EAGAIN: it does not read and too much waits for it; EPIPE: it is gone.
  virtual Result<void> send_payload(Peer& peer, const Payload& payload) = 0;

  /// What the service thread sleeps on. Watches and timers of it are destroyed before the node.
  virtual progress::Loop& loop() = 0;
  bool on_service_thread() { return loop().on_this_thread(); }
  /// After keys or receives were revoked, and nobody is inside a post any more who had looked them up: what others have
  /// asked the service thread for until now it does not do, since the memory may be the program's again (Agent).
  void refuse_earlier_requests();
  /// Held by the service thread while it does such a request.
  std::mutex& serving() { return serving_; }

  /// How many threads of this process are the library's own.
  virtual int internal_threads() const = 0;

 private:
  std::mutex serving_;
};

}  // namespace nupa::host
