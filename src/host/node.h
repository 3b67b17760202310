// SPDX-License-Identifier: Apache-2.0
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

/// The functions that the service thread calls, except on_exit(). Each returns soon and never waits for another
/// process.
class NodeEvents {
 public:
  virtual ~NodeEvents() = default;
  /// The process's eventfd was written: check the attention bits of the own segment.
  virtual void on_attention() = 0;
  /// Another process observes this one (`nupa stat`), and reads its answer when this returns.
  virtual void on_observed() {}
  /// The process ends, and is not found by others any more when this returns. Called once, in the exiting thread: takes
  /// no lock, allocates nothing.
  virtual void on_exit() {}
  /// A peer exited. `peer.has_exited_cleanly()`: it exited cleanly, with a goodbye.
  virtual void on_peer_exit(Peer& peer) = 0;
  /// A message of the communication manager arrived, perhaps from this process itself.
  virtual void on_payload(Peer& peer, const Payload& payload) = 0;
  /// A process of the same user wants this process's packets in the ring `file`, until on_capture_end(). Under the
  /// node's lock. Returns an error if it gets none.
  virtual Result<void> on_capture([[maybe_unused]] base::UniqueFd file) {
    return fail(ENOTSUP, "this process is not captured");
  }
  virtual void on_capture_end() {}
};

/// This process on this host: its slot and socket in the runtime directory, its segment, its peers, and the service
/// thread that answers them. The data path never needs that thread.
class Node {
 public:
  /// Claims a slot and makes the segment. Until serve(), peers wait and `events` is not called. `region_fd` is passed
  /// to peers. `gids`, of each device, are written to the header. `events` outlives the node. `reserve`, if given, must
  /// return true for the slot. `describe`, if given, writes the data about this process's transports to the header
  /// before other processes can find it. EACCES, EPERM: the runtime directory does not belong to this user alone;
  /// ENOSPC: no free slot; limits of the process.
  static Result<std::unique_ptr<Node>> open(int region_fd, const std::vector<std::vector<Gid>>& gids,
                                            NodeEvents& events, const std::function<bool(uint32_t slot)>& reserve = {},
                                            const std::function<void(shm::SegmentHeader&)>& describe = {});
  /// Calls stop().
  virtual ~Node() = default;
  /// Starts the service thread, unless it runs already. All objects that `events` uses must exist. Errors of threads.
  virtual Result<void> serve() = 0;
  /// Sends goodbye to all peers, stops the thread, and removes the socket. `events` and handlers of the loop are not
  /// called any more. Not on the service thread.
  virtual void stop() = 0;

  virtual shm::Segment& segment() = 0;
  /// The first slot.
  virtual uint32_t slot() const = 0;
  /// Takes a further slot for which `reserve` returns true. The process then has one more bank of queue pairs, and
  /// peers find it by that slot as well. Returns the slot, which stays until the process closes. One thread at a time.
  /// ENOSPC: the process has kMaxBanks, or no slot is free. Other errors of claim_further() and limits of the process.
  virtual Result<uint32_t> take_slot(const std::function<Result<bool>(uint32_t slot)>& reserve) = 0;
  /// The same for all processes that this one may connect to.
  virtual MemoryDomain domain() const = 0;
  virtual Peer& self() = 0;
  virtual RuntimeDir& runtime_dir() = 0;

  /// Returns the process in `slot`, after the handshake if it is not a peer yet. Waits at most `timeout` for its
  /// answer; the service thread never waits. With 0 it only starts the handshake: the loop takes the answer, and find()
  /// returns the process then. EHOSTUNREACH: no process there. EACCES: another user. EPROTO: an invalid answer.
  /// ETIMEDOUT: no answer yet (stopped); if it answers later, find() returns it then. EMFILE: one of the two has as
  /// many peers as its descriptors allow (Peer::most_peers()). That is final: the two never connect, so both decide the
  /// same.
  virtual Result<PeerRef> connect(uint32_t slot, std::chrono::milliseconds timeout) = 0;
  /// The process in `slot` if it is a peer and is alive, or null.
  virtual PeerRef find(uint32_t slot) = 0;
  /// All peers that are alive, without this process.
  virtual std::vector<PeerRef> peers() = 0;
  /// A slot of each process in the runtime directory, also of this one, the oldest first. A process that looks for a
  /// service, or for members of a group, connects to them.
  virtual std::vector<uint32_t> slots() = 0;

  /// Publishes a completion channel's eventfd. A peer gets it when it has its first event for that channel and asks for
  /// it; that event is delivered by the service thread. Returns the channel's index. ENOSPC: kMaxChannels are in use.
  virtual Result<uint32_t> publish_channel(int event_fd) = 0;
  virtual void withdraw_channel(uint32_t index) = 0;

  /// Sends a message of the communication manager to another process. If its socket has no room, the message is sent
  /// later, in order. Any thread; never waits. EAGAIN: the process does not read, and too much waits for it. EPIPE: it
  /// exited.
  virtual Result<void> send_payload(Peer& peer, const Payload& payload) = 0;

  /// The event loop of the service thread. Its watches and timers are destroyed before the node.
  virtual progress::Loop& loop() = 0;
  bool on_service_thread() { return loop().on_this_thread(); }
  /// Call it after keys or receives were revoked, and no thread is inside a post any more that had looked them up. The
  /// service thread then rejects all earlier requests, because the memory may be the program's again (Agent).
  void refuse_earlier_requests();
  /// Held by the service thread while it executes such a request.
  std::mutex& serving() { return serving_; }

  /// The number of the library's own threads in this process.
  virtual int internal_threads() const = 0;

 private:
  std::mutex serving_;
};

}  // namespace nupa::host
