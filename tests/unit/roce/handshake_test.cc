// SPDX-License-Identifier: Apache-2.0
// Tests of the handshake, by which both ends of a connection exchange their rails.
#include "base/gid.h"
#include "transport/roce/handshake.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>

namespace nupa::roce {
namespace {

Gid ipv4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) { return base::ipv4_gid(a, b, c, d); }

Gid ipv6(uint8_t last) { return {{0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}}; }

/// Keeps the one packet that was sent.
struct Wire : Output {
  Sent send(uint8_t path, const Packet& what, const Fragment* payload, uint32_t fragments) override {
    EXPECT_EQ(0, path) << "the first path is the one that both know";
    EXPECT_EQ(1u, fragments);
    bytes.assign(payload->data, payload->data + payload->length);
    packet = what;
    packet->payload = bytes.data();
    return Sent::kYes;
  }
  std::vector<std::byte> bytes;
  std::optional<Packet> packet;
};

/// What `from` sends at `now`, if anything.
std::optional<Packet> sent(Handshake& from, Wire& wire, int64_t now) {
  wire.packet.reset();
  from.transmit(now, Packet{}, wire);
  return wire.packet;
}

std::vector<Rail> rails(std::initializer_list<Gid> addresses) {
  std::vector<Rail> found;
  uint16_t port = 50000;
  for (const Gid& address : addresses) found.push_back({address, 0, port++, 0});
  return found;
}

TEST(RoceHandshake, Handshake_BothEnds_LearnTheRailsAndStop) {
  Handshake one(rails({ipv4(10, 0, 0, 1), ipv4(10, 0, 1, 1)})), other(rails({ipv4(10, 0, 0, 2)}));
  Wire wire;
  EXPECT_FALSE(sent(one, wire, 0)) << "it is unknown whether the peer understands it";
  one.start();
  other.start();
  ASSERT_TRUE(sent(one, wire, 0));
  EXPECT_TRUE(other.receive(*wire.packet)) << "there are more paths now";
  EXPECT_EQ(2u, other.paths());
  EXPECT_EQ(ipv4(10, 0, 1, 1), other.theirs(1).address);
  EXPECT_EQ(50001, other.theirs(1).port);
  EXPECT_EQ(ipv4(10, 0, 0, 2), other.mine(1).address) << "counted round where one has fewer";
  ASSERT_TRUE(sent(other, wire, 0)) << "it was asked";
  EXPECT_TRUE(one.receive(*wire.packet));
  EXPECT_EQ(2u, one.paths());
  EXPECT_EQ(INT64_MAX, one.deadline()) << "the other end knows, by what it said";
}

TEST(RoceHandshake, Handshake_Unanswered_IsResentAndGivenUp) {
  Handshake one(rails({ipv4(10, 0, 0, 1), ipv4(10, 0, 1, 1)}));
  one.start();
  Wire wire;
  int64_t now = 0;
  int tries = 0;
  for (; one.deadline() != INT64_MAX && tries < 1000; ++tries) {
    now = std::max(now, one.deadline());
    ASSERT_TRUE(sent(one, wire, now));
    ASSERT_FALSE(sent(one, wire, now)) << "not twice at one time";
  }
  EXPECT_GT(tries, 1);
  EXPECT_LT(tries, 1000) << "a peer that never answers is given up";
}

TEST(RoceHandshake, Handshake_Unanswered_PausesDoubleUpTo640MillisecondsForTenTries) {
  Handshake one(rails({ipv4(10, 0, 0, 1), ipv4(10, 0, 1, 1)}));
  one.start();
  Wire wire;
  int64_t now = 1000;
  constexpr int64_t kPauses[] = {10, 20, 40, 80, 160, 320, 640, 640, 640};
  for (const int64_t pause : kPauses) {
    ASSERT_TRUE(sent(one, wire, now));
    ASSERT_EQ(now + pause * 1'000'000, one.deadline());
    ASSERT_FALSE(sent(one, wire, one.deadline() - 1)) << "a nanosecond early";
    now = one.deadline();
  }
  ASSERT_TRUE(sent(one, wire, now)) << "the tenth";
  EXPECT_EQ(INT64_MAX, one.deadline());
}

TEST(RoceHandshake, Handshake_CannotLeaveNow_IsNoTry) {
  Handshake one(rails({ipv4(10, 0, 0, 1), ipv4(10, 0, 1, 1)}));
  one.start();
  struct : Output {
    Sent send(uint8_t, const Packet&, const Fragment*, uint32_t) override { return Sent::kNotNow; }
  } full;
  for (int i = 0; i < 20; ++i) one.transmit(0, Packet{}, full);
  EXPECT_EQ(0, one.deadline());
  Wire wire;
  EXPECT_TRUE(sent(one, wire, 0));
}

TEST(RoceHandshake, Handshake_EndWithOneRail_SendsOnlyAnAnswer) {
  Handshake one(rails({ipv4(10, 0, 0, 1)})), other(rails({ipv4(10, 0, 0, 2), ipv4(10, 0, 1, 2)}));
  one.start();
  other.start();
  EXPECT_EQ(INT64_MAX, one.deadline());
  Wire wire;
  ASSERT_TRUE(sent(other, wire, 0));
  one.receive(*wire.packet);
  ASSERT_TRUE(sent(one, wire, 0));
  other.receive(*wire.packet);
  EXPECT_EQ(INT64_MAX, one.deadline());
  EXPECT_EQ(INT64_MAX, other.deadline()) << "the answer says that it knows these rails";
  ASSERT_FALSE(one.receive(*wire.packet)) << "no more paths than before";
}

TEST(RoceHandshake, Handshake_FewerRailsLater_KeepsThePaths) {
  Handshake one(rails({ipv4(10, 0, 0, 1)}));
  Handshake many(rails({ipv4(10, 0, 0, 2), ipv4(10, 0, 1, 2), ipv4(10, 0, 2, 2)}));
  Handshake few(rails({ipv4(10, 0, 0, 2), ipv4(10, 0, 1, 2)}));
  many.start();
  few.start();
  Wire wire;
  ASSERT_TRUE(sent(many, wire, 0));
  EXPECT_TRUE(one.receive(*wire.packet));
  EXPECT_EQ(3u, one.paths());
  ASSERT_TRUE(sent(few, wire, 0));
  EXPECT_FALSE(one.receive(*wire.packet));
  EXPECT_EQ(3u, one.paths());
}

TEST(RoceHandshake, Unchecked_OnlyIfBothEndsAgree) {
  for (const bool first : {false, true})
    for (const bool second : {false, true}) {
      Handshake one(rails({ipv4(10, 0, 0, 1), ipv4(10, 0, 1, 1)}), first);
      Handshake other(rails({ipv4(10, 0, 0, 2)}), second);
      Wire wire;
      one.start();
      ASSERT_TRUE(sent(one, wire, 0));
      other.receive(*wire.packet);
      ASSERT_TRUE(sent(other, wire, 0));
      one.receive(*wire.packet);
      EXPECT_EQ(first && second, one.unchecked());
      EXPECT_EQ(first && second, other.unchecked());
    }
}

TEST(RoceHandshake, Handshake_OneRailWithoutCrc_IsSent) {
  Handshake one(rails({ipv4(10, 0, 0, 1)}), true);
  one.start();
  Wire wire;
  EXPECT_TRUE(sent(one, wire, 0));
}

class Refused : public testing::Test {
 protected:
  void SetUp() override {
    Handshake from(rails({ipv4(10, 0, 0, 2), ipv4(10, 0, 1, 2)}));
    from.start();
    packet_ = *sent(from, wire_, 0);
  }
  void expect_refused(const char* why) {
    Handshake to(rails({ipv4(10, 0, 0, 1), ipv4(10, 0, 1, 1)}));
    EXPECT_FALSE(to.receive(packet_)) << why;
    EXPECT_EQ(1u, to.paths()) << why;
    EXPECT_EQ(INT64_MAX, to.deadline()) << why << ": nothing is answered";
  }
  void put_first_address(const Gid& address) {
    std::memcpy(wire_.bytes.data() + 4, address.raw.data(), sizeof address.raw);
  }

