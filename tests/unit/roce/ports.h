// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A port, and a queue pair that records what is delivered to it.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {

constexpr uint32_t kNumber = 0x1105;

/// Records what is delivered.
class Recorder final : public QpReceiver {
 public:
  uint32_t number() const override { return kNumber; }
  bool enter() override { return !busy; }
  void leave() override {}
  void deliver(Packet& packet, const net::UdpSocket::Received& from, int64_t) override {
    hop_limit = from.hop_limit;
    from_port = from.from.port;
    const std::string payload(reinterpret_cast<const char*>(packet.payload), packet.payload_length);
    came.push_back(packet.opcode == kSelectiveAck ? "acknowledgement " + std::to_string(packet.psn) : payload);
  }
  void transmit(int64_t, TransmitBatch&, bool) override {}
  bool owes_answers() const override { return false; }
  void on_timer(int64_t) override {}
  void count_unexpected() override { came.push_back("unexpected"); }
  void take_turn(FlowWindow&, int64_t, TransmitBatch&) override {}
  void leave_wait_queues() override {}
  Peer* peer() override { return nullptr; }
  int64_t deadline() const override { return INT64_MAX; }
  bool takes_unchecked() const override { return unchecked; }
  bool may_lead_to(const net::UdpAddress& to) const override { return to.port == sends_to; }
  bool is_under_way(const net::UdpAddress& to, const std::optional<PacketName>& packet) const override {
    return to.port == sends_to && packet && packet->dest_qpn == sends_number && packet->psn == 1;
  }
  void doubt_peer(const net::UdpAddress& to) override {
    doubted.push_back(to);
    ++notifications;
  }
  std::vector<net::UdpAddress> doubted;
  std::atomic<int> notifications{0};  ///< how many times, for other threads than the port's
  uint16_t sends_to = 0;
  uint32_t sends_number = kNumber;
  std::vector<std::string> came;
  uint8_t hop_limit = 0;   ///< of the last packet
  uint16_t from_port = 0;  ///< the same
  bool busy = false;
  bool unchecked = false;
};

class RocePort : public ::testing::Test {
 protected:
  void SetUp() override {
    auto socket = net::UdpSocket::open(0, 1 << 18);
    ASSERT_TRUE(socket) << socket.error().what();
    auto opened = Port::open(std::move(*socket));
    ASSERT_TRUE(opened) << opened.error().what();
    port = std::move(*opened);
    port->add(recorder);
    const Gid loopback{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};
    destination.place = kNumber;
    destination.to.address = loopback;
    destination.to.port = port->socket().port();
    destination.from = loopback;
    batch = std::make_unique<TransmitBatch>(port->sockets());
    batch->aim(&destination);
  }
  void TearDown() override {
    if (port != nullptr) port->remove(recorder);
  }

  Packet packet(uint8_t opcode, uint32_t psn) {
    Packet made;
    made.opcode = opcode;
    made.mark = kNupaMark;
    made.dest_qpn = kNumber;
    made.psn = psn;
    return made;
  }
  Sent send(const void* data, uint32_t length) {
    Packet request = packet(opcode_of(Service::kRc, Operation::kSendOnly), 1);
    request.payload_length = length;
    const Fragment fragment{static_cast<const std::byte*>(data), length};
    return batch->send(0, request, &fragment, 1);
  }
  Sent acknowledge(uint32_t psn) { return batch->send(0, packet(kSelectiveAck, psn), nullptr, 0); }

  /// What has come when there are `count`, or after a time that only a test that fails takes.
  const std::vector<std::string>& receive(size_t count) {
    const int64_t end = base::now_ns() + 10'000'000'000;
    while (recorder.came.size() < count && base::now_ns() < end) port->poller().poll();
    return recorder.came;
  }
  /// One message after the other from one process, to a thread that polls: that process gets a socket.
  void open_peers_socket() {
    constexpr size_t kMoreThanEnough = 2000;
    for (size_t sent = 1; port->own() == nullptr && sent <= kMoreThanEnough; ++sent) {
      ASSERT_EQ(send("ping", 4), Sent::kYes);
      batch->flush();
      ASSERT_EQ(receive(sent).size(), sent);
    }
    ASSERT_NE(port->own(), nullptr);
  }

  std::unique_ptr<Port> port;
  Recorder recorder;
  Destination destination;
  std::unique_ptr<TransmitBatch> batch;
};

constexpr uint8_t kSendOnly = opcode_of(Service::kRc, Operation::kSendOnly);

}  // namespace nupa::roce
