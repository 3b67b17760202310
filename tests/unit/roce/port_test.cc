/// What a port brings to its queue pairs of what a burst sends, by a real socket.
#ifndef NUPA_TEST_DROPIN
#include <gtest/gtest.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/memory_fault.h"
#include "core/seam/group_address.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kNumber = 0x1105;

/// Writes down what comes.
class Recorder final : public Channel {
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
  void transmit(int64_t, Burst&, bool) override {}
  bool owes_answers() const override { return false; }
  void on_timer(int64_t) override {}
  void count_stranger() override { came.push_back("stranger"); }
  void take_turn(SharedWindow&, int64_t, Burst&) override {}
  void leave_lines() override {}
  Peer* peer() override { return nullptr; }
  int64_t deadline() const override { return INT64_MAX; }
  bool takes_unchecked() const override { return unchecked; }
  bool may_lead_to(const net::UdpAddress& to) const override { return to.port == sends_to; }
  bool is_under_way(const net::UdpAddress& to, const std::optional<PacketName>& packet) const override {
    return to.port == sends_to && packet && packet->dest_qpn == sends_number && packet->psn == 1;
  }
  void doubt_peer(const net::UdpAddress& to) override {
    doubted.push_back(to);
    ++told;
  }
  std::vector<net::UdpAddress> doubted;
  std::atomic<int> told{0};  ///< how many times, for other threads than the port's
  uint16_t sends_to = 0;
  uint32_t sends_number = kNumber;
  std::vector<std::string> came;
  uint8_t hop_limit = 0;   ///< of the last packet
  uint16_t from_port = 0;  ///< the same
  bool busy = false;
  bool unchecked = false;
};

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
    burst = std::make_unique<Burst>(port->sockets());
    burst->aim(&destination);
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
    return burst->send(0, request, &fragment, 1);
  }
  Sent acknowledge(uint32_t psn) { return burst->send(0, packet(kSelectiveAck, psn), nullptr, 0); }

  /// What has come when there are `count`, or after a time that only a test that fails takes.
  const std::vector<std::string>& receive(size_t count) {
    const int64_t end = base::now_ns() + 10'000'000'000;
    while (recorder.came.size() < count && base::now_ns() < end) port->poll();
    return recorder.came;
  }
  /// One message after the other from one process, to a thread that polls: that process gets a socket.
  void open_peers_socket() {
    constexpr size_t kMoreThanEnough = 2000;
    for (size_t sent = 1; port->own() == nullptr && sent <= kMoreThanEnough; ++sent) {
      ASSERT_EQ(send("ping", 4), Sent::kYes);
      burst->flush();
      ASSERT_EQ(receive(sent).size(), sent);
    }
    ASSERT_NE(port->own(), nullptr);
  }

  std::unique_ptr<Port> port;
  Recorder recorder;
  Destination destination;
  std::unique_ptr<Burst> burst;
};

using Came = std::vector<std::string>;

/// Packets that go where nobody is.
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
      port->poll();
    }
    return !recorder.doubted.empty();
  }
};

