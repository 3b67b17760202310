// SPDX-License-Identifier: Apache-2.0
/// Tests of datagrams that leave as one message, and of the fields of their IP headers.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "base/gid.h"
#include "base/unique_fd.h"
#include "net/udp_socket.h"
#include "udp_sockets.h"

namespace nupa::net::batch_test {
namespace {

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

TEST_F(UdpBatches, Begin_EqualLengthsToOnePlace_AreOneMessage) {
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

TEST_F(UdpBatches, Begin_MoreThan64Datagrams_StartsAnotherMessage) {
  for (uint32_t i = 0; i < UdpBatch::kMaxSegments; ++i) {
    ASSERT_EQ(i, batch_->next_position(1, 1));
    put(1, "x");
  }
  EXPECT_EQ(0u, batch_->next_position(1, 1));
  ASSERT_EQ(0u, flush()) << strerror(error_) << ": the kernel takes so many";
}

TEST_F(UdpBatches, Begin_MoreThan65000Bytes_StartsAnotherMessage) {
  constexpr uint32_t kDatagrams = 50;
  const std::string text(UdpBatch::kMaxBytes / kDatagrams, 'x');
  for (uint32_t i = 0; i < kDatagrams; ++i) {
    ASSERT_EQ(i, batch_->next_position(1, static_cast<uint32_t>(text.size())));
    put(1, text);
  }
  EXPECT_EQ(0u, batch_->next_position(1, static_cast<uint32_t>(text.size())));
  EXPECT_EQ(0u, batch_->next_position(1, 1)) << "not one byte more";
}

TEST_F(UdpBatches, HasRoom_MostMessagesAndParts_IsFalseBeyond) {
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

TEST_F(UdpBatches, Add_AdjacentParts_AreJoinedWithinAMessage) {
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

TEST_F(UdpBatches, Receive_MessageOfSegments_HasItsSegmentLength) {
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

TEST_F(UdpBatches, Flush_EachMessage_LeavesOnceAndTheBatchIsEmpty) {
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

TEST_F(UdpBatches, Flush_PacketThatCannotLeave_IsCountedAndDelaysNoOther) {
  put(1, "first");
  put(2, "second", unused_address());
  put(3, "third");
  const std::string too_long(65508, 'x');  // than a UDP datagram over IPv4
  put(4, too_long);
  put(5, "fifth");
  EXPECT_EQ(2u, flush());
  EXPECT_EQ(EMSGSIZE, error_) << "of the last one";
  for (const char* text : {"first", "third", "fifth"}) EXPECT_EQ(text, take_from(*to_).bytes);
  EXPECT_TRUE(has_nothing(*to_));
  put(1, "alone", unused_address());
  EXPECT_EQ(1u, flush());
  EXPECT_NE(0, error_);
  EXPECT_TRUE(batch_->empty());
}

// Fields of the IP header.

TEST_F(UdpBatches, Flush_GivenSource_IsUsed) {
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

TEST_F(UdpBatches, Flush_GivenInterface_IsUsed) {
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

TEST_F(UdpBatches, Rfc3168_Packets_AreEct0InEachClassOfService) {
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

TEST_F(UdpBatches, Rfc3168_CongestionExperienced_IsReported) {
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

TEST_F(UdpBatches, HopLimitAndFlowLabel_AfterReportMore_AreReported) {
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
    EXPECT_EQ(0, taken.received.hop_limit) << "what is not reported is 0";
    EXPECT_EQ(0u, taken.received.flow_label);
    EXPECT_EQ(7u, taken.received.segment) << "one datagram";
  }
  to_->report_more();
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

TEST_F(UdpBatches, SegmentsOfAMessage_HaveTheSameHeaders) {
  if (!has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
  to_->report_more();
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

}  // namespace
}  // namespace nupa::net::batch_test
