// SPDX-License-Identifier: Apache-2.0
// The cards that two nodes show each other: what a peer writes into one is checked, number by number.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "json/json.h"
#include "netdev/peer_info.h"

namespace nupa::netdev {
namespace {

using nlohmann::json;

json good_peer_info() {
  return {{"node", "n1"},
          {"instance", UINT64_MAX},
          {"mtu", 9000},
          {"uso", true},
          {"addresses", {"10.77.0.1/24", "fd77::1/64"}},
          {"lanes", {{0xffffff, 0xabcdef, 0xffffffff, UINT64_MAX}, {2, 3, 4, 5}}}};
}

bool is_peer_info(const json& peer_info) { return PeerInfo::decode(json_text(peer_info)).has_value(); }

/// The card with one part replaced.
bool is_peer_info_with(const char* part, const json& value) {
  json peer_info = good_peer_info();
  peer_info[part] = value;
  return is_peer_info(peer_info);
}

bool is_peer_info_without(const char* part) {
  json peer_info = good_peer_info();
  peer_info.erase(part);
  return is_peer_info(peer_info);
}

TEST(NetdevPeerInfo, Decode_PeerInfoOfAnotherNode_HasAllItsFields) {
  const auto peer_info = PeerInfo::decode(json_text(good_peer_info()));
  ASSERT_TRUE(peer_info);
  EXPECT_EQ("n1", peer_info->node);
  EXPECT_EQ(UINT64_MAX, peer_info->instance);
  EXPECT_EQ(9000u, peer_info->mtu);
  EXPECT_TRUE(peer_info->takes_datagrams);
  ASSERT_EQ(2u, peer_info->addresses.size());
  EXPECT_EQ("10.77.0.1/24", peer_info->addresses[0].text());
  EXPECT_EQ("fd77::1/64", peer_info->addresses[1].text());
  EXPECT_TRUE(peer_info->has(*address_from("fd77::1")));
  EXPECT_FALSE(peer_info->has(*address_from("fd77::2")));
  EXPECT_FALSE(peer_info->has(*address_from("10.77.0.0")));
  ASSERT_EQ(2u, peer_info->channels.size());
  EXPECT_EQ(0xffffffu, peer_info->channels[0].qp_num);
  EXPECT_EQ(0xabcdefu, peer_info->channels[0].psn);
  EXPECT_EQ(0xffffffffu, peer_info->channels[0].rkey);
  EXPECT_EQ(UINT64_MAX, peer_info->channels[0].address);
  EXPECT_EQ(5u, peer_info->channels[1].address);
  EXPECT_EQ(good_peer_info(), parse_json(peer_info->encode()).value());
}

TEST(NetdevPeerInfo, Decode_OlderNodesPeerInfo_TakesNoDatagrams) {
  json peer_info = good_peer_info();
  peer_info.erase("uso");
  ASSERT_TRUE(PeerInfo::decode(json_text(peer_info)));
  EXPECT_FALSE(PeerInfo::decode(json_text(peer_info))->takes_datagrams);
}

TEST(NetdevPeerInfo, Decode_PartThatIsMissingOrOfAnotherKind_IsNone) {
  for (const char* part : {"node", "instance", "mtu", "addresses", "lanes"}) {
    EXPECT_FALSE(is_peer_info_without(part)) << part;
    for (const json& wrong : {json(), json(true), json::object(), json(-1), json(1.5), json(std::vector<int>{})})
      EXPECT_FALSE(is_peer_info_with(part, wrong)) << part << wrong;
  }
  EXPECT_FALSE(is_peer_info_with("uso", 1));
  EXPECT_FALSE(is_peer_info_with("node", 1));
  EXPECT_FALSE(is_peer_info_with("mtu", "9000"));
  EXPECT_FALSE(is_peer_info_with("addresses", {1, 2}));
  EXPECT_FALSE(is_peer_info_with("lanes", {1, 2, 3, 4}));
  for (const char* text : {"", "{", "[]", "1", "null", "{}{}"}) EXPECT_FALSE(PeerInfo::decode(text)) << text;
}

TEST(NetdevPeerInfo, Decode_NumberBeyondItsField_IsNone) {
  EXPECT_FALSE(is_peer_info_with("mtu", uint64_t{9000} + (uint64_t{1} << 32)));
  const uint64_t most[] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT64_MAX};
  for (size_t i = 0; i < 4; ++i) {
    json peer_info = good_peer_info();
    peer_info["lanes"][1][i] = most[i];
    EXPECT_TRUE(is_peer_info(peer_info)) << i;
    if (i < 3) {
      peer_info["lanes"][1][i] = most[i] + 1;
      EXPECT_FALSE(is_peer_info(peer_info)) << i;
    }
    peer_info["lanes"][1][i] = -1;
    EXPECT_FALSE(is_peer_info(peer_info)) << i;
    peer_info["lanes"][1].erase(i);
    EXPECT_FALSE(is_peer_info(peer_info)) << i;
  }
}

TEST(NetdevPeerInfo, Decode_Mtu_IsOneThatADeviceCanHave) {
  for (const uint32_t mtu : {0u, 68u, 1279u, 65521u, 65535u}) EXPECT_FALSE(is_peer_info_with("mtu", mtu)) << mtu;
  for (const uint32_t mtu : {1280u, 1500u, 65520u}) EXPECT_TRUE(is_peer_info_with("mtu", mtu)) << mtu;
}

TEST(NetdevPeerInfo, Decode_AddressesAndChannels_AreOneToSixteen) {
  json addresses = json::array(), channels = json::array();
  for (int count = 1; count <= 17; ++count) {
    addresses.push_back("10.77.0." + std::to_string(count) + "/24");
    channels.push_back({1, 2, 3, 4});
    EXPECT_EQ(count <= 16, is_peer_info_with("addresses", addresses)) << count;
    EXPECT_EQ(count <= 16, is_peer_info_with("lanes", channels)) << count;
  }
  for (const char* wrong : {"10.77.0.1/33", "224.0.0.1/24", "0.0.0.0x", "", "0.0.0.0/24", "255.255.255.255/32"})
    EXPECT_FALSE(is_peer_info_with("addresses", {"10.77.0.1/24", wrong}));
}

TEST(NetdevPeerInfo, IsName_LettersDigitsAndFourSigns_Only) {
  for (const char* name : {"a", "n1", "A-b_c.d:e", "fd77::1", "-"}) EXPECT_TRUE(is_name(name, 40)) << name;
  for (const char* name : {"", ".", ".hidden", "a/b", "a,b", "a b", "a\n", "\xc3\xa4", "a*", "a%"})
    EXPECT_FALSE(is_name(name, 40)) << name;
  EXPECT_FALSE(is_name(std::string_view("a\0b", 3), 40));
  EXPECT_TRUE(is_name(std::string(40, 'a'), 40));
  EXPECT_FALSE(is_name(std::string(41, 'a'), 40));
  EXPECT_TRUE(is_peer_info_with("node", std::string(40, 'n')));
  for (const std::string& name : {std::string(41, 'n'), std::string(), std::string("../n1")})
    EXPECT_FALSE(is_peer_info_with("node", name)) << name;
}

}  // namespace
}  // namespace nupa::netdev
