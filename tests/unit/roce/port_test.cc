// SPDX-License-Identifier: Apache-2.0
/// Tests of what a port delivers to its queue pairs, and of its notifications to senders of undeliverable packets.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/memory_fault.h"
#include "ports.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {
namespace {

using Came = std::vector<std::string>;

/// Whether a child of fork() has the descriptor open.
bool is_open_in_child(int fd) {
  struct stat before {};
  EXPECT_EQ(fstat(fd, &before), 0);
  const pid_t child = fork();
  if (child == 0) {
    struct stat now {};
    _exit(fstat(fd, &now) == 0 && now.st_dev == before.st_dev && now.st_ino == before.st_ino ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) != 0;
}

/// Packets to a port that no process has.
class RoceRefusals : public RocePort {
 protected:
  void SetUp() override {
    RocePort::SetUp();
    auto gone = net::UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(gone);
    destination.to.port = recorder.sends_to = gone->port();
  }
  /// Whether it comes to that, by what the port does for threads that poll.
  bool doubts() {
    const int64_t end = base::now_ns() + 10'000'000'000;
    while (recorder.doubted.empty() && base::now_ns() < end) {
      port->look_for_refusals();
      port->expect(base::now_ns());
      port->poller().poll();
    }
    return !recorder.doubted.empty();
  }
};

TEST_F(RoceRefusals, Refusal_OfAClosedPort_IsReportedToTheSender) {
  const Gid v6{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  for (const Gid& address : {destination.from, v6}) {
    if (address == v6 && !net::UdpSocket::open_address(v6, recorder.sends_to, 1 << 16)) GTEST_SKIP() << "no IPv6 here";
    recorder.doubted.clear();
    destination.from = destination.to.address = address;
    ++destination.place;
    batch->aim(&destination);
    ASSERT_EQ(send("lost", 4), Sent::kYes);
    batch->flush();
    ASSERT_TRUE(doubts());
    EXPECT_EQ(recorder.doubted[0].address, address);
    EXPECT_EQ(recorder.doubted[0].port, recorder.sends_to);
  }
}

TEST_F(RoceRefusals, Refusal_OfAClosedPort_IsReportedByTheServingThread) {
  ASSERT_EQ(send("lost", 4), Sent::kYes);
  batch->flush();
  ASSERT_TRUE(port->start());
  const int64_t end = base::now_ns() + 10'000'000'000;
  while (recorder.notifications == 0 && base::now_ns() < end) std::this_thread::yield();
  EXPECT_NE(recorder.notifications, 0);
}

TEST_F(RoceRefusals, Refusal_OfAPacketNotUnderWay_IsIgnored) {
  Packet other = packet(opcode_of(Service::kRc, Operation::kSendOnly), 2);
  batch->send(0, other, nullptr, 0);
  other = packet(opcode_of(Service::kRc, Operation::kSendOnly), 1);
  other.dest_qpn = kNumber + 1;
  batch->send(0, other, nullptr, 0);
  batch->flush();
  const int64_t end = base::now_ns() + 10'000'000'000;
  pollfd ready{port->socket().fd(), 0, 0};
  while (poll(&ready, 1, 0) == 0 && base::now_ns() < end) {
  }
  for (int i = 0; i < 100; ++i) {
    port->look_for_refusals();
    port->expect(base::now_ns());
    port->poller().poll();
  }
  EXPECT_EQ(poll(&ready, 1, 0), 0) << "they were not looked at";
  EXPECT_TRUE(recorder.doubted.empty());
}

/// Packets to a process that is there, without the queue pair that they are for.
class RoceAbsence : public RocePort {
 protected:
  static constexpr uint32_t kUnknownQpn = kNumber + 1;
  void SetUp() override {
    RocePort::SetUp();
    recorder.sends_to = port->socket().port();  // the port is its own peer
    recorder.sends_number = kUnknownQpn;
    port->set_presence([this](uint32_t number) { return asked = number, is_there; });
  }
  void ask(Packet request) {
    request.dest_qpn = kUnknownQpn;
    batch->send(0, request, nullptr, 0);
    batch->flush();
  }
  Packet request() { return packet(opcode_of(Service::kRc, Operation::kSendOnly), 1); }
  /// Until a packet has come that was sent after all others.
  void all_come() {
    const size_t before = recorder.came.size();
    ASSERT_EQ(send("last", 4), Sent::kYes);
    batch->flush();
    ASSERT_EQ(receive(before + 1).size(), before + 1);
    // What is said of them has come after one more.
    ASSERT_EQ(send("last", 4), Sent::kYes);
    batch->flush();
    ASSERT_EQ(receive(before + 2).size(), before + 2);
  }
  bool is_there = false;
  uint32_t asked = 0;
};

TEST_F(RoceAbsence, RequestToAnUnknownQueuePair_NotifiesTheSender) {
  ask(request());
  all_come();
  EXPECT_EQ(asked, kUnknownQpn);
  ASSERT_EQ(recorder.doubted.size(), 1u);
  EXPECT_EQ(recorder.doubted[0].address, destination.from);
  EXPECT_EQ(recorder.doubted[0].port, port->socket().port());
}

TEST_F(RoceAbsence, RequestToAFurtherPort_NotifiesTheSenderFromThatPort) {
  auto further = net::UdpSocket::open(0, 1 << 18);
  ASSERT_TRUE(further);
  destination.to.port = recorder.sends_to = further->port();
  ++destination.place;
  ASSERT_TRUE(port->add_socket(std::move(*further)));
  ask(request());
  all_come();
  EXPECT_EQ(asked, kUnknownQpn);
  ASSERT_EQ(recorder.doubted.size(), 1u);
  EXPECT_EQ(recorder.doubted[0].address, destination.from);
  EXPECT_EQ(recorder.doubted[0].port, destination.to.port);
}

TEST_F(RoceAbsence, RequestToAQueuePairNotConnectedYet_NotifiesNoSender) {
  is_there = true;
  ask(request());
  all_come();
  EXPECT_EQ(asked, kUnknownQpn);
  EXPECT_TRUE(recorder.doubted.empty());
}

TEST_F(RoceAbsence, ManyRequests_NotifyTheSenderAtALimitedRate) {
  for (int i = 0; i < 50; ++i) ask(request());
  const int64_t began = base::now_ns();
  all_come();
  EXPECT_GE(recorder.doubted.size(), 1u);
  EXPECT_LE(recorder.doubted.size(), static_cast<size_t>((base::now_ns() - began) / 1'000'000 + 1));
}

TEST_F(RoceAbsence, PacketsThatNeedNoAnswer_NotifyNoSender) {
  for (const uint8_t opcode :
       {opcode_of(Service::kRc, Operation::kAcknowledge), kSelectiveAck, kPathProbe,
        opcode_of(Service::kUc, Operation::kSendOnly), opcode_of(Service::kUd, Operation::kSendOnly)})
    ask(packet(opcode, 1));
  Packet standard = request();
  standard.mark = 0;
  ask(standard);
  all_come();
  EXPECT_EQ(asked, 0u);
  EXPECT_TRUE(recorder.doubted.empty());
}

TEST_F(RoceAbsence, Notification_OfAPacketNotUnderWay_IsIgnored) {
  Packet other = request();
  other.psn = 2;
  ask(other);
  all_come();
  EXPECT_EQ(asked, kUnknownQpn) << "it was told";
  EXPECT_TRUE(recorder.doubted.empty());
}

TEST_F(RoceAbsence, Notification_WithoutTheMark_IsIgnored) {
  Packet said = packet(kAbsence, 1);
  said.imm = htonl(kUnknownQpn);
  said.dest_qpn = kManagementQpn;
  said.mark = 0;
  batch->send(0, said, nullptr, 0);
  batch->flush();
  all_come();
  EXPECT_TRUE(recorder.doubted.empty());
  said.mark = kNupaMark;
  batch->send(0, said, nullptr, 0);
  batch->flush();
  all_come();
  EXPECT_EQ(recorder.doubted.size(), 1u) << "with the mark it is accepted";
}

TEST_F(RocePort, Receive_AcknowledgementCarriedByAPacket_IsDeliveredFirst) {
  EXPECT_EQ(acknowledge(7), Sent::kYes);
  EXPECT_EQ(send("answer", 6), Sent::kYes);
  batch->flush();
  EXPECT_EQ(receive(2), (Came{"acknowledgement 7", "answer"}));
  EXPECT_EQ(port->counters().packets, 1u) << "both are one packet";
}

TEST_F(RocePort, Send_AcknowledgementBeforeALargePacket_LeavesAlone) {
  const std::string large(1024, 'x');
  EXPECT_EQ(acknowledge(8), Sent::kYes);
  EXPECT_EQ(send(large.data(), 1024), Sent::kYes);
  batch->flush();
  EXPECT_EQ(receive(2), (Came{"acknowledgement 8", large}));
  EXPECT_EQ(port->counters().packets, 2u);
}

TEST_F(RocePort, Send_UnreadablePayload_IsRefusedAndDelaysNoOther) {
  ASSERT_EQ(base::watch_memory_faults(), 0);
  for (const uint32_t length : {64u, 1024u}) {
    recorder.came.clear();
    void* const gone = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(gone, MAP_FAILED);
    EXPECT_EQ(send("before", 6), Sent::kYes);
    EXPECT_EQ(acknowledge(9), Sent::kYes);
    EXPECT_EQ(send(gone, length), Sent::kUnreadable);
    EXPECT_EQ(send("behind", 6), Sent::kYes);
    batch->flush();
    EXPECT_EQ(receive(3), (Came{"before", "acknowledgement 9", "behind"}));
    munmap(gone, 4096);
  }
}

TEST_F(RocePort, Fork_PortsSocket_IsClosedInTheChild) {
  EXPECT_FALSE(is_open_in_child(port->socket().fd())) << "the port outlives the process that is known by it";
  EXPECT_EQ(send("answer", 6), Sent::kYes);
  batch->flush();
  EXPECT_EQ(receive(1), Came{"answer"}) << "the parent keeps it";
}

TEST_F(RocePort, Fork_GroupSocket_IsClosedInTheChild) {
  const Gid group{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 6}};
  GidEntry loopback;
  loopback.gid = destination.from;
  loopback.interface_index = 1;
  ASSERT_EQ(port->attach(kNumber, group, 0, {loopback}), 0);
  int group_sockets = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in name{};
    socklen_t length = sizeof name;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0 || name.sin_family != AF_INET) continue;
    if (name.sin_addr.s_addr != htonl(0xef010206)) continue;
    ++group_sockets;
    EXPECT_FALSE(is_open_in_child(fd));
  }
  EXPECT_EQ(group_sockets, 1);
  port->detach(kNumber, group);
}