TEST_F(RoceRefusals, PortThatNobodyHas_IsToldToWhoSentThere) {
  const Gid v6{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  for (const Gid& address : {destination.from, v6}) {
    if (address == v6 && !net::UdpSocket::open_address(v6, recorder.sends_to, 1 << 16)) GTEST_SKIP() << "no IPv6 here";
    recorder.doubted.clear();
    destination.from = destination.to.address = address;
    ++destination.place;
    burst->aim(&destination);
    ASSERT_EQ(send("lost", 4), Sent::kYes);
    burst->flush();
    ASSERT_TRUE(doubts());
    EXPECT_EQ(recorder.doubted[0].address, address);
    EXPECT_EQ(recorder.doubted[0].port, recorder.sends_to);
  }
}

TEST_F(RoceRefusals, PortThatNobodyHas_IsToldByTheThreadToo) {
  ASSERT_EQ(send("lost", 4), Sent::kYes);
  burst->flush();
  ASSERT_TRUE(port->start());
  const int64_t end = base::now_ns() + 10'000'000'000;
  while (recorder.told == 0 && base::now_ns() < end) std::this_thread::yield();
  EXPECT_NE(recorder.told, 0);
}

TEST_F(RoceRefusals, OfAPacketThatIsNotUnderWay_SayNothing) {
  Packet other = packet(opcode_of(Service::kRc, Operation::kSendOnly), 2);
  burst->send(0, other, nullptr, 0);
  other = packet(opcode_of(Service::kRc, Operation::kSendOnly), 1);
  other.dest_qpn = kNumber + 1;
  burst->send(0, other, nullptr, 0);
  burst->flush();
  const int64_t end = base::now_ns() + 10'000'000'000;
  pollfd told{port->socket().fd(), 0, 0};
  while (poll(&told, 1, 0) == 0 && base::now_ns() < end) {
  }
  for (int i = 0; i < 100; ++i) {
    port->look_for_refusals();
    port->expect(base::now_ns());
    port->poll();
  }
  EXPECT_EQ(poll(&told, 1, 0), 0) << "they were not looked at";
  EXPECT_TRUE(recorder.doubted.empty());
}

/// Packets to a process that is there, without the queue pair that they are for.
class RoceAbsence : public RocePort {
 protected:
  static constexpr uint32_t kGone = kNumber + 1;
  void SetUp() override {
    RocePort::SetUp();
    recorder.sends_to = port->socket().port();  // the port is its own peer
    recorder.sends_number = kGone;
    port->set_presence([this](uint32_t number) { return asked = number, is_there; });
  }
  void ask(Packet request) {
    request.dest_qpn = kGone;
    burst->send(0, request, nullptr, 0);
    burst->flush();
  }
  Packet request() { return packet(opcode_of(Service::kRc, Operation::kSendOnly), 1); }
  /// Until a packet has come that was sent after all others.
  void all_come() {
    const size_t before = recorder.came.size();
    ASSERT_EQ(send("last", 4), Sent::kYes);
    burst->flush();
    ASSERT_EQ(receive(before + 1).size(), before + 1);
    // What is said of them has come after one more.
    ASSERT_EQ(send("last", 4), Sent::kYes);
    burst->flush();
    ASSERT_EQ(receive(before + 2).size(), before + 2);
  }
  bool is_there = false;
  uint32_t asked = 0;
};

TEST_F(RoceAbsence, RequestToAQueuePairThatIsNotThere_ItsSenderIsTold) {
  ask(request());
  all_come();
  EXPECT_EQ(asked, kGone);
  ASSERT_EQ(recorder.doubted.size(), 1u);
  EXPECT_EQ(recorder.doubted[0].address, destination.from);
  EXPECT_EQ(recorder.doubted[0].port, port->socket().port());
}

TEST_F(RoceAbsence, RequestToAFurtherPort_ItsSenderIsToldFromThere) {
  auto further = net::UdpSocket::open(0, 1 << 18);
  ASSERT_TRUE(further);
  destination.to.port = recorder.sends_to = further->port();
  ++destination.place;
  ASSERT_TRUE(port->add_socket(std::move(*further)));
  ask(request());
  all_come();
  EXPECT_EQ(asked, kGone);
  ASSERT_EQ(recorder.doubted.size(), 1u);
  EXPECT_EQ(recorder.doubted[0].address, destination.from);
  EXPECT_EQ(recorder.doubted[0].port, destination.to.port);
}

TEST_F(RoceAbsence, QueuePairThatIsNotConnectedYet_NothingIsSaid) {
  is_there = true;
  ask(request());
  all_come();
  EXPECT_EQ(asked, kGone);
  EXPECT_TRUE(recorder.doubted.empty());
}

TEST_F(RoceAbsence, ManyRequests_AreToldOfNowAndThen) {
  for (int i = 0; i < 50; ++i) ask(request());
  const int64_t began = base::now_ns();
  all_come();
  EXPECT_GE(recorder.doubted.size(), 1u);
  EXPECT_LE(recorder.doubted.size(), static_cast<size_t>((base::now_ns() - began) / 1'000'000 + 1));
}

TEST_F(RoceAbsence, PacketsThatWantNoAnswer_AreToldNobody) {
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

TEST_F(RoceAbsence, OfAPacketThatIsNotUnderWay_SaysNothing) {
  Packet other = request();
  other.psn = 2;
  ask(other);
  all_come();
  EXPECT_EQ(asked, kGone) << "it was told";
  EXPECT_TRUE(recorder.doubted.empty());
}

TEST_F(RoceAbsence, OfAPeerWithoutTheMark_SaysNothing) {
  Packet said = packet(kAbsence, 1);
  said.imm = htonl(kGone);
  said.dest_qpn = kManagementQpn;
  said.mark = 0;
  burst->send(0, said, nullptr, 0);
  burst->flush();
  all_come();
  EXPECT_TRUE(recorder.doubted.empty());
  said.mark = kNupaMark;
  burst->send(0, said, nullptr, 0);
  burst->flush();
  all_come();
  EXPECT_EQ(recorder.doubted.size(), 1u) << "it would have been heard";
}

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

TEST_F(RocePort, ChildOfAFork_DoesNotKeepItsSocketOpen) {
  EXPECT_FALSE(is_open_in_child(port->socket().fd())) << "the port outlives the process that is known by it";
  EXPECT_EQ(send("answer", 6), Sent::kYes);
  burst->flush();
  EXPECT_EQ(receive(1), Came{"answer"}) << "the parent keeps it";
}

TEST_F(RocePort, ChildOfAFork_IsNotInItsGroups) {
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

TEST_F(RocePort, ThreadThatSentByAnEarlierPort_SendsByTheNewOne) {
  port->burst()->aim(&destination);
  port->remove(recorder);
  const std::unique_ptr<Port> earlier = std::move(port);
  ASSERT_NO_FATAL_FAILURE(SetUp());
  Burst* const mine = port->burst();
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

TEST_F(RocePort, ChildOfAFork_DoesNotKeepThePeersSocketOpen) {
  ASSERT_NO_FATAL_FAILURE(open_peers_socket());
  const size_t before = recorder.came.size();
  EXPECT_FALSE(is_open_in_child(port->own()->socket().fd())) << "it has the port's number";
  EXPECT_EQ(send("answer", 6), Sent::kYes);
  burst->flush();
  EXPECT_EQ(receive(before + 1).back(), "answer") << "the parent keeps it";
}

TEST_F(RocePort, ClosedPort_IsFreeAtOnceThoughASenderKeepsThePeersSocket) {
  ASSERT_NO_FATAL_FAILURE(open_peers_socket());
  const std::shared_ptr<PeerSocket> kept = port->own()->shared_from_this();
  const uint16_t number = port->socket().port();
  port->remove(recorder);
  port.reset();
  const auto opened = net::UdpSocket::open(number, 1 << 18);
  EXPECT_TRUE(opened) << opened.error().what();
}

TEST_F(RocePort, QueuePairForDatagramsMadeLater_SeesHopLimitsByThePeersSocket) {
  ASSERT_NO_FATAL_FAILURE(open_peers_socket());
  port->tell_more();
  const size_t before = recorder.came.size();
  EXPECT_EQ(send("answer", 6), Sent::kYes);
  burst->flush();
  ASSERT_EQ(receive(before + 1).size(), before + 1);
  EXPECT_NE(recorder.hop_limit, 0);
}

TEST(RoceManagementSocket, ChildOfAFork_DoesNotKeepItOpen) {
  const auto socket = ManagementSocket::open(0);
  ASSERT_TRUE(socket) << socket.error().what();
  EXPECT_FALSE(is_open_in_child(socket->fd())) << "the port outlives the process that had it";
}

/// What anybody may send to the port: bytes as they are, from a socket of their own.
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
    net::UdpBatch batch;
    batch.begin(1, destination.to, destination.from, 0, {}, static_cast<uint32_t>(bytes.size()));
    batch.add(bytes.data(), static_cast<uint32_t>(bytes.size()));
    int error = 0;
    ASSERT_EQ(batch.flush(*outside, &error), 0u) << strerror(error);
  }
  /// The port has handled this and all before it.
  void expect_handled(uint64_t packets) {
    const int64_t end = base::now_ns() + 10'000'000'000;
    while (port->counters().packets < packets && base::now_ns() < end) port->poll();
    ASSERT_EQ(port->counters().packets, packets);
  }
  /// malformed, wrong CRC, no queue pair, busy
  std::vector<uint64_t> counts() const {
    const PortCounters& counters = port->counters();
    return {counters.malformed, counters.wrong_crc, counters.no_queue_pair, counters.busy};
  }

  std::optional<net::UdpSocket> outside;
};

constexpr uint8_t kSendOnly = opcode_of(Service::kRc, Operation::kSendOnly);
constexpr uint8_t kDatagram = opcode_of(Service::kUd, Operation::kSendOnly);
using Counts = std::vector<uint64_t>;

TEST_F(RocePortFromOutside, GoodPacket_IsDeliveredAndCountsAsOne) {
  send_raw(bytes_of(kSendOnly, kNumber));
  expect_handled(1);
  EXPECT_EQ(recorder.came, (Came{"payload!"}));
  EXPECT_EQ(counts(), (Counts{0, 0, 0, 0}));
}

TEST_F(RocePortFromOutside, PacketOfAnImpossibleLength_IsMalformed) {
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
  EXPECT_TRUE(recorder.came.empty()) << "not even as strangers: whose they are is not known";
}

TEST_F(RocePortFromOutside, DamagedPacket_IsAWrongCrcAndAStrangerOfItsQueuePair) {
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
  EXPECT_EQ(recorder.came, (Came{"stranger", "stranger", "stranger"}));
}

TEST_F(RocePortFromOutside, PacketWithoutCrc_IsForAQueuePairThatWantsNone) {
  recorder.unchecked = true;
  std::vector<std::byte> bytes = bytes_of(kSendOnly, kNumber);
  store_icrc(0, bytes.data() + bytes.size() - kIcrcBytes);
  send_raw(bytes);
  store_icrc(0x12345678, bytes.data() + bytes.size() - kIcrcBytes);
  send_raw(bytes);
  expect_handled(2);
  EXPECT_EQ(recorder.came, (Came{"payload!", "stranger"})) << "one that has a CRC has a right one";
  EXPECT_EQ(counts(), (Counts{0, 1, 0, 0}));
}

TEST_F(RocePortFromOutside, PacketWithAnUnknownOpcode_IsMalformedAndAStranger) {
  std::vector<std::byte> bytes = bytes_of(kSendOnly, kNumber);
  bytes[0] = std::byte{0x1f};
  seal(bytes);
  send_raw(bytes);
  expect_handled(1);
  EXPECT_EQ(counts(), (Counts{1, 0, 0, 0}));
  EXPECT_EQ(recorder.came, (Came{"stranger"}));
}

TEST_F(RocePortFromOutside, PacketForNobody_CountsAsWithoutQueuePair) {
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

TEST_F(RocePortFromOutside, PacketForAQueuePairThatIsHeld_WaitsInItsInbox) {
  recorder.busy = true;
  send_raw(bytes_of(kSendOnly, kNumber));
  expect_handled(1);
  EXPECT_EQ(counts(), (Counts{0, 0, 0, 0}));
  EXPECT_TRUE(recorder.came.empty());
  recorder.busy = false;
  EXPECT_EQ(receive(1), (Came{"payload!"}));
}

TEST_F(RocePortFromOutside, ManagementDatagram_ComesToItsHandlerOnly) {
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

// ---- Groups.

class RoceGroups : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(right.open()); }
  int attach(uint32_t qp_num, uint32_t device, const std::vector<GidEntry>& interfaces) {
    return groups.attach(qp_num, gid, device, interfaces, right);
  }
  Gid gid;
  progress::ReceiveRight right;
  Groups groups;
};

TEST_F(RoceGroups, MembersShareAGroupsSocket_TheLastOneLeavesIt) {
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

TEST_F(RoceGroups, GroupOfEachLink_IsJoinedWhereItCanBe) {
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

TEST_F(RocePortFromOutside, GroupsDatagram_ComesToItsMembersAndNobodyElse) {
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
    net::UdpBatch batch;
    batch.begin(1, to, destination.from, 1, {}, length);
    batch.add(bytes.data(), length);
    int error = 0;
    ASSERT_EQ(batch.flush(*outside, &error), 0u) << strerror(error);
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
#endif
