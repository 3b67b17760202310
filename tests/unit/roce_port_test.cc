/// What a port brings to its queue pairs of what a burst sends, by a real socket.
#ifndef NUPA_TEST_DROPIN
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/memory_fault.h"
#include "transport/roce/port.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kNumber = 0x1105;

/// Writes down what comes.
class Recorder final : public Channel {
 public:
  uint32_t number() const override { return kNumber; }
  bool enter() override { return true; }
  void leave() override {}
  void deliver(Packet& packet, const io::UdpSocket::Received&, int64_t) override {
    const std::string payload(reinterpret_cast<const char*>(packet.payload), packet.payload_length);
    came.push_back(packet.opcode == kSelectiveAck ? "acknowledgement " + std::to_string(packet.psn) : payload);
  }
  void transmit(int64_t, Burst&, bool) override {}
  bool owes_answers() const override { return false; }
  void on_timer(int64_t) override {}
  void count_stranger() override { came.push_back("stranger"); }
  void take_turn(SharedWindow&, int64_t, Burst&) override {}
  void leave_lines() override {}
  Peer* peer() override { return nullptr; }
  int64_t deadline() const override { return INT64_MAX; }
  std::vector<std::string> came;
};

class RocePort : public ::testing::Test {
 protected:
  void SetUp() override {
    auto socket = io::UdpSocket::open(0, 1 << 18);
    ASSERT_TRUE(socket) << socket.error().what;
    auto opened = Port::open(std::move(*socket));
    ASSERT_TRUE(opened) << opened.error().what;
    port = std::move(*opened);
    port->add(recorder);
    const Gid loopback{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};
    destination.place = kNumber;
    destination.to.address = loopback;
    destination.to.port = port->socket().port();
    destination.from = loopback;
    burst = std::make_unique<Burst>(port->sockets());
    burst->aim(&destination);
  }
  void TearDown() override { port->remove(recorder); }

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
    return burst->send(0, request, &fragment, 1);
  }
  Sent acknowledge(uint32_t psn) { return burst->send(0, packet(kSelectiveAck, psn), nullptr, 0); }

  /// What has come when there are `count`, or after a time that only a test that fails takes.
  const std::vector<std::string>& receive(size_t count) {
    const int64_t end = base::now_ns() + 10'000'000'000;
    while (recorder.came.size() < count && base::now_ns() < end) port->poll();
    return recorder.came;
  }

  std::unique_ptr<Port> port;
  Recorder recorder;
  Destination destination;
  std::unique_ptr<Burst> burst;
};

using Came = std::vector<std::string>;

TEST_F(RocePort, AnAcknowledgementThatCameAlongIsToldBeforeItsPacket) {
  EXPECT_EQ(acknowledge(7), Sent::kYes);
  EXPECT_EQ(send("answer", 6), Sent::kYes);
  burst->flush();
  EXPECT_EQ(receive(2), (Came{"acknowledgement 7", "answer"}));
  EXPECT_EQ(port->counters().packets, 1u) << "both are one packet";
}

TEST_F(RocePort, BeforeALargePacketItLeavesByItself) {
  const std::string large(1024, 'x');
  EXPECT_EQ(acknowledge(8), Sent::kYes);
  EXPECT_EQ(send(large.data(), 1024), Sent::kYes);
  burst->flush();
  EXPECT_EQ(receive(2), (Came{"acknowledgement 8", large}));
  EXPECT_EQ(port->counters().packets, 2u);
}

TEST_F(RocePort, WhatCannotBeReadIsNotSentAndKeepsNothingElseBack) {
  ASSERT_EQ(base::watch_memory_faults(), 0);
  for (const uint32_t length : {64u, 1024u}) {
    recorder.came.clear();
    void* const gone = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(gone, MAP_FAILED);
    EXPECT_EQ(send("before", 6), Sent::kYes);
    EXPECT_EQ(acknowledge(9), Sent::kYes);
    EXPECT_EQ(send(gone, length), Sent::kUnreadable);
    EXPECT_EQ(send("behind", 6), Sent::kYes);
    burst->flush();
    EXPECT_EQ(receive(3), (Came{"before", "acknowledgement 9", "behind"}));
    munmap(gone, 4096);
  }
}

}  // namespace
}  // namespace nupa::roce
#endif
