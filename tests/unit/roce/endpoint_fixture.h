// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Endpoints whose packets are recorded.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <list>
#include <optional>

#include "../core/shm_fixture.h"
#include "base/clock.h"
#include "engine_fixture.h"
#include "transport/roce/datagram_endpoint.h"
#include "transport/roce/endpoint.h"

namespace nupa::roce::test {

constexpr uint32_t kOwnQpn = shm::number_of(1, 5);
constexpr uint32_t kPeerSlot = 2;
constexpr uint32_t kNupaPeerQpn = shm::number_of(kPeerSlot, 7);
constexpr uint16_t kPeerPort = Port::port_of_slot(kPeerSlot);
constexpr uint32_t kQkey = 0x11223344;

using shm::PortCount;

inline Gid host_gid(uint8_t host) { return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, host}}; }

/// A port with its socket, and what a queue pair shows to others.
class RoceEnd : public ::testing::Test {
 protected:
  RoceEnd() {
    auto socket = net::UdpSocket::open(0, 1 << 18);
    EXPECT_TRUE(socket);
    auto opened = Port::open(std::move(*socket));
    EXPECT_TRUE(opened);
    port = std::move(*opened);
    set_state(QpState::kRts);
    shared->qkey.store(kQkey);
    end.context = &host;
    host.identity().shared = shared.get();
    host.identity().statistics = block.get();
    host.identity().number = kOwnQpn;
    host.identity().cap = {16, 16, 2, 2, 64};
    end.max_datagram = 1024;
    from.from = {host_gid(2), kPeerPort, 0};
    from.to = host_gid(1);
    host.receives.assign(8, 2048);
  }
  void set_state(QpState state) { shared->state.store(shm::pack_state(1, state)); }
  Packet packet(uint8_t opcode, uint32_t psn, uint32_t bytes = 8) {
    // Each packet keeps its payload, also when it is delivered after later ones were made.
    const std::vector<std::byte>& payload = payloads.emplace_back(pattern_bytes(bytes));
    Packet made;
    made.opcode = opcode;
    made.mark = kNupaMark;
    made.dest_qpn = kOwnQpn;
    made.psn = psn & kPsnMask;
    made.qkey = kQkey;
    made.source_qpn = 0x777;
    made.ack_request = true;
    made.payload = payload.data();
    made.payload_length = bytes;
    return made;
  }

  std::unique_ptr<Port> port;
  RecordingHost host;
  std::unique_ptr<shm::QpShared> shared = std::make_unique<shm::QpShared>();
  std::unique_ptr<shm::StatisticsShared> block = std::make_unique<shm::StatisticsShared>();
  shm::PortCountsShared& counts = block->port;
  const Statistics* const wire = reinterpret_cast<const Statistics*>(block->bytes);
  LocalEnd end;
  net::UdpSocket::Received from;
  std::list<std::vector<std::byte>> payloads;
};

class RoceConnected : public RoceEnd {
 protected:
  void connect(bool standard = false, uint32_t peer_qpn = kNupaPeerQpn, std::vector<Rail> rails = {}) {
    end.rails = rails.empty() ? std::vector<Rail>{{host_gid(1), 0, 50'000, 0}} : std::move(rails);
    QpAttr attr;
    attr.dest_qp_num = peer_qpn;
    attr.rq_psn = kFirstPsn;
    attr.path_mtu = path_mtu;
    attr.max_dest_rd_atomic = 4;
    attr.timeout = 8;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 4;
    settings.standard = standard;
    endpoint.emplace(*port, end, attr, host_gid(2), settings);
    endpoint->set_attributes(attr);
    started = false;
  }
  ~RoceConnected() override {
    if (endpoint) endpoint->withdraw();
  }
  void deliver(Packet made) { endpoint->deliver(made, from, base::now_ns()); }
  Packet send_of(uint32_t psn) { return packet(opcode_of(Service::kRc, Operation::kSendOnly), psn); }
  void transmit() { endpoint->transmit(base::now_ns(), *port->batch(), true); }
  void start() {
    endpoint->start(kFirstPsn);
    started = true;
  }
  /// Shown once the queue pair sends.
  uint16_t destination_port(uint32_t path = 0) {
    if (!started) start();
    transmit();
    return static_cast<uint16_t>(wire->path[path].ports.load());
  }
  void post() {
    const Sge sge{kBase, 8, kKey};
    SendWr wr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    endpoint->post({wr, nullptr, nullptr, 0, 8, 0, WcStatus::kSuccess});
  }
  /// The handshake of a peer with these rails.
  Packet handshake(const std::vector<Rail>& rails, bool takes_unchecked = false) {
    Handshake theirs(rails, takes_unchecked);
    theirs.start();
    theirs.transmit(0, packet(kHandshake, 0, 0), sent_handshake);
    Packet made = sent_handshake.packets.at(0).packet;
    const auto& payload = payloads.emplace_back(sent_handshake.packets.at(0).payload);
    sent_handshake.packets.clear();
    made.payload = payload.data();
    return made;
  }

  WireSettings settings;
  Mtu path_mtu = Mtu::k256;
  std::optional<ConnectedEndpoint> endpoint;
  bool started = false;
  RecordingOutput sent_handshake;
};

}  // namespace nupa::roce::test
