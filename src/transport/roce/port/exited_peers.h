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

/// Handles peers that have exited, as reported by their hosts and by the processes that use their ports now. Also
/// reports queue pairs that this process does not have. Under the poller's lock.
class ExitedPeers {
 public:
  /// Returns true if this process has a queue pair, even if it does not take packets yet.
  using Presence = std::function<bool(uint32_t number)>;

  /// `queue_pairs`: the queue pairs that such reports may concern.
  explicit ExitedPeers(const Demultiplexer& queue_pairs) : queue_pairs_(queue_pairs) {}

  /// A packet was repeated: the peer's host may have reported a reason.
  void look_soon() { wants_look_ = true; }
  /// True if look_soon() was called since the last call.
  bool wants_look() { return std::exchange(wants_look_, false); }
  /// Reads the reports of closed ports and notifies the queue pairs that send to those processes.
  void take_refusals(Hold& hold, const std::vector<net::UdpSocket>& sockets, PeerSockets& peer_sockets);
  /// Another process reports that it does not have a queue pair.
  [[gnu::cold]] void absence_came(Hold& hold, const Packet& packet, const net::UdpSocket::Received& received);

  void set_presence(Presence has_queue_pair) { has_queue_pair_ = std::move(has_queue_pair); }
  /// True if a sender may be notified now that this process does not have a queue pair.
  bool may_notify(int64_t now) const { return has_queue_pair_ && now >= next_absence_ns_; }
  /// The packet `asked` is for an unknown queue pair, and may_notify() was true. Notifies its sender by `batch` if the
  /// sender expects an answer and the process does not have that queue pair.
  [[gnu::cold]] void notify(const Packet& asked, const net::UdpSocket::Received& received, TransmitBatch& batch,
                            int64_t now);

 private:
  void refused(Hold& hold, const net::UdpSocket::Refusal& refusal);
  /// Enters each queue pair that may send to that address and calls `visit(queue_pair)` until it returns false.
  template <class Visit>
  void each_to(Hold& hold, const net::UdpAddress& to, Visit&& visit);

  const Demultiplexer& queue_pairs_;
  Presence has_queue_pair_;
  int64_t next_absence_ns_ = 0;
  bool wants_look_ = false;
};

}  // namespace nupa::roce
