// SPDX-License-Identifier: Apache-2.0
/// Tests of packets that a port receives: malformed, damaged, for no queue pair, for groups.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/crc32.h"
#include "core/seam/group_address.h"
#include "ports.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {
namespace {

using Came = std::vector<std::string>;
using Counts = std::vector<uint64_t>;

/// Sends raw bytes to the port from another socket.
class RocePortFromOutside : public RocePort {
 protected:
  void SetUp() override {
    RocePort::SetUp();
    auto opened = net::UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(opened);
    outside.emplace(std::move(*opened));
  }
  /// A packet with a right CRC.
  std::vector<std::byte> bytes_of(uint8_t opcode, uint32_t number, const std::string& payload = "payload!") {
    Packet made = packet(opcode, 1);
    made.dest_qpn = number;
    made.source_qpn = number;
    made.qkey = kManagementQkey;
    made.payload_length = static_cast<uint32_t>(payload.size());
    std::vector<std::byte> bytes(kMaxHeaderBytes);
    bytes.resize(encode(made, bytes.data()));
    for (const char each : payload) bytes.push_back(static_cast<std::byte>(each));
    bytes.resize(bytes.size() + pad_of(made.payload_length) + kIcrcBytes);
    seal(bytes);
    return bytes;
  }
  void seal(std::vector<std::byte>& bytes) {
    const Route route{destination.from, destination.to.address, outside->port(), port->socket().port()};
    const auto length = static_cast<uint32_t>(bytes.size());
    uint32_t state = icrc_of_headers(route, 0, length, bytes.data(), kBthBytes);
    state = base::crc32(state, bytes.data() + kBthBytes, length - kBthBytes - kIcrcBytes);
    store_icrc(icrc_of_state(state), bytes.data() + length - kIcrcBytes);
  }
  void send_raw(const std::vector<std::byte>& bytes) {
    net::UdpBatch packets;
    packets.begin(1, destination.to, destination.from, 0, {}, static_cast<uint32_t>(bytes.size()));
    packets.add(bytes.data(), static_cast<uint32_t>(bytes.size()));
    int error = 0;
    ASSERT_EQ(packets.flush(*outside, &error), 0u) << strerror(error);
  }
  /// The port has handled this and all before it.
  void expect_handled(uint64_t packets) {
    const int64_t end = base::now_ns() + 10'000'000'000;
    while (port->counters().packets < packets && base::now_ns() < end) port->poller().poll();
    ASSERT_EQ(port->counters().packets, packets);
  }
  /// malformed, wrong CRC, no queue pair, busy
  std::vector<uint64_t> counts() const {
    const PortCounters& counters = port->counters();
    return {counters.malformed, counters.wrong_crc, counters.no_queue_pair, counters.busy};
  }

