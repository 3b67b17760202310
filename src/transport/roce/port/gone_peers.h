// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "net/udp_socket.h"
#include "transport/roce/port/demultiplexer.h"
#include "transport/roce/port/holds.h"
#include "transport/roce/port/peer_sockets.h"

namespace nupa::roce {

/// Peers that are gone, as their hosts and the processes that have their ports now say, and what this process says of
/// queue pairs that it does not have. Under the lock of the port's turns.
class GonePeers {
 public:
  /// Whether this process has a queue pair, which may not take packets yet.
  using Presence = std::function<bool(uint32_t number)>;

  /// `channels`: that such news may concern.
  explicit GonePeers(const Demultiplexer& channels) : channels_(channels) {}

  /// A packet was repeated: perhaps the peer's host has said why nobody answers.
  void look_soon() { wants_look_ = true; }
  /// Whether that was said since the last time.
  bool wants_look() { return std::exchange(wants_look_, false); }
  /// Tells the channels of the processes whose hosts say that they are gone.
  void take_refusals(Hold& hold, const std::vector<net::UdpSocket>& sockets, PeerSockets& peer_sockets);
  /// A process says that it does not have a queue pair.
  [[gnu::cold]] void absence_came(Hold& hold, const Packet& packet, const net::UdpSocket::Received& received);

  void set_presence(Presence has_queue_pair) { has_queue_pair_ = std::move(has_queue_pair); }
  /// Whether a sender may be told at this time that this process does not have a queue pair.
  bool may_tell(int64_t now) const { return has_queue_pair_ && now >= next_absence_ns_; }
  /// `asked`, a packet for a queue pair that no channel has, came when may_tell(): its sender is told by `burst` if it
  /// wants an answer and the process does not have that queue pair.
  [[gnu::cold]] void tell(const Packet& asked, const net::UdpSocket::Received& received, Burst& burst, int64_t now);

 private:
  void refused(Hold& hold, const net::UdpSocket::Refusal& refusal);
  /// Calls `visit(channel)` with those that may lead there, held, until it returns false.
  template <class Visit>
  void each_to(Hold& hold, const net::UdpAddress& to, Visit&& visit);

  const Demultiplexer& channels_;
  Presence has_queue_pair_;
  int64_t next_absence_ns_ = 0;
  bool wants_look_ = false;
};

}  // namespace nupa::roce
