// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/device.h>

#include <atomic>
#include <deque>
#include <functional>
#include <unordered_map>

#include "netdev/peer_channel.h"
#include "netdev/prefix.h"
#include "progress/loop.h"
#include "progress/poll_policy.h"

namespace nupa::netdev {

/// A counter that one thread writes and any thread reads.
class RelaxedCounter {
 public:
  void add(uint64_t more) { value_.store(value_.load(std::memory_order_relaxed) + more, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// Packets and bytes exchanged with one peer, and counts of dropped packets.
struct LinkStatistics {
  RelaxedCounter sent, sent_bytes, received, received_bytes;
  RelaxedCounter no_room;       ///< the peer does not read, so there was no room
  RelaxedCounter too_long;      ///< exceeds the peer's MTU; the sender got an ICMP message
  RelaxedCounter wrong_source;  ///< from the peer, with an address that does not belong to it
  RelaxedCounter malformed;     ///< from the peer: no valid packet, or not for this node
  RelaxedCounter refused;       ///< rejected by this node's kernel
};

/// The data of a packet loop about one peer.
struct Link {
  std::vector<Gid> addresses;
  uint32_t mtu = kMinMtu;
  bool takes_datagrams = false;  ///< the peer accepts large segments of datagrams
  /// Packets are sent on the first channel and received on all channels.
  std::vector<PeerChannel*> channels;
  LinkStatistics* traffic = nullptr;
  bool carries = false;  ///< packets are sent to this peer
  bool failed = false;   ///< a channel has failed, and this was reported to the node

  /// Packets for this peer that were read while it had no room, in order.
  std::deque<std::vector<std::byte>> aside;
  size_t aside_bytes = 0;
  int64_t stuck_since_ns = 0;
};

/// The node's own addresses and MTU.
struct LocalAddresses {
  std::vector<Prefix> addresses;
  uint32_t mtu = kMaxMtu;
};

/// Notifications of a packet loop. They must not wait for the thread that calls the packet loop.
struct PacketLoopEvents {
  /// Called on the packet loop's thread when a channel of a peer has failed, once for each attached peer.
  std::function<void()> on_failure;
  /// Called when the packet loop has ended. ENODEV: the interface was removed. ENOMEM: see insist().
  std::function<void(int error)> on_lost;
};

/// A packet loop: a thread that moves packets between a queue of the device and the channels to all peers. While there
/// are packets it polls for more, otherwise it sleeps in its event loop.
class PacketLoop {
 public:
  /// `queue` is a descriptor of the TUN device. Returns the errors of the device, of loops and of threads.
  static Result<std::unique_ptr<PacketLoop>> start(Device& device, int queue, const LocalAddresses& own,
                                                   PacketLoopEvents events = {});
  ~PacketLoop();

  /// The completion queue of all its channels.
  CompletionQueue& cq() { return *cq_; }
  /// Runs a function on the packet loop's thread and waits for it. Returns false if it did not run and never will,
  /// because the packet loop has stopped or there is no memory. Any other thread.
  bool call(const std::function<void()>& what);
  /// Runs a function on the thread without waiting, before later calls. Returns false if there is no memory.
  bool post(std::function<void()> what);
  /// Like call(), for objects that the packet loop must release before they are destroyed. If there is no memory, this
  /// ends the thread and runs the function on the calling thread. One other thread.
  void insist(const std::function<void()>& what);
  /// Ends the thread and rejects later calls. One other thread.
  void stop();
  /// Passes the completions of the channel to it and makes room for all of them in cq(). Must be called before the
  /// channel is connected. One other thread. Returns ECANCELED if call() fails, or the errors of
  /// CompletionQueue::resize().
  int watch(PeerChannel& channel);

  // The functions below run on the packet loop's thread.
  void unwatch(PeerChannel& channel) { channels_.erase(channel.number()); }
  /// Starts receiving from the peer.
  void attach(Link& link) { links_.push_back(&link); }
  /// Starts sending the packets for the peer's addresses.
  void route_to(Link& link);
  void detach(Link& link);

  /// Counts the packets of this node's kernel that have no destination.
  uint64_t unroutable() const { return unroutable_.get(); }

 private:
  PacketLoop(Device& device, int queue, const LocalAddresses& own, PacketLoopEvents events,
             std::unique_ptr<progress::Loop> loop);
  Result<void> open();
  void run_task(const std::function<void()>& what);
  void on_queue(uint32_t events);
  /// Moves packets until there are none for a while, or another thread calls a function.
  void work();
  bool take_completions();
  // From peers to the kernel.
  bool receive();
  void deliver(Link& link, std::span<const std::byte> frame);
  // From the kernel to peers.
  struct ParsedFrame;
  bool send();
  bool may_read();
  /// Sends a frame. It may already lie in a peer's ring, where the peer can change it at any time.
  void send_frame(std::byte* frame, size_t bytes, PeerChannel* room_of);
  void send_to(Link& link, const ParsedFrame& parsed, std::byte* frame, size_t bytes, PeerChannel* room_of);
  /// Copies the frame to memory that no peer can change. The copy begins with the bytes that were checked.
  std::span<std::byte> own_copy(const ParsedFrame& parsed, std::byte* frame, size_t bytes);
  // No peer can change the frame.
  void send_to_all(const ParsedFrame& parsed, std::span<const std::byte> frame);
  /// Sends a large segment of datagrams one by one, for a peer whose kernel does not accept it. The header must be
  /// consistent.
  void send_apart(Link& link, VirtioHeader header, Bytes packet);
  /// Sends each part behind this header.
  void put_parts(Link& link, const VirtioHeader& header, const std::vector<std::vector<std::byte>>& parts);
  void send_too_long(Link& link, const ParsedFrame& parsed, std::span<std::byte> packet);
  void put(Link& link, const std::byte* frame, size_t bytes, PeerChannel* room_of);
  void put_aside(Link& link, const std::byte* frame, size_t bytes);
  bool drain_asides();
  void answer(Refusal refusal, std::span<const std::byte> packet, uint32_t mtu);
  void count_moved(const PeerChannel& channel, size_t bytes) {
    if (channel.is_mapped())
      policy_.moved_by_memory(bytes);
    else
      policy_.moved_by_packets(bytes);
  }
  /// Requests wakeups from all sources. Returns false if there is work now.
  bool may_sleep();
  /// Sets how long the loop sleeps, and whether it watches the queue.
  void set_sleep(int64_t now);
  /// Cancels the requests for wakeups.
  void wake();
  bool is_for_all(const Gid& destination) const;

  Device& device_;
  int queue_;
  const LocalAddresses own_;
  const PacketLoopEvents events_;
  std::unique_ptr<CompletionChannel> channel_;
  std::unique_ptr<CompletionQueue> cq_;
  /// Calls that are queued for the thread. It checks this count while it moves packets, because the loop does not run
  /// then.
  std::atomic<uint32_t> called_{0};

  std::unordered_map<uint64_t, PeerChannel*> channels_;
  std::vector<Link*> links_;
  struct Hash {
    size_t operator()(const Gid& gid) const;
  };
  std::unordered_map<Gid, Link*, Hash> routes_;
  Link* last_ = nullptr;     ///< peer of the last sent packet
  Link* blocked_ = nullptr;  ///< peer without room, because of which nothing is read
  size_t first_ = 0;         ///< index of the peer that is read first
  progress::PacketLoopPolicy policy_;
  RelaxedCounter unroutable_;
  int64_t answers_from_ns_ = 0;
  uint32_t answers_ = 0;
  std::vector<std::byte> scratch_;
  bool is_asleep_ = false;    ///< true between may_sleep() and wake()
  bool has_stopped_ = false;  ///< used by the thread that calls stop()

  // Destroyed first, in reverse order. No handler runs after the loop has ended.
  std::unique_ptr<progress::Loop> loop_;
  progress::Loop::Timer go_on_;                         ///< runs work()
  std::unique_ptr<progress::Loop::Watch> queue_ready_;  ///< null after the queue was removed
  std::unique_ptr<progress::Loop::Watch> channel_ready_;
  int64_t queue_pauses_until_ = 0;  ///< end of the pause of queue_ready_
};

}  // namespace nupa::netdev
