// SPDX-License-Identifier: Apache-2.0
// UDP sockets and batches by the kernel's own word: which datagrams become one message, the fields of their IP
// headers, losses, and how each kind of socket is set.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/gid.h"
#include "base/unique_fd.h"
#include "net/udp_socket.h"

namespace nupa::net::batch_test {
namespace {

constexpr uint32_t kRoom = 1 << 16;
constexpr int kSoonMs = 20'000;
constexpr uint8_t kEct0 = 2, kCongestionExperienced = 3;

Gid host(uint8_t last) {
  Gid gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 127;
  gid.raw[15] = last;
  return gid;
}
Gid host6() {
  Gid gid;
  gid.raw[15] = 1;
  return gid;
}
Gid group(uint8_t last) {
  Gid gid = host(last);
  gid.raw[12] = 239;
  return gid;
}
/// 192.0.0.1, which no host has.
Gid nobody() {
  Gid gid = host(1);
  gid.raw[12] = 192;
  return gid;
}
GidEntry at_loopback(const Gid& gid) {
  GidEntry entry{};
  entry.gid = gid;
  entry.interface_index = 1;  // the kernel gives the loopback interface this one
  return entry;
}

bool has_ipv6_loopback() {
  const base::UniqueFd fd(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return fd && bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

int option(const UdpSocket& socket, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  return getsockopt(socket.fd(), level, name, &value, &length) == 0 ? value : -1;
}

struct Datagram {
  std::string bytes;
  UdpSocket::Received received;
};
/// The next that comes, soon; `former`: what stood in the same place before. Once one is missing, later ones are not
/// waited for.
Datagram take_from(const UdpSocket& socket, const UdpSocket::Received& former = {}) {
  Datagram taken{"", former};
  pollfd ready{socket.fd(), POLLIN, 0};
  if (poll(&ready, 1, ::testing::Test::HasFailure() ? 0 : kSoonMs) != 1) {
    ADD_FAILURE() << "a datagram is missing";
    return taken;
  }
  std::vector<std::byte> buffer(UdpSocket::kMaxReceive);
  if (socket.receive(buffer.data(), UdpSocket::kMaxReceive, &taken.received))
    taken.bytes.assign(reinterpret_cast<const char*>(buffer.data()), taken.received.length);
  return taken;
}
/// Over the loopback a datagram has arrived when it has left.
bool has_nothing(const UdpSocket& socket) {
  pollfd ready{socket.fd(), POLLIN, 0};
  return poll(&ready, 1, 0) == 0;
}

class UdpBatches : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(from_ && to_); }
  UdpAddress target(const Gid& gid = host(1)) const { return {gid, to_->port(), 0}; }
  void put(uint64_t place, std::string_view text, const Gid& from = host(1), const IpFields& fields = {}) {
    const auto length = static_cast<uint32_t>(text.size());
    batch_->begin(place, target(base::is_ipv4(from) ? host(1) : host6()), from, 0, fields, length);
    batch_->add(text.data(), length);
  }
  uint32_t flush() { return batch_->flush(*from_, &error_); }
  Datagram pass(const Gid& from, const IpFields& fields) {
    put(1, "passes", from, fields);
    EXPECT_EQ(0u, flush()) << strerror(error_);
    return take_from(*to_);
  }

  Result<UdpSocket> from_ = UdpSocket::open(0, kRoom), to_ = UdpSocket::open(0, kRoom);
  std::unique_ptr<UdpBatch> batch_ = std::make_unique<UdpBatch>();
  int error_ = 0;
};

// Which datagrams become one message.

TEST_F(UdpBatches, EqualLengthsToOnePlaceAreOneMessage) {
  EXPECT_EQ(0u, batch_->next_position(1, 8)) << "nothing is open";
  EXPECT_EQ(0u, batch_->next_message(1, 8));
  EXPECT_TRUE(batch_->empty());
  put(1, "12345678");
  EXPECT_FALSE(batch_->empty());
  EXPECT_EQ(1u, batch_->next_position(1, 8));
  EXPECT_EQ(0u, batch_->next_message(1, 8));
  EXPECT_EQ(0u, batch_->next_position(2, 8)) << "another place";
  EXPECT_EQ(1u, batch_->next_message(2, 8));
  EXPECT_EQ(0u, batch_->next_position(1, 9)) << "a longer one";
  EXPECT_EQ(1u, batch_->next_position(1, 3)) << "the last may be shorter";
  put(1, "123");
  EXPECT_EQ(1u, batch_->messages());
  EXPECT_EQ(0u, batch_->next_position(1, 3)) << "and is the last";
  EXPECT_EQ(0u, batch_->next_position(1, 8));
}

TEST_F(UdpBatches, AMessageHas64DatagramsAtMost) {
  for (uint32_t i = 0; i < UdpBatch::kMaxSegments; ++i) {
    ASSERT_EQ(i, batch_->next_position(1, 1));
    put(1, "x");
  }
  EXPECT_EQ(0u, batch_->next_position(1, 1));
  ASSERT_EQ(0u, flush()) << strerror(error_) << ": the kernel takes so many";
}

TEST_F(UdpBatches, AMessageHas65000BytesAtMost) {
  constexpr uint32_t kDatagrams = 50;
  const std::string text(UdpBatch::kMaxBytes / kDatagrams, 'x');
  for (uint32_t i = 0; i < kDatagrams; ++i) {
    ASSERT_EQ(i, batch_->next_position(1, static_cast<uint32_t>(text.size())));
    put(1, text);
  }
  EXPECT_EQ(0u, batch_->next_position(1, static_cast<uint32_t>(text.size())));
  EXPECT_EQ(0u, batch_->next_position(1, 1)) << "not one byte more";
}

TEST_F(UdpBatches, ThereIsRoomForSoManyMessagesAndParts) {
  constexpr std::string_view kText = "a-b";
  EXPECT_TRUE(batch_->has_room(UdpBatch::kMaxParts));
  EXPECT_FALSE(batch_->has_room(UdpBatch::kMaxParts + 1));
  batch_->begin(0, target(), host(1), 0, {}, 2);
  batch_->add(kText.data(), 1);
  batch_->add(kText.data() + 2, 1);
  EXPECT_TRUE(batch_->has_room(UdpBatch::kMaxParts - 2));
  EXPECT_FALSE(batch_->has_room(UdpBatch::kMaxParts - 1));
  for (uint64_t place = 1; place < UdpBatch::kMaxMessages; ++place) {
    ASSERT_TRUE(batch_->has_room(1)) << place;
    put(place, kText);
  }
  EXPECT_FALSE(batch_->has_room(1));
}

TEST_F(UdpBatches, PartsBesideEachOtherAreOne_WithinAMessage) {
  constexpr std::string_view kText = "abcdefgh";
  batch_->begin(1, target(), host(1), 0, {}, 6);
  batch_->add(kText.data(), 2);
  batch_->add(kText.data(), 0);
  batch_->add(kText.data() + 2, 4);
  EXPECT_TRUE(batch_->has_room(UdpBatch::kMaxParts - 1)) << "one part";
  // This one lies right behind them.
  put(2, kText.substr(6));
  EXPECT_FALSE(batch_->has_room(UdpBatch::kMaxParts - 1)) << "two";
  ASSERT_EQ(0u, flush());
  EXPECT_EQ("abcdef", take_from(*to_).bytes);
  EXPECT_EQ("gh", take_from(*to_).bytes);
  EXPECT_TRUE(has_nothing(*to_));
}

TEST_F(UdpBatches, AMessageComesAsItLeft) {
  for (const std::string_view text : {"datagram", "DATAGRAM", "datagr"}) put(1, text);
  ASSERT_EQ(1u, batch_->messages());
  ASSERT_EQ(0u, flush());
  const Datagram taken = take_from(*to_);
  EXPECT_EQ("datagramDATAGRAMdatagr", taken.bytes) << "put together by the kernel";
  EXPECT_EQ(8u, taken.received.segment);
  EXPECT_EQ(22u, taken.received.length);
  put(1, "alone");
  ASSERT_EQ(0u, flush());
  EXPECT_EQ(5u, take_from(*to_).received.segment);
}

TEST_F(UdpBatches, EachMessageLeavesOnce_AndTheBatchIsEmpty) {
  for (int round = 0; round < 2; ++round) {
    for (uint64_t place = 0; place < UdpBatch::kMaxMessages; ++place) put(place, place % 2 == 0 ? "even" : "odd");
    ASSERT_EQ(UdpBatch::kMaxMessages, batch_->messages());
    ASSERT_EQ(0u, flush());
    EXPECT_TRUE(batch_->empty());
    EXPECT_TRUE(batch_->has_room(UdpBatch::kMaxParts));
    for (uint64_t place = 0; place < UdpBatch::kMaxMessages; ++place)
      ASSERT_EQ(place % 2 == 0 ? "even" : "odd", take_from(*to_).bytes) << place;
    EXPECT_TRUE(has_nothing(*to_));
  }
}

TEST_F(UdpBatches, PacketThatCannotLeave_IsCountedAndHoldsUpNoOther) {
  put(1, "first");
  put(2, "second", nobody());
  put(3, "third");
  const std::string too_long(65508, 'x');  // than a UDP datagram over IPv4
  put(4, too_long);
  put(5, "fifth");
  EXPECT_EQ(2u, flush());
  EXPECT_EQ(EMSGSIZE, error_) << "of the last one";
  for (const char* text : {"first", "third", "fifth"}) EXPECT_EQ(text, take_from(*to_).bytes);
  EXPECT_TRUE(has_nothing(*to_));
  put(1, "alone", nobody());
  EXPECT_EQ(1u, flush());
  EXPECT_NE(0, error_);
  EXPECT_TRUE(batch_->empty());
}

// Fields of the IP header.

TEST_F(UdpBatches, TheSourceIsTheOneThatIsSaid) {
  for (const uint8_t last : {1, 7}) {
    const Datagram taken = pass(host(last), {});
    EXPECT_EQ(host(last), taken.received.from.address);
    EXPECT_EQ(from_->port(), taken.received.from.port);
    EXPECT_EQ(0u, taken.received.from.scope);
    EXPECT_EQ(host(1), taken.received.to);
  }
  if (!has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
  const Datagram taken = pass(host6(), {});
  EXPECT_EQ(host6(), taken.received.from.address);
  EXPECT_EQ(host6(), taken.received.to);
}

TEST_F(UdpBatches, TheInterfaceIsTheOneThatIsSaid) {
  for (const bool ipv4 : {true, false}) {
    if (!ipv4 && !has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
    const Gid own = ipv4 ? host(1) : host6();
    for (const uint32_t interface : {1u, 0x7ffffff0u}) {  // the loopback, and one that is not there
      batch_->begin(1, target(own), own, interface, {}, 4);
      batch_->add("text", 4);
      EXPECT_EQ(interface == 1 ? 0u : 1u, flush()) << ipv4;
      if (interface == 1) {
        EXPECT_EQ("text", take_from(*to_).bytes);
      }
    }
    EXPECT_TRUE(has_nothing(*to_));
  }
}

TEST_F(UdpBatches, Rfc3168_PacketsAreEct0WhateverTheirClassOfService) {
  for (const bool ipv4 : {true, false}) {
    if (!ipv4 && !has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
    const Gid from = ipv4 ? host(1) : host6();
    for (const uint8_t wanted : {0x00, 0x01, 0xb8, 0xbb}) {
      const Datagram taken = pass(from, {wanted, 0, 0});
      EXPECT_EQ((wanted & 0xfc) | kEct0, taken.received.traffic_class) << ipv4;
      EXPECT_FALSE(taken.received.congested);
    }
  }
}

TEST_F(UdpBatches, Rfc3168_CongestionExperiencedIsTold) {
  for (const bool ipv4 : {true, false}) {
    if (!ipv4 && !has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
    const base::UniqueFd marks(socket(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(to_->port());
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 to6{};
    to6.sin6_family = AF_INET6;
    to6.sin6_port = htons(to_->port());
    to6.sin6_addr = in6addr_loopback;
    for (const int service : {0x43, 0x42, 0x41, 0x40}) {
      ASSERT_EQ(0, setsockopt(marks.get(), ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_TOS : IPV6_TCLASS, &service,
                              sizeof service));
      const ssize_t sent = ipv4
                               ? sendto(marks.get(), "mark", 4, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to)
                               : sendto(marks.get(), "mark", 4, 0, reinterpret_cast<const sockaddr*>(&to6), sizeof to6);
      ASSERT_EQ(4, sent);
      const Datagram taken = take_from(*to_);
      EXPECT_EQ(service, taken.received.traffic_class) << ipv4;
      EXPECT_EQ((service & 3) == kCongestionExperienced, taken.received.congested) << ipv4 << ' ' << service;
    }
  }
}

TEST_F(UdpBatches, HopLimitAndFlowLabel_AreReportedAfterTellMore) {
  const IpFields fields{0, 9, 0xfff12345};  // a flow label has 20 bits
  UdpSocket::Received former;
  former.hop_limit = 77;
  former.flow_label = 78;
  former.segment = 3;
  for (const bool ipv4 : {true, false}) {
    if (!ipv4 && !has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
    put(1, "unasked", ipv4 ? host(1) : host6(), fields);
    ASSERT_EQ(0u, flush()) << strerror(error_);
    const Datagram taken = take_from(*to_, former);
    EXPECT_EQ("unasked", taken.bytes);
    EXPECT_EQ(0, taken.received.hop_limit) << "what is not told is 0";
    EXPECT_EQ(0u, taken.received.flow_label);
    EXPECT_EQ(7u, taken.received.segment) << "one datagram";
  }
  to_->tell_more();
  EXPECT_EQ(9, pass(host(1), fields).received.hop_limit);
  EXPECT_EQ(64, pass(host(1), {}).received.hop_limit) << "the system's own (ip(7))";
  const Datagram taken = pass(host6(), fields);
  EXPECT_EQ(9, taken.received.hop_limit);
  EXPECT_EQ(0x12345u, taken.received.flow_label);
  EXPECT_EQ(kEct0, taken.received.traffic_class) << "which stands right before it";
  const Datagram all = pass(host6(), {0xb8, 3, 0x54321});
  EXPECT_EQ(0xb8 | kEct0, all.received.traffic_class);
  EXPECT_EQ(3, all.received.hop_limit);
  EXPECT_EQ(0x54321u, all.received.flow_label);
}

TEST_F(UdpBatches, SegmentsOfAMessageHaveTheSameHeaders) {
  if (!has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
  to_->tell_more();
  const IpFields fields{0x20, 5, 0x777};
  for (int i = 0; i < 3; ++i) put(1, "equal", host6(), fields);
  ASSERT_EQ(0u, flush()) << strerror(error_);
  const Datagram taken = take_from(*to_);
  EXPECT_EQ(15u, taken.received.length);
  EXPECT_EQ(5u, taken.received.segment);
  EXPECT_EQ(0x20 | kEct0, taken.received.traffic_class);
  EXPECT_EQ(5, taken.received.hop_limit);
  EXPECT_EQ(0x777u, taken.received.flow_label);
}

// Sockets.

/// One of each kind, at one port.
class UdpSocketKinds : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(any_);
    made_.push_back(UdpSocket::open_address(host(1), any_->port(), kRoom));
    made_.push_back(UdpSocket::open_group(group(5), any_->port(), {at_loopback(host(1))}, kRoom));
    for (const auto& socket : made_) ASSERT_TRUE(socket) << socket.error().what();
  }
  std::vector<const UdpSocket*> all() const { return {&*any_, &*made_[0], &*made_[1]}; }
  const UdpSocket& of_group() const { return *made_[1]; }

  Result<UdpSocket> any_ = UdpSocket::open(0, kRoom);
  std::vector<Result<UdpSocket>> made_;
};

TEST_F(UdpSocketKinds, NoneWaitsAndNoneIsInherited) {
  for (const UdpSocket* socket : all()) {
    EXPECT_NE(0, fcntl(socket->fd(), F_GETFD) & FD_CLOEXEC);
    EXPECT_NE(0, fcntl(socket->fd(), F_GETFL) & O_NONBLOCK);
  }
}

TEST_F(UdpSocketKinds, NoneLetsItsPacketsBeFragmented) {
  for (const UdpSocket* socket : all()) {
    EXPECT_EQ(IP_PMTUDISC_DO, option(*socket, IPPROTO_IP, IP_MTU_DISCOVER));
    if (!socket->is_dual()) continue;
    EXPECT_EQ(IPV6_PMTUDISC_DO, option(*socket, IPPROTO_IPV6, IPV6_MTU_DISCOVER));
  }
}

TEST_F(UdpSocketKinds, NoneTakesDatagramsOfGroupsThatOthersJoined) {
  constexpr int kIpv6MulticastAll = 29;  // IPV6_MULTICAST_ALL, Linux 4.20
  for (const UdpSocket* socket : all()) {
    EXPECT_EQ(0, option(*socket, IPPROTO_IP, IP_MULTICAST_ALL));
    if (!socket->is_dual()) continue;
    EXPECT_EQ(0, option(*socket, IPPROTO_IPV6, kIpv6MulticastAll));
  }
  const auto sender = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(sender);
  UdpBatch batch;
  for (const uint8_t last : {5, 6}) {
    batch.begin(last, {group(last), any_->port(), 0}, host(1), 1, {}, 5);
    batch.add("group", 5);
  }
  int error = 0;
  ASSERT_EQ(0u, batch.flush(*sender, &error)) << strerror(error);
  const Datagram taken = take_from(of_group());
  EXPECT_EQ("group", taken.bytes);
  EXPECT_EQ(group(5), taken.received.to);
  EXPECT_EQ(host(1), taken.received.from.address);
  EXPECT_NE(0, taken.received.hop_limit) << "receivers of groups ask for it";
  for (const UdpSocket* socket : all()) EXPECT_TRUE(has_nothing(*socket));
}

TEST_F(UdpSocketKinds, OneForAnAddressOrAGroup_IsOfThatFamily) {
  EXPECT_TRUE(any_->is_dual() || !has_ipv6_loopback());
  EXPECT_FALSE(made_[0]->is_dual());
  EXPECT_FALSE(made_[1]->is_dual());
  EXPECT_TRUE(made_[0]->has_address());
  EXPECT_FALSE(any_->has_address());
  if (!has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
  const auto six = UdpSocket::open_address(host6(), any_->port(), kRoom);
  ASSERT_TRUE(six) << six.error().what();
  EXPECT_TRUE(six->is_dual());
}

TEST_F(UdpSocketKinds, LoopOfGroupsIsAsItIsSet) {
  for (const bool loop : {false, true}) {
    any_->set_group_loop(loop);
    EXPECT_EQ(loop, option(*any_, IPPROTO_IP, IP_MULTICAST_LOOP));
    if (!any_->is_dual()) continue;
    EXPECT_EQ(loop, option(*any_, IPPROTO_IPV6, IPV6_MULTICAST_LOOP));
  }
}

TEST(UdpSocketOpen, APortIsOneSockets) {
  const auto first = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(first);
  EXPECT_NE(0, first->port());
  const auto second = UdpSocket::open(first->port(), kRoom);
  ASSERT_FALSE(second);
  EXPECT_EQ(EADDRINUSE, second.error().code());
  EXPECT_EQ("UDP port " + std::to_string(first->port()) + " is not free", second.error().what());
  auto chosen = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(chosen);
  const uint16_t port = chosen->port();
  chosen->close();
  const auto again = UdpSocket::open(port, kRoom);
  ASSERT_TRUE(again) << again.error().what();
  EXPECT_EQ(port, again->port());
}

TEST(UdpSocketOpen, RoomIsWhatTheKernelGrants) {
  for (const uint32_t wanted : {uint32_t{1} << 14, uint32_t{1} << 15, uint32_t{1} << 16}) {  // any user may
    const auto socket = UdpSocket::open(0, wanted);
    ASSERT_TRUE(socket);
    EXPECT_GE(socket->buffer_bytes(), wanted);
    EXPECT_EQ(socket->buffer_bytes(), static_cast<uint32_t>(option(*socket, SOL_SOCKET, SO_RCVBUF)));
    EXPECT_GE(option(*socket, SOL_SOCKET, SO_SNDBUF), static_cast<int>(wanted));
    EXPECT_LT(option(*socket, SOL_SOCKET, SO_SNDBUF), static_cast<int>(4 * wanted));
    EXPECT_LT(socket->buffer_bytes(), 4 * wanted);
  }
}

TEST(UdpSocketOpen, AGroupThatNoInterfaceJoinsIsRefused) {
  const auto error = [](const std::vector<GidEntry>& at) {
    const auto socket = UdpSocket::open_group(group(9), 0, at, kRoom);
    return socket ? 0 : socket.error().code();
  };
  EXPECT_EQ(EADDRNOTAVAIL, error({}));
  EXPECT_EQ(EADDRNOTAVAIL, error({at_loopback(host6())})) << "another family's";
  GidEntry gone = at_loopback(host(1));
  gone.interface_index = 0x7ffffff0;
  EXPECT_EQ(ENODEV, error({gone}));
  EXPECT_EQ(0, error({gone, at_loopback(host6()), at_loopback(host(1))})) << "one is enough";
  EXPECT_EQ(0, error({at_loopback(host(1)), gone}));
  EXPECT_EQ(0, error({at_loopback(host(1)), at_loopback(host(2))})) << "two addresses of an interface";
}

TEST(UdpSocketOpen, AGroupThatIsAnotherOneOnEachLinkIsBoundToItsInterface) {
  if (!has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
  const auto group_of = [](uint8_t flags_and_scope) {
    Gid gid = host6();
    gid.raw[0] = 0xff;
    gid.raw[1] = flags_and_scope;
    return gid;
  };
  for (const uint8_t bytes : {0x01, 0x11, 0x02, 0x12, 0x05, 0x15, 0x0e, 0x1e}) {
    const auto socket = UdpSocket::open_group(group_of(bytes), 0, {at_loopback(host6())}, kRoom);
    ASSERT_TRUE(socket) << int{bytes} << ": " << socket.error().what();
    sockaddr_in6 name{};
    socklen_t length = sizeof name;
    ASSERT_EQ(0, getsockname(socket->fd(), reinterpret_cast<sockaddr*>(&name), &length));
    EXPECT_EQ((bytes & 0xf) <= 2 ? 1u : 0u, name.sin6_scope_id) << int{bytes};
    EXPECT_EQ(is_of_one_link(group_of(bytes)), (bytes & 0xf) <= 2) << int{bytes};
  }
  EXPECT_FALSE(is_of_one_link(group(5)));
  EXPECT_FALSE(is_of_one_link(host6()));
}

TEST(UdpSocketReceive, AnEmptyDatagramIsNothing_AndTheNextOneComes) {
  const auto from = UdpSocket::open(0, kRoom), to = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(from && to);
  UdpBatch batch;
  for (const std::string_view text : {"", "x"}) {
    batch.begin(text.size(), {host(1), to->port(), 0}, host(1), 0, {}, static_cast<uint32_t>(text.size()));
    batch.add(text.data(), static_cast<uint32_t>(text.size()));
  }
  int error = 0;
  ASSERT_EQ(0u, batch.flush(*from, &error));
  std::array<std::byte, 16> buffer;
  UdpSocket::Received received;
  EXPECT_FALSE(to->receive(buffer.data(), buffer.size(), &received));
  EXPECT_EQ("x", take_from(*to).bytes);
  EXPECT_FALSE(to->receive(buffer.data(), buffer.size(), &received)) << "and waits for none";
}

TEST(UdpSocketReceive, NeverMoreThanTheBufferHolds) {
  const auto from = UdpSocket::open(0, kRoom), to = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(from && to);
  UdpBatch batch;
  batch.begin(1, {host(1), to->port(), 0}, host(1), 0, {}, 10);
  batch.add("0123456789", 10);
  int error = 0;
  ASSERT_EQ(0u, batch.flush(*from, &error));
  std::array<std::byte, 16> buffer{};
  UdpSocket::Received received;
  ASSERT_TRUE(to->receive(buffer.data(), 4, &received));
  EXPECT_EQ(4u, received.length);
  EXPECT_LE(received.segment, 10u);
  EXPECT_EQ(std::byte{'3'}, buffer[3]);
  EXPECT_EQ(std::byte{0}, buffer[4]);
  EXPECT_TRUE(has_nothing(*to)) << "the rest of it is gone";
}

// A kernel without IPv6, which the tests play: a thread that may make no such socket.

bool forget_ipv6() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),  // the lower half
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog all{static_cast<unsigned short>(std::size(program)), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0;
}

class UdpWithoutIpv6 : public ::testing::Test {
 protected:
  /// Both sockets are made where there is no IPv6.
  void SetUp() override {
    bool forgot = false;
    std::thread thread([&] {
      forgot = forget_ipv6();
      if (!forgot) return;
      from_ = UdpSocket::open(0, kRoom);
      to_ = UdpSocket::open(0, kRoom);
    });
    thread.join();
    if (!forgot) GTEST_SKIP() << "system calls cannot be forbidden";
    ASSERT_TRUE(from_) << from_.error().what();
    ASSERT_TRUE(to_) << to_.error().what();
  }
  Datagram pass(const Gid& to, const Gid& from, const IpFields& fields = {}) {
    UdpBatch batch;
    batch.begin(1, {to, to_->port(), 0}, from, 1, fields, 4);
    batch.add("four", 4);
    int error = 0;
    EXPECT_EQ(0u, batch.flush(*from_, &error)) << strerror(error);
    return take_from(*to_);
  }
  Result<UdpSocket> from_ = fail(0, ""), to_ = fail(0, "");
};

TEST_F(UdpWithoutIpv6, SocketsAreOfIpv4) {
  for (const auto* socket : {&from_, &to_}) {
    EXPECT_FALSE((*socket)->is_dual());
    EXPECT_NE(0, (*socket)->port());
    EXPECT_NE(0, fcntl((*socket)->fd(), F_GETFD) & FD_CLOEXEC);
    EXPECT_NE(0, fcntl((*socket)->fd(), F_GETFL) & O_NONBLOCK);
    EXPECT_EQ(IP_PMTUDISC_DO, option(**socket, IPPROTO_IP, IP_MTU_DISCOVER));
  }
  const auto taken = UdpSocket::open(from_->port(), kRoom);
  EXPECT_FALSE(taken) << "the port is taken for both families";
}

TEST_F(UdpWithoutIpv6, AddressesAndFieldsAreAsEver) {
  to_->tell_more();
  for (const uint8_t last : {3, 4}) {
    const Datagram taken = pass(host(last), host(static_cast<uint8_t>(last + 10)), {0x40, last, 0x123});
    EXPECT_EQ("four", taken.bytes);
    EXPECT_EQ(host(static_cast<uint8_t>(last + 10)), taken.received.from.address);
    EXPECT_EQ(from_->port(), taken.received.from.port);
    EXPECT_EQ(host(last), taken.received.to);
    EXPECT_EQ(0x40 | kEct0, taken.received.traffic_class);
    EXPECT_EQ(last, taken.received.hop_limit);
    EXPECT_EQ(0u, taken.received.flow_label) << "IPv4 has none";
  }
}

TEST_F(UdpWithoutIpv6, RefusalsAreTold) {
  from_->tell_refusals();
  const uint16_t port = to_->port();
  to_->close();
  UdpBatch batch;
  batch.begin(1, {host(1), port, 0}, host(1), 0, {}, 4);
  batch.add("lost", 4);
  int error = 0;
  EXPECT_EQ(0u, batch.flush(*from_, &error));
  pollfd told{from_->fd(), 0, 0};
  ASSERT_EQ(1, poll(&told, 1, kSoonMs));
  UdpSocket::Refusal refusal;
  ASSERT_TRUE(from_->next_refusal(&refusal));
  EXPECT_EQ(host(1), refusal.to.address);
  EXPECT_EQ(port, refusal.to.port);
}

// Refusals: what the host of a port that nobody has says.

class UdpRefusals : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(socket_);
    auto gone = UdpSocket::open(0, kRoom);
    ASSERT_TRUE(gone);
    port_ = gone->port();
  }
  void send_to(const Gid& gid, const Gid& from) {
    UdpBatch batch;
    batch.begin(1, {gid, port_, 0}, from, 0, {}, 4);
    batch.add("lost", 4);
    int error = 0;
    EXPECT_EQ(0u, batch.flush(*socket_, &error)) << strerror(error);
  }
  static std::string quoted(const UdpSocket::Refusal& refusal) {
    return {reinterpret_cast<const char*>(refusal.quoted.data()), refusal.quoted_length};
  }
  void wait_for_error() const {
    pollfd told{socket_->fd(), 0, 0};
    ASSERT_EQ(1, poll(&told, 1, HasFailure() ? 0 : kSoonMs));
  }
  Result<UdpSocket> socket_ = UdpSocket::open(0, kRoom);
  uint16_t port_ = 0;
};

TEST_F(UdpRefusals, AreReportedAfterTellRefusals) {
  UdpSocket::Refusal refusal;
  send_to(host(1), host(1));
  EXPECT_FALSE(socket_->next_refusal(&refusal)) << "nobody has asked";
  socket_->tell_refusals();
  send_to(host(1), host(1));
  wait_for_error();
  ASSERT_TRUE(socket_->next_refusal(&refusal));
  EXPECT_EQ(host(1), refusal.to.address);
  EXPECT_EQ(port_, refusal.to.port);
  EXPECT_EQ("lost", quoted(refusal));
  EXPECT_FALSE(socket_->next_refusal(&refusal));
  if (!has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
  send_to(host6(), host6());
  wait_for_error();
  ASSERT_TRUE(socket_->next_refusal(&refusal));
  EXPECT_EQ(host6(), refusal.to.address);
  EXPECT_EQ(port_, refusal.to.port);
  EXPECT_EQ("lost", quoted(refusal));
}

TEST_F(UdpRefusals, OfAnEarlierMessage_CostNoLaterOne) {
  auto there = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(there);
  socket_->tell_refusals();
  send_to(host(1), host(1));
  wait_for_error();
  port_ = there->port();
  send_to(host(1), host(1));
  pollfd came{there->fd(), POLLIN, 0};
  EXPECT_EQ(1, poll(&came, 1, kSoonMs)) << "it has not left";
}

TEST_F(UdpRefusals, OfOneFamilyAreToldToo) {
  auto own = UdpSocket::open_address(host(1), socket_->port(), kRoom);
  ASSERT_TRUE(own);
  own->tell_refusals();
  ASSERT_TRUE(own->lead_to({host(1), port_, 0}));
  UdpBatch batch;
  batch.begin(1, {host(1), port_, 0}, host(1), 0, {}, 4);
  batch.add("lost", 4);
  int error = 0;
  EXPECT_EQ(0u, batch.flush(*own, &error));
  pollfd told{own->fd(), 0, 0};
  ASSERT_EQ(1, poll(&told, 1, kSoonMs));
  UdpSocket::Refusal refusal;
  ASSERT_TRUE(own->next_refusal(&refusal));
  EXPECT_EQ(host(1), refusal.to.address);
  EXPECT_EQ(port_, refusal.to.port);
}

// Sockets that lead somewhere.

TEST(UdpSocketLeads, NowhereIsAnError) {
  const auto any = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(any);
  auto own = UdpSocket::open_address(host(1), any->port(), kRoom);
  ASSERT_TRUE(own);
  Gid broadcast = host(255);
  for (size_t i = 12; i < 16; ++i) broadcast.raw[i] = 255;
  const auto led = own->lead_to({broadcast, 9, 0});
  ASSERT_FALSE(led);
  EXPECT_NE(0, led.error().code());
  EXPECT_FALSE(own->leads_somewhere());
  ASSERT_TRUE(own->lead_to({host(1), any->port(), 0}));
  EXPECT_TRUE(own->leads_somewhere());
}

TEST(UdpSocketLeads, LearningAnIdentificationLeavesNothingBehind) {
  const auto any = UdpSocket::open(0, kRoom);
  auto peer = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(any && peer);
  auto own = UdpSocket::open_address(host(1), any->port(), kRoom);
  ASSERT_TRUE(own && own->lead_to({host(1), peer->port(), 0}));
  const auto first = own->learn_identification();
  if (!first) GTEST_SKIP() << first.error().what() << " (net.core.tstamp_allow_data)";
  const auto send = [&] {
    UdpBatch batch;
    batch.begin(1, {}, host(1), 0, {}, 4);
    batch.add("next", 4);
    int error = 0;
    EXPECT_EQ(0u, batch.flush(*own, &error)) << strerror(error);
  };
  const auto has_error = [&] {
    pollfd told{own->fd(), 0, 0};
    return poll(&told, 1, 0) != 0;
  };
  send();
  EXPECT_FALSE(has_error()) << "of later messages there are no copies";
  // An earlier message's refusal is not this one's failure.
  const uint16_t port = peer->port();
  peer->close();
  send();
  pollfd told{own->fd(), 0, 0};
  ASSERT_EQ(1, poll(&told, 1, kSoonMs));
  peer = UdpSocket::open(port, kRoom);
  ASSERT_TRUE(peer);
  const auto second = own->learn_identification();
  ASSERT_TRUE(second) << second.error().what();
  EXPECT_EQ(static_cast<uint16_t>(*first + 3), *second) << "two messages, and its own";
  EXPECT_FALSE(has_error());
}

constexpr uint32_t kCopies = 1u << 4 | 1u << 8;  // SOF_TIMESTAMPING_SOFTWARE, SOF_TIMESTAMPING_TX_SCHED

/// The IPv4 identification of the oldest message whose copy the kernel has; -1: it has none.
int identification_of_copy(const UdpSocket& socket, size_t payload) {
  std::array<uint8_t, 256> copy;
  const ssize_t length = recv(socket.fd(), copy.data(), copy.size(), MSG_ERRQUEUE | MSG_DONTWAIT);
  const ssize_t ip = length - static_cast<ssize_t>(payload) - 8 - 20;  // before it are the link's headers
  if (ip < 0 || copy[static_cast<size_t>(ip)] != 0x45) return -1;
  return copy[static_cast<size_t>(ip) + 4] << 8 | copy[static_cast<size_t>(ip) + 5];
}

TEST(UdpSocketLeads, LearnedIdentification_IsThatOfTheNextMessage) {
  const auto any = UdpSocket::open(0, kRoom), peer = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(any && peer);
  auto own = UdpSocket::open_address(host(1), any->port(), kRoom);
  ASSERT_TRUE(own && own->lead_to({host(1), peer->port(), 0}));
  const auto next = own->learn_identification();
  if (!next) GTEST_SKIP() << next.error().what() << " (net.core.tstamp_allow_data)";
  ASSERT_EQ(0, setsockopt(own->fd(), SOL_SOCKET, SO_TIMESTAMPING, &kCopies, sizeof kCopies));
  ASSERT_EQ(4, ::send(own->fd(), "next", 4, MSG_DONTWAIT));
  pollfd told{own->fd(), 0, 0};
  ASSERT_EQ(1, poll(&told, 1, kSoonMs));
  EXPECT_EQ(*next, identification_of_copy(*own, 4));
}

TEST(UdpSocketLeads, ACopyThatComesLateIsForgotten) {
  const auto any = UdpSocket::open(0, kRoom), peer = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(any && peer);
  auto own = UdpSocket::open_address(host(1), any->port(), kRoom);
  ASSERT_TRUE(own && own->lead_to({host(1), peer->port(), 0}));
  if (!own->learn_identification()) GTEST_SKIP() << "the kernel makes no copies (net.core.tstamp_allow_data)";
  // As if the kernel had handed it out after the question.
  ASSERT_EQ(0, setsockopt(own->fd(), SOL_SOCKET, SO_TIMESTAMPING, &kCopies, sizeof kCopies));
  for (int i = 0; i < 2; ++i) ASSERT_EQ(4, ::send(own->fd(), "copy", 4, MSG_DONTWAIT));
  pollfd told{own->fd(), 0, 0};
  ASSERT_EQ(1, poll(&told, 1, kSoonMs));
  UdpSocket::Refusal refusal;
  EXPECT_FALSE(own->next_refusal(&refusal));
  EXPECT_EQ(0, poll(&told, 1, 0)) << "poll() would tell of it for ever";
}

}  // namespace
}  // namespace nupa::net::batch_test
