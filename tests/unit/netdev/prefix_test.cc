// SPDX-License-Identifier: Apache-2.0
/// Prefixes of the network.
#include <gtest/gtest.h>

#include "base/gid.h"
#include "netdev/ip_packet.h"
#include "netdev/prefix.h"
#include "packets.h"

namespace nupa::netdev {
namespace {

TEST(NetdevPrefix, IsReadAndWritten) {
  for (const char* text : {"10.77.0.1/24", "192.0.2.255/32", "fd77::1/64", "::1/128", "10.0.0.1/0"}) {
    const auto prefix = Prefix::parse(text);
    ASSERT_TRUE(prefix) << text;
    EXPECT_EQ(text, prefix->text());
  }
  EXPECT_EQ("10.77.0.1/32", Prefix::parse("10.77.0.1")->text());
  for (const char* text : {"", "10.77.0", "10.77.0.1/33", "10.77.0.1/", "10.77.0.1/x", "fd77::1/129", "10.77.0.1/24 ",
                           "224.0.0.1/24", "ff02::1/64", "::/0", "10.77.0.1/-1"})
    EXPECT_FALSE(Prefix::parse(text)) << text;
}

TEST(NetdevPrefix, ContainsItsNetwork) {
  const Prefix prefix = *Prefix::parse("10.77.0.130/25");
  EXPECT_TRUE(prefix.contains(gid("10.77.0.255")));
  EXPECT_FALSE(prefix.contains(gid("10.77.0.127")));
  EXPECT_FALSE(prefix.contains(gid("fd77::1")));
  EXPECT_EQ(gid("10.77.0.255"), prefix.broadcast());
  const Prefix six = *Prefix::parse("fd77::1/62");
  EXPECT_TRUE(six.contains(gid("fd77:0:0:3::9")));
  EXPECT_FALSE(six.contains(gid("fd77:0:0:4::9")));
  EXPECT_TRUE(Prefix::parse("10.0.0.1/0")->contains(gid("200.1.2.3")));
}

TEST(NetdevPrefix, Parse_EachPartThatIsWrong_IsRefused) {
  for (const char* text :
       {"10.77.0.1/032x", "10.77.0.1/256", "10.77.0.1/+8", "10.77.0.1/ 8", "10.77.0.1/8/8", " 10.77.0.1/8",
        "10.77.0.1.1/8", "fd77:::1/64", "fd77::1/256", "fd77::g/64", "0.0.0.0x/8", "239.255.255.255/4", "ffff::1/16",
        "::", "/24", "0.0.0.0/24", "0.0.0.0", "255.255.255.255/24", "255.255.255.255"}) {
    const auto prefix = Prefix::parse(text);
    ASSERT_FALSE(prefix) << text;
    EXPECT_EQ(EINVAL, prefix.error().code()) << text;
  }
  EXPECT_EQ(128, Prefix::parse("fd77::1")->length);
  EXPECT_EQ(0, Prefix::parse("fd77::1/0")->length);
  EXPECT_TRUE(Prefix::parse("223.255.255.255/8"));
  EXPECT_TRUE(Prefix::parse("240.0.0.1/8"));
  EXPECT_TRUE(Prefix::parse("feff::1/8"));
  for (const char* text : {"0.0.0.1/8", "0.0.1.0/8", "0.1.0.0/8", "1.0.0.0/8", "255.255.255.254/8", "255.255.254.255/8",
                           "255.254.255.255/8", "254.255.255.255/8", "::1/8", "::255.255.255.255/8"})
    EXPECT_TRUE(Prefix::parse(text)) << text;
}

TEST(NetdevPrefix, Contains_EachBitWithinTheLength_IsCompared) {
  for (const char* text : {"10.77.0.1/0", "10.77.0.1/1", "10.77.0.1/23", "10.77.0.1/24", "10.77.0.1/32", "fd77::1/0",
                           "fd77::1/7", "fd77::1/64", "fd77::1/127", "fd77::1/128"}) {
    const Prefix prefix = *Prefix::parse(text);
    EXPECT_TRUE(prefix.contains(prefix.address)) << text;
    const int first = prefix.is_ipv4() ? 96 : 0;
    for (int bit = first; bit < 128; ++bit) {
      Gid other = prefix.address;
      other.raw[bit / 8] ^= static_cast<uint8_t>(0x80 >> bit % 8);
      EXPECT_EQ(bit - first >= prefix.length, prefix.contains(other)) << text << ' ' << bit;
    }
  }
  // The same last bytes, of the other family.
  EXPECT_FALSE(Prefix::parse("fd77::1/0")->contains(gid("10.77.0.1")));
  EXPECT_FALSE(Prefix::parse("10.77.0.1/0")->contains(gid("::10.77.0.1")));
}

TEST(NetdevPrefix, Broadcast_OfEachLength_IsTheLastAddress) {
  const std::pair<const char*, const char*> cases[] = {
      {"10.77.0.1/32", "10.77.0.1"},   {"10.77.0.2/31", "10.77.0.3"},   {"10.77.0.1/30", "10.77.0.3"},
      {"10.77.0.1/25", "10.77.0.127"}, {"10.77.0.1/23", "10.77.1.255"}, {"10.77.0.1/0", "255.255.255.255"}};
  for (const auto& [text, last] : cases) EXPECT_EQ(gid(last), Prefix::parse(text)->broadcast()) << text;
}

TEST(NetdevPrefix, IsLinkLocal_HoldsForFe80Slash10Only) {
  for (const char* text : {"fe80::1", "febf:ffff::1"}) EXPECT_TRUE(base::is_link_local(gid(text))) << text;
  for (const char* text : {"fec0::1", "fe7f::1", "ff80::1", "fd80::1", "10.77.0.1", "::"})
    EXPECT_FALSE(base::is_link_local(gid(text))) << text;
}

TEST(NetdevPrefix, LinkLocalOf_IsMadeOfTheNodesName) {
  // The first eight bytes of `printf n1 | sha256sum`.
  EXPECT_EQ("fe80::676b:8bb8:4ce7:267d/64", link_local_of("n1").text());
  EXPECT_NE(link_local_of("n1").address, link_local_of("n2").address);
}

TEST(NetdevPrefix, IsMulticast_HoldsForGroupsOfEitherFamilyOnly) {
  for (const char* text : {"224.0.0.0", "239.255.255.255", "ff00::", "ff02::1"})
    EXPECT_TRUE(is_multicast(gid(text))) << text;
  for (const char* text : {"223.255.255.255", "240.0.0.0", "255.255.255.255", "feff::1", "::ffff:0:0", "::224.0.0.1"})
    EXPECT_FALSE(is_multicast(gid(text))) << text;
}

TEST(NetdevPrefix, TextOf_EitherFamily_IsReadAgain) {
  for (const char* text : {"10.77.0.1", "255.255.255.255", "fd77::1", "::1", "2001:db8:1:2:3:4:5:6"}) {
    EXPECT_EQ(text, text_of(gid(text)));
  }
  for (const char* text : {"", "10.77.0.1/24", "10.77.0", "host", "fd77::1%lo", "1"}) {
    const auto address = address_from(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(EINVAL, address.error().code());
  }
}

}  // namespace
}  // namespace nupa::netdev
