// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The UDP port of a process: packets go to the queue pairs that they are for and leave in bursts, by the thread that
/// polls or else by nupa-roce (progress/adaptive_poller.h). Port puts together the classes of this folder; the
/// endpoints of roce use those named here: Channel (channel.h) is what the port delivers to. Any thread calls a Port; a
/// class of the folder says under which lock it is.
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
#include "transport/roce/port/channel.h"
#include "transport/roce/port/demultiplexer.h"
#include "transport/roce/port/flow_windows.h"
#include "transport/roce/port/further_ports.h"
#include "transport/roce/port/gone_peers.h"
#include "transport/roce/port/groups.h"
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
  /// The port of the process in `slot`: 4791 for the first one of a host, so that standard peers reach it, else one
  /// above Linux' range of ephemeral ports (docs/roce.md).
  static constexpr uint16_t port_of_slot(uint32_t slot) {
    constexpr uint16_t kFirst = 61000;
    return slot == shm::kMinSlot ? kUdpPort : static_cast<uint16_t>(kFirst + slot);
  }
  static_assert(61000 + shm::kMaxSlot <= 65535);

  /// `socket`: bound already, since the port names the process. `source_ports`: from so many ports packets leave, 1 to
  /// kMaxPaths, for switches that spread flows by them. Errors: those of sockets and threads.
  static Result<std::unique_ptr<Port>> open(net::UdpSocket socket, uint32_t source_ports = 1);
  ~Port() override;
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  /// Bytes that all queue pairs of one other process may have under way: what the socket holds is for all processes
  /// that send at present.
  uint32_t receive_share() const { return windows_.receive_share(); }
  /// The process at that address; the same for all who ask.
  std::shared_ptr<Peer> peer_at(const Gid& address, uint16_t port) { return windows_.peer_at(address, port); }
  /// The room for the responses to all READs of this process.
  const std::shared_ptr<SharedWindow>& response_window() const { return windows_.for_responses(); }
  /// Somebody waits in the line of a window.
  void note_waiter() { windows_.note_waiter(); }
  /// Where packets arrive.
  const net::UdpSocket& socket() const { return sockets_[0]; }
  /// For the process that small messages come from; null: none has one. Stays once it is there.
  PeerSocket* own() const { return peer_sockets_.shown(); }
  /// By which they leave; the first is socket().
  const std::vector<net::UdpSocket>& sockets() const { return sockets_; }
  PacketPool& pool() { return pool_; }
  const PortCounters& counters() const { return counters_; }

  /// Starts the port's thread if it does not run yet. EAGAIN, ENOMEM: there can be no thread.
  Result<void> start() { return poller_.start("nupa-roce"); }
  /// Has threads of the program take packets in place of the port's.
  progress::AdaptivePoller& poller() { return poller_; }
  /// Throws std::bad_alloc.
  void add(Channel& channel);
  /// Packets to a further slot of this process arrive at `socket`. ENOMEM, ENOSPC. Throws std::bad_alloc.
  Result<void> add_socket(net::UdpSocket socket);
  /// The socket that was added last is not needed: the process did not get the slot.
  void drop_last_socket();
  /// After this returns no thread of the port touches the channel. Not to be called with the channel entered.
  void remove(Channel& channel);
  /// Datagrams to a multicast group go to the channel of that number too, by the interfaces of the addresses, which are
  /// its device's. 0, or why the group cannot be joined. A channel is attached to a group once.
  int attach(uint32_t qp_num, const Gid& group, uint32_t device, const std::vector<GidEntry>& interfaces);
  void detach(uint32_t qp_num, const Gid& group);
  /// Who gets the datagrams to queue pair 1; null: nobody any more. Called while packets are received: soon back, and
  /// without a call of the port but send_management(). After this returns the one before is not called.
  void set_management(MadHandler handler);
  /// Whether this process has a queue pair, which may not take packets yet. NUPA peers that ask for others are told so.
  /// Called while packets are received.
  using Presence = GonePeers::Presence;
  void set_presence(Presence has_queue_pair);
  /// Sends one, marked as NUPA's or not. One thread at a time, which may be at its very end. False: not now.
  bool send_management(const MadDatagram& datagram, bool marked);

  /// A packet was repeated: perhaps the peer's host has said why nobody answers.
  void look_for_refusals() { gone_.look_soon(); }
  /// Something is to be sent or timed at `deadline`: the port's thread looks at it by then.
  void expect(int64_t deadline) { poller_.expect(deadline); }
  /// The same of a channel, whose deadline() is that.
  void expect(const Channel& channel, int64_t deadline) {
    demultiplexer_.expect(channel, deadline);
    poller_.expect(deadline);
  }
  /// The earliest of what is expected.
  int64_t wanted_at() const { return poller_.wanted_at(); }
  /// Waits until no thread is inside deliver() or transmit() that was before.
  void barrier() { poller_.claim(); }
  /// For this thread's posts; null: no memory for one.
  Burst* burst();
  /// Receives bring what datagrams tell of: hop limits and flow labels.
  void tell_more();

  // The poller: under its lock.
  bool take_turn(progress::Receiver receiver) override;
  void finish_turns() override;
  void take_errors() override;
  bool streams() const override { return acks_.streams(); }
  uint64_t packets() const override { return counters_.packets.load(std::memory_order_relaxed); }

  // fork(): the child has no thread and no port; what it closes stays open in the parent.
  void before_fork() override { poller_.before_fork(); }
  void in_parent() override { poller_.in_parent(); }
  bool in_child() override;
  /// What is owed to others is sent while there is somebody to do it.
  void process_ends();

 private:
  explicit Port(std::vector<net::UdpSocket> sockets);
  uint32_t receive(Hold& hold, progress::Receiver receiver);
  uint32_t receive_from(const net::UdpSocket& socket, Hold& hold, progress::Receiver receiver);
  uint32_t receive_groups(Hold& hold);
  void count_packets(uint32_t packets);
  void arrived(const Arrival& arrival, Hold& hold);
  void management_arrived(const Arrival& arrival, Hold& hold);
  void group_datagram_arrived(const Groups::Group& group, const Arrival& arrival, Hold& hold);
  /// Brings a packet, or leaves it in the inbox.
  void bring(Hold& hold, Channel& channel, Packet& packet, const net::UdpSocket::Received& received, int64_t now);
  void touch(Channel& channel);
  void run_timers(Hold& hold, int64_t now);
  /// A deadline of the channel has come. Nothing: it was called; else when it is tried again.
  std::optional<int64_t> run_timer(Hold& hold, Channel& channel, int64_t now);
  /// A packet came for a queue pair that no channel has: its sender is told if the process does not have it.
  [[gnu::cold]] void absent_asked(const Arrival& arrival);
  /// What leaves from that port of this process.
  Burst& burst_from(uint16_t port);

  const uint64_t serial_;  ///< no other port of this process had it
  std::vector<net::UdpSocket> sockets_;
  PacketPool pool_;
  PortCounters counters_;
  progress::AdaptivePoller poller_{*this};

  PeerSockets peer_sockets_;

  Demultiplexer demultiplexer_;

  // Under the poller's lock.
  PacketReader reader_;
  Groups groups_;
  FurtherPorts further_;
  MadHandler management_;
  GonePeers gone_;
  std::unique_ptr<Burst> management_burst_;  ///< not the thread's: that may be gone when the process ends
  AckScheduler acks_;
  int64_t receive_ns_ = 0;  ///< when something came last
  FlowWindows windows_;
  SendBacklog backlog_;  ///< of sockets_
  std::unique_ptr<Burst> burst_;

  Holds holds_;
  std::atomic<bool> datagrams_{false};  ///< some queue pair is for them
};

}  // namespace nupa::roce