TEST_F(RocePort, Send_ThreadUsedAnEarlierPort_UsesTheNewOne) {
  port->batch()->aim(&destination);
  port->remove(recorder);
  const std::unique_ptr<Port> earlier = std::move(port);
  ASSERT_NO_FATAL_FAILURE(SetUp());
  TransmitBatch* const mine = port->batch();
  ASSERT_NE(mine, nullptr);
  mine->aim(&destination);
  Packet request = packet(opcode_of(Service::kRc, Operation::kSendOnly), 1);
  request.payload_length = 5;
  const Fragment fragment{reinterpret_cast<const std::byte*>("again"), 5};
  ASSERT_EQ(mine->send(0, request, &fragment, 1), Sent::kYes);
  mine->flush();
  EXPECT_EQ(receive(1), Came{"again"});
  EXPECT_EQ(recorder.from_port, port->socket().port());
}

TEST_F(RocePort, Fork_PeersSocket_IsClosedInTheChild) {
  ASSERT_NO_FATAL_FAILURE(open_peers_socket());
  const size_t before = recorder.came.size();
  EXPECT_FALSE(is_open_in_child(port->own()->socket().fd())) << "it has the port's number";
  EXPECT_EQ(send("answer", 6), Sent::kYes);
  batch->flush();
  EXPECT_EQ(receive(before + 1).back(), "answer") << "the parent keeps it";
}

