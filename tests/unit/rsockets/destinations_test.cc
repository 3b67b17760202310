// SPDX-License-Identifier: Apache-2.0
// Replacement in the table of peers of a datagram rsocket. This file replaces ibv_destroy_ah().
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <set>
#include <vector>

#include "rsockets/datagram_destinations.h"

namespace {
std::multiset<ibv_ah*> destroyed;
}  // namespace

extern "C" int ibv_destroy_ah(ibv_ah* ah) {
  destroyed.insert(ah);
  return 0;
}

namespace nupa::rsockets {
namespace {

class RsocketsDestinations : public testing::Test {
 protected:
  static constexpr size_t kMost = 4;

  RsocketsDestinations() { destroyed.clear(); }

  static DatagramAddress at(uint16_t port) {
    DatagramAddress address;
    auto& in = reinterpret_cast<sockaddr_in&>(address.value);
    in.sin_family = AF_INET;
    in.sin_port = port;
    return address;
  }
  Destination* one(uint16_t port) {
    Destination* found = destinations.find(at(port));
    return found != nullptr ? found : destinations.add(at(port), nullptr);
  }
  void receive_from(uint16_t port) { destinations.heard(one(port)); }
  void send_to(uint16_t port) { destinations.used(one(port)); }
  /// The ports of those up to 20 that are known.
  std::vector<int> known() {
    std::vector<int> ports;
    for (uint16_t port = 1; port <= 20; ++port) {
      if (destinations.find(at(port)) != nullptr) ports.push_back(port);
    }
    EXPECT_EQ(ports.size(), destinations.count());
    return ports;
  }

  Destinations destinations{kMost};
};

using Ports = std::vector<int>;

TEST_F(RsocketsDestinations, Heard_MoreThanTheMost_TheLongestSilentIsForgotten) {
  for (const uint16_t port : {1, 2, 3, 4}) receive_from(port);
  EXPECT_EQ(known(), (Ports{1, 2, 3, 4}));
  receive_from(1);
  receive_from(5);
  EXPECT_EQ(known(), (Ports{1, 3, 4, 5}));
  receive_from(6);
  EXPECT_EQ(known(), (Ports{1, 4, 5, 6}));
}

TEST_F(RsocketsDestinations, Heard_ManyThatTheProgramDoesNotSendTo_ItsPeersStay) {
  for (const uint16_t port : {1, 2, 3}) send_to(port);
  for (uint16_t port = 4; port <= 20; ++port) receive_from(port);
  EXPECT_EQ(known(), (Ports{1, 2, 3, 20}));
  receive_from(1);
  send_to(5);
  EXPECT_EQ(known(), (Ports{1, 2, 3, 5}))
      << "a peer that the program has sent to is kept although it is only received from";
}

TEST_F(RsocketsDestinations, Used_MoreThanTheMost_TheLongestUnusedIsForgotten) {
  for (const uint16_t port : {1, 2, 3, 4}) send_to(port);
  send_to(1);
  receive_from(2);
  send_to(5);
  EXPECT_EQ(known(), (Ports{1, 3, 4, 5}));
  receive_from(6);
  EXPECT_EQ(known(), (Ports{1, 4, 5, 6}));
}

TEST_F(RsocketsDestinations, Keep_TheLongestUnused_AnotherOneIsForgotten) {
  destinations.keep(one(1));
  for (uint16_t port = 2; port <= 9; ++port) send_to(port);
  EXPECT_EQ(known(), (Ports{1, 7, 8, 9}));
  for (uint16_t port = 10; port <= 15; ++port) receive_from(port);
  EXPECT_EQ(known(), (Ports{1, 8, 9, 15}));
  destinations.keep(nullptr);
  send_to(16);
  send_to(17);
  EXPECT_EQ(known(), (Ports{8, 9, 16, 17}));
}

TEST_F(RsocketsDestinations, Forget_AddressHandle_IsDestroyedOnce) {
  ibv_ah handles[3];
  for (uint16_t port = 1; port <= 3; ++port) one(port)->ah = &handles[port - 1];
  {
    Destinations two(2);
    two.add(at(1), nullptr)->ah = &handles[0];
    two.add(at(2), nullptr);
    two.add(at(3), nullptr)->ah = &handles[2];
    EXPECT_EQ(destroyed, (std::multiset<ibv_ah*>{&handles[0]}));
  }
  EXPECT_EQ(destroyed, (std::multiset<ibv_ah*>{&handles[0], &handles[2]}));
  for (uint16_t port = 4; port <= 7; ++port) send_to(port);
  EXPECT_EQ(destroyed, (std::multiset<ibv_ah*>{&handles[0], &handles[0], &handles[1], &handles[2], &handles[2]}));
}

}  // namespace
}  // namespace nupa::rsockets
