#pragma once
#include <nupa/device.h>

#include <atomic>
#include <deque>
#include <functional>
#include <unordered_map>

#include "netdev/lane.h"
#include "netdev/prefix.h"
#include "progress/loop.h"
#include "progress/poll_policy.h"

namespace nupa::netdev {

/// Written by one thread, read by any.
class Count {
 public:
  void add(uint64_t more) { value_.store(value_.load(std::memory_order_relaxed) + more, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// Packets and bytes with one peer, and what was thrown away of them.
struct Traffic {
  Count sent, sent_bytes, received, received_bytes;
  Count no_room;       ///< for the peer, which does not read
  Count too_long;      ///< for the peer's MTU; the sender was told
  Count wrong_source;  ///< from the peer, with an address that is not its own
  Count malformed;     ///< from the peer: no packet, or not for this node
  Count refused;       ///< by this node's kernel
};

/// What a pump has of one peer.
struct Link {
  std::vector<Gid> addresses;
  uint32_t mtu = kMinMtu;
  bool takes_datagrams = false;  ///< large segments of them
  /// The first one is written to. All are read.
  std::vector<Lane*> lanes;
  Traffic* traffic = nullptr;
  bool carries = false;  ///< packets go there
  bool failed = false;   ///< a lane has failed, and the node knows it

  /// Packets that were read for it while it had no room, in their order.
  std::deque<std::vector<std::byte>> aside;
  size_t aside_bytes = 0;
  int64_t stuck_since_ns = 0;
};

/// What a node has for itself.
struct Own {
  std::vector<Prefix> addresses;
  uint32_t mtu = kMaxMtu;
};

/// What a pump tells. It must not wait for the thread that calls the pump.
struct PumpEvents {
  /// On the pump's thread: a lane of a peer has failed. Once for each peer that is attached.
  std::function<void()> on_failure;
  /// It carries no more packets. ENODEV: the interface was removed; ENOMEM: see insist().
  std::function<void(int error)> on_lost;
};

/// A thread that moves packets between a queue of the device and the lanes to all peers. While there are some it looks
/// for more, else it sleeps in its loop.
class Pump {
 public:
  /// `queue`: of the TUN device. Errors: those of the device, of loops and of threads.
  static Result<std::unique_ptr<Pump>> start(Device& device, int queue, const Own& own, PumpEvents events = {});
  ~Pump();

  /// Of all its lanes.
  CompletionQueue& cq() { return *cq_; }
  /// Has the pump's thread do something, and waits for it. False: it was not done and never will be, since the pump has
  /// stopped or there is no memory. Any other thread.
  bool call(const std::function<void()>& what);
  /// The same without waiting: before what is called for later. False: there is no memory.
  bool post(std::function<void()> what);
  /// As call(), for what the pump must let go of before it is destroyed. Where there is no memory, the thread ends, and
  /// this one does it. One other thread.
  void insist(const std::function<void()>& what);
  /// The thread ends, and calls are refused from now on. One other thread.
  void stop();
  /// The lane's completions come to it from now on, and cq() has room for all of them. Before the lane is connected;
  /// one other thread. ECANCELED: as call(); others: those of CompletionQueue::resize().
  int watch(Lane& lane);

  // On the pump's thread.
  void unwatch(Lane& lane) { lanes_.erase(lane.number()); }
  /// Packets come from the peer.
  void attach(Link& link) { links_.push_back(&link); }
  /// Those for its addresses go there.
  void route_to(Link& link);
  void detach(Link& link);

  /// Packets of this node's kernel that are for nobody.
  uint64_t unroutable() const { return unroutable_.get(); }

 private:
  Pump(Device& device, int queue, const Own& own, PumpEvents events, std::unique_ptr<progress::Loop> loop);
  Result<void> open();
  void run_task(const std::function<void()>& what);
  void on_queue(uint32_t events);
  /// Moves packets until there are none for a while, or something is called for.
  void work();
  bool take_completions();
  // From peers to the kernel.
  bool receive();
  void deliver(Link& link, std::span<const std::byte> frame);
  // From the kernel to peers.
  struct LookedAt;
  bool send();
  bool may_read();
  /// The frame may lie in a peer's ring already, where the peer may change it at any time.
  void send_frame(std::byte* frame, size_t bytes, Lane* room_of);
  void send_to(Link& link, const LookedAt& looked_at, std::byte* frame, size_t bytes, Lane* room_of);
  /// The frame where no peer can change it. It begins with what was looked at.
  std::span<std::byte> own_copy(const LookedAt& looked_at, std::byte* frame, size_t bytes);
  // The frame is one that no peer can change.
  void send_to_all(const LookedAt& looked_at, std::span<const std::byte> frame);
  /// For a peer whose kernel does not take large segments of datagrams. The header is consistent.
  void send_apart(Link& link, VirtioHeader header, Bytes packet);
  /// Each behind this header.
  void put_parts(Link& link, const VirtioHeader& header, const std::vector<std::vector<std::byte>>& parts);
  void send_too_long(Link& link, const LookedAt& looked_at, std::span<std::byte> packet);
  void put(Link& link, const std::byte* frame, size_t bytes, Lane* room_of);
  void put_aside(Link& link, const std::byte* frame, size_t bytes);
  bool drain_asides();
  void answer(Refusal refusal, std::span<const std::byte> packet, uint32_t mtu);
  void count_moved(const Lane& lane, size_t bytes) {
    if (lane.is_mapped())
      policy_.moved_by_memory(bytes);
    else
      policy_.moved_by_packets(bytes);
  }
  /// All others know that this pump is to be woken; false: there is something to do.
  bool may_sleep();
  /// Before the loop sleeps: how long, and whether for the queue too.
  void lie_down(int64_t now);
  /// They need not wake it.
  void wake();
  bool is_for_all(const Gid& destination) const;

  Device& device_;
  int queue_;
  const Own own_;
  const PumpEvents events_;
  std::unique_ptr<CompletionChannel> channel_;
  std::unique_ptr<CompletionQueue> cq_;
  /// Tasks that the loop has for the thread, which does not look there while it moves packets.
  std::atomic<uint32_t> called_{0};

  std::unordered_map<uint64_t, Lane*> lanes_;
  std::vector<Link*> links_;
  struct Hash {
    size_t operator()(const Gid& gid) const;
  };
  std::unordered_map<Gid, Link*, Hash> routes_;
  Link* last_ = nullptr;     ///< the peer that the last packet was sent to
  Link* blocked_ = nullptr;  ///< who has no room, so that nothing is read
  size_t first_ = 0;         ///< whose turn it is to be read first
  progress::PacketLoopPolicy policy_;
  Count unroutable_;
  int64_t answers_from_ns_ = 0;
  uint32_t answers_ = 0;
  std::vector<std::byte> scratch_;
  bool lies_ = false;         ///< may_sleep() has been asked, and wake() not since
  bool has_stopped_ = false;  ///< of the thread that calls stop()

  // Go first, in reverse: no handler runs once the loop has ended.
  std::unique_ptr<progress::Loop> loop_;
  progress::Loop::Timer go_on_;                         ///< runs work()
  std::unique_ptr<progress::Loop::Watch> queue_ready_;  ///< null: the queue is no more
  std::unique_ptr<progress::Loop::Watch> channel_ready_;
  int64_t queue_pauses_until_ = 0;  ///< queue_ready_
};

}  // namespace nupa::netdev