  Wire wire_;
  Packet packet_;
};

TEST_F(Refused, Handshake_WrongLength_IsRefused) {
  const uint32_t whole = packet_.payload_length;
  for (uint32_t length = 0; length < whole; ++length) {
    packet_.payload_length = length;
    expect_refused("cut short");
  }
  packet_.payload_length = 0;
  packet_.payload = nullptr;
  expect_refused("nothing at all");
}

TEST_F(Refused, Handshake_WrongCount_IsRefused) {
  for (int count = 0; count < 256; ++count) {
    if (count == 2) continue;
    wire_.bytes[1] = static_cast<std::byte>(count);
    expect_refused("a wrong count");
  }
}

TEST_F(Refused, Handshake_NoRailsOrMoreThanFour_IsRefused) {
  const std::vector<std::byte> two(wire_.bytes.begin() + 4, wire_.bytes.end());
  for (int i = 0; i < 3; ++i) wire_.bytes.insert(wire_.bytes.end(), two.begin(), two.end());
  packet_.payload = wire_.bytes.data();
  for (const uint32_t count : {0u, 5u, 6u}) {
    wire_.bytes[1] = static_cast<std::byte>(count);
    packet_.payload_length = 4 + 20 * count;
    expect_refused("as long as it says, but too few or too many");
  }
}

TEST_F(Refused, Handshake_AddressOfAnotherFamily_IsRefused) {
  put_first_address(ipv6(2));
  expect_refused("IPv6 on a connection of IPv4");
}

TEST_F(Refused, Handshake_MulticastAddress_IsRefused) {
  put_first_address(ipv4(224, 0, 0, 1));
  expect_refused("a multicast group");
}

TEST_F(Refused, Handshake_Refused_KeepsTheKnownRails) {
  Handshake to(rails({ipv4(10, 0, 0, 1)}));
  ASSERT_TRUE(to.receive(packet_));
  put_first_address(ipv6(2));
  EXPECT_FALSE(to.receive(packet_));
  EXPECT_EQ(2u, to.paths());
  EXPECT_EQ(ipv4(10, 0, 0, 2), to.theirs(0).address);
}

}  // namespace
}  // namespace nupa::roce