  std::optional<net::UdpSocket> outside;
};

constexpr uint8_t kDatagram = opcode_of(Service::kUd, Operation::kSendOnly);

TEST_F(RocePortFromOutside, ValidPacket_IsDeliveredAndCounted) {
  send_raw(bytes_of(kSendOnly, kNumber));
  expect_handled(1);
  EXPECT_EQ(recorder.came, (Came{"payload!"}));
  EXPECT_EQ(counts(), (Counts{0, 0, 0, 0}));
}

TEST_F(RocePortFromOutside, PacketOfAnInvalidLength_IsMalformed) {
  std::vector<std::byte> bytes = bytes_of(kSendOnly, kNumber, "");
  ASSERT_EQ(bytes.size(), kShortestPacket);
  bytes.resize(kShortestPacket - 1);
  send_raw(bytes);
  send_raw({std::byte{1}});
  bytes = bytes_of(kSendOnly, kNumber, std::string(kMaxPacketBytes - kBthBytes - kIcrcBytes + 4, 'x'));
  ASSERT_EQ(bytes.size(), kMaxPacketBytes + 4);
  send_raw(bytes);
  expect_handled(3);
  EXPECT_EQ(counts(), (Counts{3, 0, 0, 0}));
  EXPECT_TRUE(recorder.came.empty()) << "not even as unexpected packets: their queue pair is not known";
}

TEST_F(RocePortFromOutside, DamagedPacket_IsCountedAsWrongCrcAndUnexpected) {
  std::vector<std::byte> bytes = bytes_of(kSendOnly, kNumber);
  bytes[kBthBytes] ^= std::byte{0x10};
  send_raw(bytes);
  bytes = bytes_of(kSendOnly, kNumber);
  bytes[11] ^= std::byte{1};  // its PSN
  send_raw(bytes);
  bytes = bytes_of(kSendOnly, kNumber);
  store_icrc(0, bytes.data() + bytes.size() - kIcrcBytes);
  send_raw(bytes);
  expect_handled(3);
  EXPECT_EQ(counts(), (Counts{0, 3, 0, 0}));
  EXPECT_EQ(recorder.came, (Came{"unexpected", "unexpected", "unexpected"}));
}

TEST_F(RocePortFromOutside, PacketWithoutCrc_IsTakenOnlyByAQueuePairWithoutCrc) {
  recorder.unchecked = true;
  std::vector<std::byte> bytes = bytes_of(kSendOnly, kNumber);
  store_icrc(0, bytes.data() + bytes.size() - kIcrcBytes);
  send_raw(bytes);
  store_icrc(0x12345678, bytes.data() + bytes.size() - kIcrcBytes);
  send_raw(bytes);
  expect_handled(2);
  EXPECT_EQ(recorder.came, (Came{"payload!", "unexpected"})) << "one that has a CRC has a right one";
  EXPECT_EQ(counts(), (Counts{0, 1, 0, 0}));
}

TEST_F(RocePortFromOutside, PacketWithAnUnknownOpcode_IsMalformedAndUnexpected) {
  std::vector<std::byte> bytes = bytes_of(kSendOnly, kNumber);
  bytes[0] = std::byte{0x1f};
  seal(bytes);
  send_raw(bytes);
  expect_handled(1);
  EXPECT_EQ(counts(), (Counts{1, 0, 0, 0}));
  EXPECT_EQ(recorder.came, (Came{"unexpected"}));
}

TEST_F(RocePortFromOutside, PacketForNoQueuePair_IsCounted) {
  send_raw(bytes_of(kSendOnly, kNumber + 1));
  send_raw(bytes_of(kSendOnly, kNumber + shm::kSlotQp));  // the same place of another process
  send_raw(bytes_of(kSendOnly, 0));
  send_raw(bytes_of(kDatagram, kManagementQpn));
  expect_handled(4);
  EXPECT_EQ(counts(), (Counts{0, 0, 4, 0}));
  EXPECT_TRUE(recorder.came.empty());
  port->remove(recorder);
  send_raw(bytes_of(kSendOnly, kNumber));
  expect_handled(5);
  EXPECT_EQ(counts(), (Counts{0, 0, 5, 0}));
  EXPECT_TRUE(recorder.came.empty());
}

TEST_F(RocePortFromOutside, PacketForABusyQueuePair_WaitsInItsInbox) {
  recorder.busy = true;
  send_raw(bytes_of(kSendOnly, kNumber));
  expect_handled(1);
  EXPECT_EQ(counts(), (Counts{0, 0, 0, 0}));
  EXPECT_TRUE(recorder.came.empty());
  recorder.busy = false;
  EXPECT_EQ(receive(1), (Came{"payload!"}));
}

TEST_F(RocePortFromOutside, ManagementDatagram_IsDeliveredToItsHandlerOnly) {
  std::vector<std::string> managed;
  port->set_management([&](const MadDatagram& datagram) {
    managed.emplace_back(reinterpret_cast<const char*>(datagram.bytes.data()), 4);
  });
  const std::string payload = "good" + std::string(MadDatagram::kBytes - 4, ' ');
  send_raw(bytes_of(kDatagram, kManagementQpn, payload));
  send_raw(bytes_of(kDatagram, kManagementQpn, payload + "more"));
  std::vector<std::byte> damaged = bytes_of(kDatagram, kManagementQpn, payload);
  damaged.back() ^= std::byte{1};
  send_raw(damaged);
  expect_handled(3);
  EXPECT_EQ(managed, (std::vector<std::string>{"good"}));
  EXPECT_EQ(counts(), (Counts{1, 1, 0, 0}));
  EXPECT_TRUE(recorder.came.empty());
  port->set_management(nullptr);
  send_raw(bytes_of(kDatagram, kManagementQpn, payload));
  expect_handled(4);
  EXPECT_EQ(managed.size(), 1u);
  EXPECT_EQ(counts(), (Counts{1, 1, 1, 0}));
}

class RoceMulticastGroups : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(right.open()); }
  int attach(uint32_t qp_num, uint32_t device, const std::vector<GidEntry>& interfaces) {
    return groups.attach(qp_num, gid, device, interfaces, right);
  }
  Gid gid;
  progress::ReceiveRight right;
  MulticastGroups groups;
};