TEST_F(RocePort, Close_SenderKeepsThePeersSocket_PortIsFree) {
  ASSERT_NO_FATAL_FAILURE(open_peers_socket());
  const std::shared_ptr<PeerSocket> kept = port->own()->shared_from_this();
  const uint16_t number = port->socket().port();
  port->remove(recorder);
  port.reset();
  const auto opened = net::UdpSocket::open(number, 1 << 18);
  EXPECT_TRUE(opened) << opened.error().what();
}

TEST_F(RocePort, ReportMore_PeersSocket_ReportsHopLimits) {
  ASSERT_NO_FATAL_FAILURE(open_peers_socket());
  port->report_more();
  const size_t before = recorder.came.size();
  EXPECT_EQ(send("answer", 6), Sent::kYes);
  batch->flush();
  ASSERT_EQ(receive(before + 1).size(), before + 1);
  EXPECT_NE(recorder.hop_limit, 0);
}

TEST(RoceManagementSocket, Fork_ManagementSocket_IsClosedInTheChild) {
  const auto socket = ManagementSocket::open(0);
  ASSERT_TRUE(socket) << socket.error().what();
  EXPECT_FALSE(is_open_in_child(socket->fd())) << "the port outlives the process that had it";
}

}  // namespace
}  // namespace nupa::roce
