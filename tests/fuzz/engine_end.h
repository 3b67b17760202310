// SPDX-License-Identifier: Apache-2.0
#pragma once
/// For engine_target.cc: one end of a connection on a guarded host, and its outgoing packets.
#include <deque>
#include <memory>

#include "guarded_host.h"
#include "transport/roce/port/packet_pool.h"
#include "transport/roce/protocol/connection.h"

namespace nupa::fuzz {

/// A packet on its way: exactly its bytes, so that a read beyond is seen, without a CRC that says anything.
using Wire = std::vector<std::byte>;

inline Wire wire_of(const roce::Packet& packet, const std::byte* payload) {
  Wire bytes(roce::kMaxHeaderBytes);
  bytes.resize(roce::encode(packet, bytes.data()));
  if (packet.payload_length > 0) bytes.insert(bytes.end(), payload, payload + packet.payload_length);
  bytes.resize(bytes.size() + roce::pad_of(packet.payload_length) + roce::kIcrcBytes);
  return bytes;
}

struct EngineOptions {
  roce::RequesterOptions requester;
  roce::ResponderOptions responder;
};

class EngineEnd final : public roce::Output {
 public:
  static constexpr size_t kMostUnderWay = 96;  ///< what is more is lost
  static constexpr uint32_t kBudget = 64;

  EngineEnd(const EngineOptions& options, roce::PacketPool& pool)
      : options_(options),
        connection_(std::make_unique<roce::Connection>(host, options.requester, options.responder, pool)) {}

  roce::Sent send(uint8_t, const roce::Packet& packet, const roce::Fragment* payload, uint32_t fragments) override {
    std::vector<std::byte> bytes;
    for (uint32_t i = 0; i < fragments; ++i) {
      if (payload[i].data == nullptr)
        bytes.resize(bytes.size() + payload[i].length);
      else
        bytes.insert(bytes.end(), payload[i].data, payload[i].data + payload[i].length);
    }
    require(bytes.size() == packet.payload_length, "a packet carries what its headers say");
    require(packet.payload_length <= options_.requester.mtu, "no packet is longer than the path's MTU");
    require(roce::traits_of(packet.opcode) != 0, "every packet has an opcode that exists");
    require(packet.dest_qpn == options_.requester.dest_qpn, "every packet is for the peer");
    ++sent_;
    if (blocked) return roce::Sent::kNotNow;
    under_way.push_back(wire_of(packet, bytes.data()));
    if (under_way.size() > kMostUnderWay) under_way.pop_front();
    last = under_way.back();
    return roce::Sent::kYes;
  }

  /// What the core does when a request failed or was refused.
  void settle() {
    if (!host.failed || stopped) return;
    connection_->responder().stop();
    connection_->requester().flush();
    stopped = true;
    require(host.completed == host.requests && !host.holds_receive(), "an ended queue pair keeps nothing");
  }
  void transmit(int64_t now) {
    if (stopped) return;  // the core sends the refusal, then no more
    for (int rounds = 0;; ++rounds) {
      sent_ = 0;
      const bool more = connection_->transmit(now, *this, kBudget);
      require(sent_ <= 2 * kBudget + 2, "a budget is kept");
      if (!more || blocked) break;
      require(rounds < 1000, "sending comes to an end");
    }
    settle();
  }
  void deliver(const Wire& bytes, bool congested, int64_t now) {
    roce::Packet packet;
    if (stopped || !roce::decode(bytes.data(), static_cast<uint32_t>(bytes.size()), &packet)) return;
    const roce::Service service = roce::service_of(packet.opcode);
    const bool strange = packet.opcode != roce::kCnpOpcode && packet.opcode != roce::kSelectiveAck &&
                         service != options_.requester.service;
    const uint64_t before = strange ? fingerprint() : 0;
    connection_->receive(packet, congested && !strange, now);
    if (strange) require(fingerprint() == before, "a packet of another service changes nothing");
    settle();
  }
  void on_timer(int64_t now) {
    if (stopped) return;
    connection_->on_timer(now);
    settle();
  }
  int64_t deadline() const { return stopped ? INT64_MAX : connection_->deadline(); }
  bool idle() const { return connection_->requester().idle(); }
  roce::Connection& connection() { return *connection_; }
  const EngineOptions& options() const { return options_; }
  void destroy() {
    if (!stopped) {
      connection_->responder().stop();
      connection_->requester().flush();
    }
    connection_.reset();
  }

  GuardedHost host;
  std::deque<Wire> under_way;
  Wire last;  ///< what forged packets look like
  bool stopped = false;
  bool blocked = false;  ///< the socket takes nothing

 private:
  uint64_t fingerprint() const {
    const roce::Requester& requester = connection_->requester();
    const roce::Path& path = requester.paths()[0];
    uint64_t hash = host.fingerprint();
    for (const uint64_t value :
         {uint64_t{requester.next_psn()}, uint64_t{requester.idle()}, uint64_t{requester.selective()}, path.in_flight,
          path.congestion->window(), static_cast<uint64_t>(path.round_trip.smoothed()),
          static_cast<uint64_t>(connection_->deadline()), requester.counters().notifications,
          requester.counters().rnr_naks, connection_->responder().counters().packets,
          connection_->responder().counters().duplicates, connection_->responder().counters().early,
          uint64_t{connection_->responder().has_output()}})
      hash = (hash ^ value) * 1099511628211u;
    return hash;
  }

  const EngineOptions options_;
  std::unique_ptr<roce::Connection> connection_;
  uint64_t sent_ = 0;
};

}  // namespace nupa::fuzz
