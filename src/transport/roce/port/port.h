// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The UDP port of a process. It delivers packets to their queue pairs (qp_receiver.h) and sends packets in batches, in
/// a thread that polls or else in the serving thread, nupa-roce (progress/adaptive_poller.h). Port combines the classes
/// of this folder; the endpoints use those that Port's functions name. Any thread calls a Port; each class of the
/// folder states its lock.
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "net/udp_socket.h"
#include "progress/adaptive_poller.h"
#include "progress/lifecycle.h"
#include "shm/layout.h"
#include "transport/roce/port/ack_scheduler.h"
#include "transport/roce/port/qp_receiver.h"
#include "transport/roce/port/demultiplexer.h"
#include "transport/roce/port/flow_windows.h"
#include "transport/roce/port/further_ports.h"
#include "transport/roce/port/exited_peers.h"
#include "transport/roce/port/multicast_groups.h"
#include "transport/roce/port/holds.h"
#include "transport/roce/port/management.h"
#include "transport/roce/port/packet_pool.h"
#include "transport/roce/port/packet_reader.h"
#include "transport/roce/port/peer_sockets.h"
#include "transport/roce/port/port_counters.h"

namespace nupa::roce {

/// The UDP port of this process: its sockets and its queue pairs.
class Port final : public progress::PacketSource, public progress::ForkParticipant {
 public:
  /// The port of the process in `slot`: 4791 for the first process of a host, so that standard peers reach it; others
  /// are above Linux's range of ephemeral ports (docs/design/roce.md).
  static constexpr uint16_t port_of_slot(uint32_t slot) {
    constexpr uint16_t kFirst = 61000;
    return slot == shm::kMinSlot ? kUdpPort : static_cast<uint16_t>(kFirst + slot);
  }
  static_assert(61000 + shm::kMaxSlot <= 65535);

  /// `socket`: already bound, since the port identifies the process. `source_ports`: the number of ports that packets
  /// leave from, 1 to kMaxPaths, for switches that spread flows by port. Errors: those of sockets and threads.
  static Result<std::unique_ptr<Port>> open(net::UdpSocket socket, uint32_t source_ports = 1);
  ~Port() override;
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  /// Bytes that all queue pairs of one other process may have in flight: the processes that send at present share the
  /// room of the socket.
  uint32_t receive_share() const { return windows_.receive_share(); }
  /// Returns the process at that address; all callers get the same object.
  std::shared_ptr<Peer> peer_at(const Gid& address, uint16_t port) { return windows_.peer_at(address, port); }
  /// The flow window of the responses to all READs of this process.
  const std::shared_ptr<FlowWindow>& response_window() const { return windows_.for_responses(); }
  /// A queue pair waits for a flow window.
  void note_waiter() { windows_.note_waiter(); }
  /// The socket at which packets arrive.
  const net::UdpSocket& socket() const { return sockets_[0]; }
  /// The socket of the peer that sends many small messages; null: there is none. It stays once it exists.
  PeerSocket* own() const { return peer_sockets_.shown(); }
  /// The sockets that packets leave by; the first is socket().
  const std::vector<net::UdpSocket>& sockets() const { return sockets_; }
  PacketPool& pool() { return pool_; }
  const PortCounters& counters() const { return counters_; }

  /// Starts the serving thread if it does not run yet. EAGAIN, ENOMEM: the thread cannot be created.
  Result<void> start() { return poller_.start("nupa-roce"); }
  /// Lets threads of the program take packets in place of the serving thread.
  progress::AdaptivePoller& poller() { return poller_; }
  /// Throws std::bad_alloc.
  void add(QpReceiver& queue_pair);
  /// Adds `socket`, at which packets to a further slot of this process arrive. ENOMEM, ENOSPC. Throws std::bad_alloc.
  Result<void> add_socket(net::UdpSocket socket);
  /// Removes the last added socket: the process did not get the slot.
  void drop_last_socket();
  /// When this returns, no thread of the port uses the queue pair any more. The caller must not have entered it.
  void remove(QpReceiver& queue_pair);
  /// From now on delivers datagrams to a multicast group to that queue pair, too. `interfaces`: addresses of its
  /// device, whose interfaces join the group. Returns 0, or the reason why the group cannot be joined. A queue pair is
  /// attached to a group at most once.
  int attach(uint32_t qp_num, const Gid& group, uint32_t device, const std::vector<GidEntry>& interfaces);
  void detach(uint32_t qp_num, const Gid& group);
  /// Sets the handler of datagrams to queue pair 1; null: none any more. It is called while packets are received, has
  /// to return soon, and may call only send_management(). When this returns, the former handler is not called any more.
  void set_management(MadHandler handler);
  /// `has_queue_pair` returns true if this process has a queue pair, even if it does not take packets yet. Otherwise
  /// NUPA peers that send to it are notified. Called while packets are received.
  using Presence = ExitedPeers::Presence;
  void set_presence(Presence has_queue_pair);
  /// Sends a management datagram, marked as NUPA's or not. One thread at a time, also at the end of the process.
  /// Returns false if it was not sent.
  bool send_management(const MadDatagram& datagram, bool marked);