TEST_F(RoceMulticastGroups, GroupMembers_ShareASocketUntilTheLastLeaves) {
  gid = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3}};
  GidEntry loopback;
  loopback.gid = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};
  loopback.interface_index = 1;
  ASSERT_EQ(attach(5, 0, {loopback}), 0);
  ASSERT_EQ(attach(6, 0, {loopback}), 0);
  ASSERT_EQ(groups.list().size(), 1u);
  EXPECT_EQ(groups.list()[0].members, (std::vector<uint32_t>{5, 6}));
  ASSERT_EQ(attach(7, 1, {loopback}), 0);
  EXPECT_EQ(groups.list().size(), 2u) << "another device joins by its own interfaces";
  groups.detach(8, gid);
  groups.detach(5, gid);
  ASSERT_EQ(groups.list().size(), 2u);
  EXPECT_EQ(groups.list()[0].members, (std::vector<uint32_t>{6}));
  groups.detach(5, gid);
  groups.detach(7, gid);
  ASSERT_EQ(groups.list().size(), 1u);
  EXPECT_EQ(groups.list()[0].members, (std::vector<uint32_t>{6}));
  groups.detach(6, gid);
  EXPECT_TRUE(groups.empty());
}

TEST_F(RoceMulticastGroups, LinkLocalGroup_IsJoinedWhereItCanBe) {
  gid = {{0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x47, 0x91}};
  GidEntry loopback;
  loopback.gid = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  loopback.interface_index = 1;
  if (attach(5, 0, {loopback}) != 0) GTEST_SKIP() << "no IPv6 here";
  groups.detach(5, gid);
  GidEntry gone = loopback;
  gone.interface_index = 0x7ffffff0;
  EXPECT_NE(attach(5, 0, {gone}), 0);
  EXPECT_EQ(attach(5, 0, {gone, loopback}), 0);
  ASSERT_EQ(groups.list().size(), 1u);
  EXPECT_EQ(groups.list()[0].sockets.size(), 1u);
}

TEST_F(RocePortFromOutside, GroupDatagram_IsDeliveredToMembersOnly) {
  const Gid group{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 4}};
  GidEntry loopback;
  loopback.gid = destination.from;
  loopback.interface_index = 1;
  ASSERT_EQ(port->attach(kNumber, group, 0, {loopback}), 0);
  const net::UdpAddress to{group, kUdpPort, 1};
  const auto send_to_group = [&](std::vector<std::byte> bytes) {
    const Route route{destination.from, group, outside->port(), kUdpPort};
    const auto length = static_cast<uint32_t>(bytes.size());
    uint32_t state = icrc_of_headers(route, 0, length, bytes.data(), kBthBytes);
    state = base::crc32(state, bytes.data() + kBthBytes, length - kBthBytes - kIcrcBytes);
    store_icrc(icrc_of_state(state), bytes.data() + length - kIcrcBytes);
    net::UdpBatch packets;
    packets.begin(1, to, destination.from, 1, {}, length);
    packets.add(bytes.data(), length);
    int error = 0;
    ASSERT_EQ(packets.flush(*outside, &error), 0u) << strerror(error);
  };
  send_to_group(bytes_of(kDatagram, core::kGroupQpn));
  send_to_group(bytes_of(kDatagram, kNumber));  // IBTA 10.5.2: not the number of everybody in a group
  expect_handled(2);
  EXPECT_EQ(recorder.came, (Came{"payload!"}));
  EXPECT_EQ(counts(), (Counts{1, 0, 0, 0}));
  port->detach(kNumber, group);
}

}  // namespace
}  // namespace nupa::roce
