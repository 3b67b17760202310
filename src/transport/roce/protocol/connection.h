// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "transport/roce/protocol/requester.h"
#include "transport/roce/protocol/responder.h"

namespace nupa::roce {

/// One RC, UC or XRC queue pair: its requester and responder, and the rule that assigns packets to them.
class Connection {
 public:
  Connection(Host& host, const RequesterOptions& requester, const ResponderOptions& responder, PacketMemory& pool)
      : requester_(host, requester), responder_(host, responder, pool) {}

  Requester& requester() { return requester_; }
  Responder& responder() { return responder_; }

  void receive(const Packet& packet, bool congested, int64_t now) {
    if (is_for_requester(packet.opcode))
      requester_.receive(packet, now);
    else
      responder_.receive(packet, congested, now);
  }
  /// Sends answers first, since the peer waits for them. Returns true if there is more to send at once.
  bool transmit(int64_t now, Output& output, uint32_t budget) {
    const bool answers = responder_.transmit(now, output, budget);
    return requester_.transmit(now, output, budget) || answers;
  }
  int64_t deadline() const { return requester_.deadline(); }
  void on_timer(int64_t now) { requester_.on_timer(now); }

 private:
  Requester requester_;
  Responder responder_;
};

}  // namespace nupa::roce