  /// A packet was repeated: the peer's host may have reported a reason.
  void look_for_refusals() { exited_peers_.look_soon(); }
  /// Something has to be sent or timed at `deadline`: a thread looks at it by then.
  void expect(int64_t deadline) { poller_.expect(deadline); }
  /// The same for a queue pair, whose deadline() is `deadline`.
  void expect(const QpReceiver& queue_pair, int64_t deadline) {
    demultiplexer_.expect(queue_pair, deadline);
    poller_.expect(deadline);
  }
  /// The earliest expected deadline.
  int64_t wanted_at() const { return poller_.wanted_at(); }
  /// Waits until no thread is inside a deliver() or transmit() that began before.
  void barrier() { poller_.claim(); }
  /// The transmit batch of this thread's posts; null: no memory for one.
  TransmitBatch* batch();
  /// Makes receives report the hop limit and the flow label, too, for datagram queue pairs.
  void report_more();

  // Calls of the poller, under its lock.
  bool take_turn(progress::Receiver receiver) override;
  void finish_turns() override;
  void take_errors() override;
  bool streams() const override { return acks_.streams(); }
  uint64_t packets() const override { return counters_.packets.load(std::memory_order_relaxed); }

  // fork(): the child has no thread and no port; sockets that it closes stay open in the parent.
  void before_fork() override { poller_.before_fork(); }
  void in_parent() override { poller_.in_parent(); }
  bool in_child() override;
  /// Sends what is due to peers before the process ends.
  void process_ends();

 private:
  explicit Port(std::vector<net::UdpSocket> sockets);
  uint32_t receive(Hold& hold, progress::Receiver receiver);
  uint32_t receive_from(const net::UdpSocket& socket, Hold& hold, progress::Receiver receiver);
  uint32_t receive_groups(Hold& hold);
  void count_packets(uint32_t packets);
  void arrived(const Arrival& arrival, Hold& hold);
  void management_arrived(const Arrival& arrival, Hold& hold);
  void group_datagram_arrived(const MulticastGroups::Group& group, const Arrival& arrival, Hold& hold);
  /// Delivers a packet, or leaves it in the inbox.
  void bring(Hold& hold, QpReceiver& queue_pair, Packet& packet, const net::UdpSocket::Received& received, int64_t now);
  void touch(QpReceiver& queue_pair);
  void run_timers(Hold& hold, int64_t now);
  /// A deadline of the queue pair has come. Returns nothing if it was called, otherwise when it is tried again.
  std::optional<int64_t> run_timer(Hold& hold, QpReceiver& queue_pair, int64_t now);
  /// A packet arrived for an unknown queue pair: notifies the sender if the process does not have it.
  [[gnu::cold]] void absent_asked(const Arrival& arrival);
  /// Returns the transmit batch of that port of this process.
  TransmitBatch& batch_from(uint16_t port);

  const uint64_t serial_;  ///< unique among the ports of this process
  std::vector<net::UdpSocket> sockets_;
  PacketPool pool_;
  PortCounters counters_;
  progress::AdaptivePoller poller_{*this};

  PeerSockets peer_sockets_;

  Demultiplexer demultiplexer_;

  // The following are used under the poller's lock.
  PacketReader reader_;
  MulticastGroups groups_;
  FurtherPorts further_;
  MadHandler management_;
  ExitedPeers exited_peers_;
  std::unique_ptr<TransmitBatch>
      management_batch_;  ///< not a thread's, which may be destroyed already when the process ends
  AckScheduler acks_;
  int64_t receive_ns_ = 0;  ///< when something last arrived
  FlowWindows windows_;
  SendBacklog backlog_;  ///< backlog of sockets_
  std::unique_ptr<TransmitBatch> batch_;

  Holds holds_;
  std::atomic<bool> datagrams_{false};  ///< some queue pair is for datagrams
};

}  // namespace nupa::roce
