// SPDX-License-Identifier: Apache-2.0
/// Tests of routes, MTUs and groups in a network namespace of the test.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "../roce/engine_fixture.h"
#include "base/gid.h"
#include "base/unique_fd.h"
#include "cm/connections.h"
#include "net/find_route.h"
#include "net/route.h"
#include "net/udp_socket.h"
#include "own_network.h"
#include "transport/roce/datagram_endpoint.h"
#include "transport/roce/endpoint.h"
#include "transport/roce/port/multicast_groups.h"
#include "transport/roce/port/port.h"
#include "transport/roce/roce_transport.h"
#include "transport/roce/wire/wire.h"

namespace nupa::net::own_network_test {
namespace {

/// What find_route() says, in words: "SOURCE INTERFACE [local] [via GATEWAY]", or the error's name.
std::string route_text(const UdpAddress& to, const char* from = nullptr) {
  const Gid source = from == nullptr ? Gid{} : gid(from);
  const auto route = find_route(to, from == nullptr ? nullptr : &source);
  if (!route) return strerrorname_np(route.error().code());
  const auto text = [](const Gid& gid) {
    char written[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, gid.raw.data(), written, sizeof written);
    return std::string(base::is_ipv4(gid) ? written + std::strlen("::ffff:") : written);
  };
  char name[IF_NAMESIZE] = "?";
  if_indextoname(route->interface_index, name);
  return text(route->source) + ' ' + name + (route->local ? " local" : "") +
         (route->gateway == Gid{} ? "" : " via " + text(route->gateway));
}

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

// Which way packets take.

TEST_F(OwnNetwork, FindRoute_Ipv4Tables_GiveTheRoute) {
  within({"addr add 10.1.0.1/24 dev a0", "addr add 10.2.0.1/24 dev b0", "addr add 10.2.0.7/32 dev b0",
          "route add 10.3.0.0/24 via 10.1.0.9", "route add 10.4.0.0/24 via inet6 fe80::9 dev b0",
          "route add 10.9.0.0/24 dev b0 src 10.2.0.7"},
         [] {
           EXPECT_EQ("10.1.0.1 a0 local", route_text(at("10.1.0.1"))) << "the interface that has it, not the loopback";
           EXPECT_EQ("10.2.0.7 b0 local", route_text(at("10.2.0.7")));
           EXPECT_EQ("10.1.0.1 a0", route_text(at("10.1.0.77")));
           EXPECT_EQ("10.2.0.1 b0", route_text(at("10.2.0.77")));
           EXPECT_EQ("10.1.0.1 a0 via 10.1.0.9", route_text(at("10.3.0.1")));
           EXPECT_EQ("10.2.0.1 b0 via fe80::9", route_text(at("10.4.0.1")));
           EXPECT_EQ("10.2.0.7 b0", route_text(at("10.9.0.1"))) << "the route's own source";
           EXPECT_EQ("ENETUNREACH", route_text(at("10.99.0.1")));
           EXPECT_EQ("EACCES", route_text(at("10.1.0.255"))) << "a network's broadcast address";
         });
}

TEST_F(OwnNetwork, FindRoute_RoutesThatForbid_AreErrors) {
  within({"addr add 10.1.0.1/24 dev a0", "route add blackhole 10.5.0.0/24", "route add unreachable 10.6.0.0/24",
          "route add prohibit 10.7.0.0/24", "route add throw 10.8.0.0/24"},
         [] {
           EXPECT_EQ("EINVAL", route_text(at("10.5.0.1")));
           EXPECT_EQ("EHOSTUNREACH", route_text(at("10.6.0.1")));
           EXPECT_EQ("EACCES", route_text(at("10.7.0.1")));
           EXPECT_EQ("ENETUNREACH", route_text(at("10.8.0.1")));
         });
}

TEST_F(OwnNetwork, FindRoute_GivenSource_SelectsTheRouteAndIsKept) {
  within({"addr add 10.1.0.1/24 dev a0", "addr add 10.2.0.1/24 dev b0", "rule add from 10.2.0.1 table 77",
          "route add default via 10.2.0.254 dev b0 table 77"},
         [] {
           EXPECT_EQ("ENETUNREACH", route_text(at("10.99.0.1")));
           EXPECT_EQ("ENETUNREACH", route_text(at("10.99.0.1"), "10.1.0.1"));
           EXPECT_EQ("10.2.0.1 b0 via 10.2.0.254", route_text(at("10.99.0.1"), "10.2.0.1"))
               << "by a rule for this source";
           EXPECT_EQ("10.1.0.1 a0", route_text(at("10.1.0.77"), "10.1.0.1"));
           EXPECT_EQ("10.1.0.1 b0", route_text(at("10.2.0.77"), "10.1.0.1")) << "though it leaves by another interface";
           EXPECT_EQ("10.1.0.1 b0", route_text(at("10.2.0.77", index("b0")), "10.1.0.1"));
           EXPECT_EQ("10.1.0.1 b0 local", route_text(at("10.2.0.1"), "10.1.0.1"));
           EXPECT_EQ("EADDRNOTAVAIL", route_text(at("10.1.0.77"), "10.1.0.78")) << "a neighbour's";
           EXPECT_EQ("EADDRNOTAVAIL", route_text(at("10.1.0.77"), "10.1.0.255"));
         });
}

TEST_F(OwnNetwork, FindRoute_GivenInterface_IsUsed) {
  within({"addr add 10.1.0.1/24 dev a0", "addr add 10.1.0.2/24 dev b0"}, [] {
    EXPECT_EQ("10.1.0.1 a0", route_text(at("10.1.0.77", index("a0"))));
    EXPECT_EQ("10.1.0.2 b0", route_text(at("10.1.0.77", index("b0"))));
  });
}

TEST_F(OwnNetwork, FindRoute_InterfaceWithoutAnAddress_FailsWithEaddrnotavail) {
  within({"route add 10.1.0.0/24 dev a0"}, [] { EXPECT_EQ("EADDRNOTAVAIL", route_text(at("10.1.0.77"))); });
}

TEST_F(OwnNetwork, FindRoute_LinkLocalAddress_IsOfTheGivenInterface) {
  within({"addr add fe80::1/64 dev a0 nodad", "addr add fe80::1/64 dev b0 nodad", "addr add fe80::5/64 dev b0 nodad"},
         [] {
           for (const char* name : {"a0", "b0"}) {
             EXPECT_EQ(std::string("fe80::1 ") + name + " local", route_text(at("fe80::1", index(name))));
             EXPECT_EQ(std::string("fe80::1 ") + name, route_text(at("fe80::77", index(name)), "fe80::1"));
           }
           EXPECT_EQ("EINVAL", route_text(at("fe80::77")));
           EXPECT_EQ("EINVAL", route_text(at("febf::77"))) << "fe80::/10 is link-local";
           EXPECT_EQ("ENETUNREACH", route_text(at("fec0::77"))) << "and no more";
           EXPECT_EQ("fe80::5 b0", route_text(at("fe80::77"), "fe80::5")) << "the source's interface";
           EXPECT_EQ("EADDRNOTAVAIL", route_text(at("fe80::77", index("a0")), "fe80::5")) << "which this one has not";
         });
}

TEST_F(OwnNetwork, FindRoute_Ipv6Tables_GiveTheRoute) {
  within({"addr add fd00:1::1/64 dev a0 nodad", "addr add fd00:2::1/64 dev b0 nodad",
          "route add fd00:3::/64 via fd00:1::9", "route add blackhole fd00:5::/64", "route add unreachable fd00:6::/64",
          "route add prohibit fd00:7::/64"},
         [] {
           EXPECT_EQ("fd00:1::1 a0 local", route_text(at("fd00:1::1")));
           EXPECT_EQ("fd00:2::1 b0", route_text(at("fd00:2::77")));
           EXPECT_EQ("fd00:1::1 a0 via fd00:1::9", route_text(at("fd00:3::1")));
           EXPECT_EQ("fd00:2::1 a0", route_text(at("fd00:1::77"), "fd00:2::1"));
           EXPECT_EQ("EADDRNOTAVAIL", route_text(at("fd00:1::77"), "fd00:1::78")) << "a neighbour's";
           EXPECT_EQ("EINVAL", route_text(at("fd00:5::1")));
           EXPECT_EQ("EHOSTUNREACH", route_text(at("fd00:6::1")));
           EXPECT_EQ("EACCES", route_text(at("fd00:7::1")));
         });
}

// How long packets may be.

TEST_F(OwnNetwork, RouteMtu_OfEachRoute_IsItsMtu) {
  within({"link set a0 mtu 1400", "link set b0 mtu 1300", "addr add 10.1.0.1/24 dev a0", "addr add 10.1.0.2/24 dev b0",
          "addr add 10.2.0.1/24 dev b0", "route add 10.3.0.0/24 via 10.1.0.9 dev a0 mtu 900",
          "addr add fd00:1::1/64 dev a0 nodad", "addr add fe80::1/64 dev a0 nodad", "addr add fe80::1/64 dev b0 nodad"},
         [] {
           EXPECT_EQ(65535u, *route_mtu(at("127.0.0.1"))) << "an IPv4 packet has no more";
           EXPECT_EQ(65536u, *route_mtu(at("::1")));
           EXPECT_EQ(1400u, *route_mtu(at("10.1.0.77", index("a0"))));
           EXPECT_EQ(1300u, *route_mtu(at("10.1.0.77", index("b0")))) << "the interface that is asked for";
           EXPECT_EQ(1300u, *route_mtu(at("10.2.0.77")));
           EXPECT_EQ(900u, *route_mtu(at("10.3.0.1"))) << "of the route";
           EXPECT_EQ(0u, *route_mtu(at("10.99.0.1")));
           EXPECT_EQ(1400u, *route_mtu(at("fd00:1::77")));
           EXPECT_EQ(1400u, *route_mtu(at("fe80::77", index("a0"))));
           EXPECT_EQ(1300u, *route_mtu(at("fe80::77", index("b0"))));
           EXPECT_EQ(0u, *route_mtu(at("fd00:9::1")));
         });
}

TEST_F(OwnNetwork, PathMtu_OfANarrowRoute_IsThatOfTheRoute) {
  within({"addr add 10.1.0.1/24 dev a0", "route add 10.3.0.0/24 via 10.1.0.9 dev a0 mtu 900"}, [] {
    setenv("NUPA_TRANSPORT", "roce", 1);
    const auto own = core::Process::acquire();
    unsetenv("NUPA_TRANSPORT");
    ASSERT_TRUE(own) << own.error().what();
    const auto path_mtu = [&](const char* to) {
      const auto route = cm::Connections::of(**own)->find_route(gid(to), 0, nullptr);
      return route ? route->path.mtu : Mtu{};
    };
    EXPECT_EQ(Mtu::k1024, path_mtu("10.1.0.77")) << "as the port";
    EXPECT_EQ(Mtu::k512, path_mtu("10.3.0.1"));
  });
}

TEST_F(OwnNetwork, FindRoute_AnotherHostOverShmOnly_FailsWithEhostunreach) {
  within({"addr add 10.1.0.1/24 dev a0", "route add 239.0.0.0/8 dev a0"}, [] {
    setenv("NUPA_TRANSPORT", "shm", 1);
    const auto own = core::Process::acquire();
    unsetenv("NUPA_TRANSPORT");
    ASSERT_TRUE(own) << own.error().what();
    const auto there = cm::Connections::of(**own)->find_route(gid("10.1.0.77"), 0, nullptr);
    ASSERT_FALSE(there);
    EXPECT_EQ(EHOSTUNREACH, there.error().code());
    EXPECT_STREQ("no transport reaches 10.1.0.77", there.error().what());
    EXPECT_TRUE(cm::Connections::of(**own)->find_route(gid("10.1.0.1"), 0, nullptr)) << "its own";
    EXPECT_TRUE(cm::Connections::of(**own)->find_route(gid("239.9.8.1"), 0, nullptr)) << "a group";
  });
}

TEST_F(OwnNetwork, InterfaceMtu_OfSeveralInterfaces_IsTheLeast) {
  within({"link set a0 mtu 1400", "link set b0 mtu 1300"}, [] {
    const auto entry = [](uint32_t interface) {
      GidEntry made{};
      made.interface_index = interface;
      return made;
    };
    const GidEntry a = entry(index("a0")), b = entry(index("b0")), lo = entry(index("lo"));
    EXPECT_EQ(1400u, *interface_mtu({a}));
    EXPECT_EQ(1300u, *interface_mtu({a, b, lo}));
    EXPECT_EQ(1300u, *interface_mtu({b, a}));
    EXPECT_EQ(65536u, *interface_mtu({lo}));
    EXPECT_EQ(1400u, *interface_mtu({entry(0), a, entry(0x7ffffff0)})) << "those that are not there do not count";
    EXPECT_EQ(65536u, *interface_mtu({}));
  });
}

TEST_F(OwnNetwork, Mtu_NoDescriptorIsFree_FailsWithEmfile) {
  within({"link set a0 mtu 1400", "addr add 10.1.0.1/24 dev a0"}, [] {
    GidEntry entry{};
    entry.interface_index = index("a0");
    const int free = base::UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get();
    ASSERT_GE(free, 0);
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const auto limited_to = [&](int descriptors, auto ask) {
      const rlimit few{static_cast<rlim_t>(descriptors), before.rlim_max};
      EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
      const auto answer = ask();
      EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
      return answer;
    };
    const auto of_interface = [&] { return interface_mtu({entry}); };
    const auto of_route = [] { return route_mtu(at("10.1.0.77")); };
    const auto refused = limited_to(free, of_interface);
    ASSERT_FALSE(refused) << *refused;
    EXPECT_EQ(EMFILE, refused.error().code());
    const auto unknown = limited_to(free, of_route);
    ASSERT_FALSE(unknown) << *unknown;
    EXPECT_EQ(EMFILE, unknown.error().code());
    EXPECT_EQ(1400u, limited_to(free + 1, of_interface).value_or(0)) << "one descriptor is enough";
    EXPECT_EQ(1400u, limited_to(free + 1, of_route).value_or(0));
  });
}

TEST_F(OwnNetwork, FindRouteAndMtu_AfterEachCall_LeaveNoDescriptor) {
  within({"addr add 10.1.0.1/24 dev a0"}, [] {
    const size_t before = open_descriptors();
    route_text(at("10.1.0.77"), "10.1.0.1");
    route_text(at("10.1.0.77"), "10.9.0.1");
    route_text(at("10.99.0.1"));
    EXPECT_TRUE(route_mtu(at("10.1.0.77")));
    EXPECT_TRUE(route_mtu(at("10.99.0.1")));
    GidEntry entry{};
    entry.interface_index = index("a0");
    EXPECT_TRUE(interface_mtu({entry}));
    EXPECT_FALSE(UdpSocket::open_address(gid("10.9.0.1"), 0, 1 << 16));
    EXPECT_FALSE(UdpSocket::open_group(gid("239.1.1.1"), 0, {}, 1 << 16));
    EXPECT_EQ(before, open_descriptors());
  });
}

// Groups.

TEST_F(OwnNetwork, LinkLocalGroup_OnEachInterfaceOfTheDevice_IsReceived) {
  within(
      {"addr add fe80::a/64 dev a0 nodad", "addr add fe80::1a/64 dev a1 nodad", "addr add fe80::b/64 dev b0 nodad",
       "addr add fe80::1b/64 dev b1 nodad"},
      [] {
        const auto entry = [](const char* address, const char* interface) {
          GidEntry made{};
          made.gid = gid(address);
          made.interface_index = index(interface);
          return made;
        };
        const auto sender = UdpSocket::open(0, 1 << 16);
        ASSERT_TRUE(sender);
        for (const char* group : {"ff02::4791", "ff12::4791"}) {
          progress::ReceiveRight right;
          ASSERT_TRUE(right.open());
          roce::MulticastGroups groups;
          const std::vector<GidEntry> device{entry("fe80::a", "a0"), entry("10.1.0.1", "a0"), entry("fe80::b", "b0")};
          ASSERT_EQ(0, groups.attach(5, gid(group), 0, device, right)) << group;
          ASSERT_EQ(1u, groups.list().size());
          const auto heard_from = [&](const char* source, const char* interface) {
            UdpBatch batch;
            batch.begin(1, {gid(group), roce::kUdpPort, index(interface)}, gid(source), index(interface), {}, 4);
            batch.add("text", 4);
            int error = 0;
            EXPECT_EQ(0u, batch.flush(*sender, &error)) << strerror(error);
            pollfd ready{right.packets_fd(), POLLIN, 0};
            EXPECT_EQ(1, poll(&ready, 1, kSoonMs)) << group << " by " << interface;
            std::string receiver;
            for (const UdpSocket& socket : groups.list()[0].sockets) {
              std::byte buffer[16];
              UdpSocket::Received received;
              while (socket.receive(buffer, sizeof buffer, &received)) {
                char name[IF_NAMESIZE] = "?";
                receiver += if_indextoname(received.from.scope, name);
                EXPECT_EQ(gid(source), received.from.address);
                EXPECT_EQ(gid(group), received.to);
              }
            }
            return receiver;
          };
          EXPECT_EQ("a0", heard_from("fe80::1a", "a1"));
          EXPECT_EQ("b0", heard_from("fe80::1b", "b1"));
          groups.detach(5, gid(group));
          EXPECT_TRUE(groups.empty());
          EXPECT_EQ(EADDRNOTAVAIL, groups.attach(5, gid(group), 0, {}, right)) << "no interface";
          EXPECT_EQ(EADDRNOTAVAIL, groups.attach(5, gid(group), 0, {entry("10.1.0.1", "a0")}, right)) << "none of IPv6";
        }
      });
}

TEST_F(OwnNetwork, DatagramToAGroup_LeavesByTheInterfaceOfItsSource) {
  within({"addr add fd00:a::1/64 dev a0 nodad", "addr add fd00:b::1/64 dev b0 nodad"}, [] {
    const auto entry = [](const char* address, const char* interface) {
      GidEntry made{};
      made.gid = gid(address);
      made.interface_index = index(interface);
      return made;
    };
    const Gid group = gid("ff0e::4791");
    // Each arrives at the peer of one of the two interfaces; the kernel would send all of them through one interface.
    for (const bool second : {false, true}) {
      const auto receiver =
          UdpSocket::open_group(group, roce::kUdpPort, {entry("fd00::1", second ? "b1" : "a1")}, 1 << 16);
      ASSERT_TRUE(receiver) << receiver.error().what();
      auto socket = UdpSocket::open(0, 1 << 18);
      ASSERT_TRUE(socket);
      const auto port = roce::Port::open(std::move(*socket));
      ASSERT_TRUE(port);
      roce::test::RecordingHost host;
      const auto shared = std::make_unique<shm::QpShared>();
      const auto statistics = std::make_unique<shm::StatisticsShared>();
      roce::LocalEnd end;
      end.context = &host;
      host.identity().shared = shared.get();
      host.identity().statistics = statistics.get();
      host.identity().number = 0x1105;
      host.identity().type = QpType::kUd;
      end.max_datagram = 1024;
      roce::Sources sources;
      sources.gids = {entry("fd00:a::1", "a0"), entry("fd00:b::1", "b0")};
      roce::DatagramEndpoint endpoint(**port, end, sources, {});
      AddressVector vector;
      vector.is_global = true;
      vector.dgid = group;
      vector.sgid_index = second ? 1 : 0;
      vector.hop_limit = 4;
      std::byte text[8] = {};
      const core::Piece piece{text, sizeof text};
      SendWr wr;
      wr.remote_qpn = 0xffffff;
      EXPECT_EQ(endpoint.send({wr, &vector, &piece, 1, sizeof text, 0, WcStatus::kSuccess}), WcStatus::kSuccess);
      pollfd ready{receiver->fd(), POLLIN, 0};
      EXPECT_EQ(1, poll(&ready, 1, kSoonMs)) << second;
      endpoint.withdraw();
    }
  });
}

// Packets that the kernel does not send.

TEST_F(OwnNetwork, NextRefusal_PacketWasTooLong_IsNoRefusal) {
  within({"link set lo mtu 1500"}, [] {
    auto socket = UdpSocket::open(0, 1 << 16);
    auto gone = UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(socket && gone);
    const UdpAddress unused_address{gid("127.0.0.1"), gone->port(), 0};
    gone->close();
    socket->report_refusals();
    UdpBatch batch;
    int error = 0;
    const std::string text(2000, 'x');
    batch.begin(1, unused_address, gid("127.0.0.1"), 0, {}, 2000);
    batch.add(text.data(), 2000);
    EXPECT_EQ(1u, batch.flush(*socket, &error));
    EXPECT_EQ(EMSGSIZE, error);
    pollfd ready_error{socket->fd(), 0, 0};
    ASSERT_EQ(1, poll(&ready_error, 1, kSoonMs)) << "the kernel keeps the error";
    UdpSocket::Refusal refusal;
    EXPECT_FALSE(socket->next_refusal(&refusal));
    EXPECT_EQ(0, poll(&ready_error, 1, 0)) << "the error was read";
    // Behind it a refusal is found.
    batch.begin(1, unused_address, gid("127.0.0.1"), 0, {}, 2000);
    batch.add(text.data(), 2000);
    batch.begin(2, unused_address, gid("127.0.0.1"), 0, {}, 4);
    batch.add("lost", 4);
    batch.flush(*socket, &error);
    ASSERT_EQ(1, poll(&ready_error, 1, kSoonMs));
    ASSERT_TRUE(socket->next_refusal(&refusal));
    EXPECT_EQ(unused_address.port, refusal.to.port);
  });
}

TEST_F(OwnNetwork, Flush_ExclusiveFlowLabelOnTheHost_SendsWithoutLabels) {
  within({"addr add fd00:1::1/64 dev a0 nodad"}, [] {
    const auto from = UdpSocket::open(0, 1 << 16), to = UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(from && to);
    to->report_more();
    const auto pass = [&] {
      UdpBatch batch;
      for (const uint64_t place : {1, 2}) {
        batch.begin(place, {gid("::1"), to->port(), 0}, gid("::1"), 0, {0x20, 0, 0x12345}, 4);
        batch.add("text", 4);
      }
      int error = 0;
      EXPECT_EQ(0u, batch.flush(*from, &error)) << strerror(error);
      std::vector<uint32_t> labels;
      for (int i = 0; i < 2; ++i) {
        std::byte buffer[16];
        UdpSocket::Received received;
        pollfd ready{to->fd(), POLLIN, 0};
        if (poll(&ready, 1, kSoonMs) != 1 || !to->receive(buffer, sizeof buffer, &received)) break;
        EXPECT_EQ(4u, received.length);
        EXPECT_EQ(0x20, received.traffic_class & 0xfc) << "the other fields stay";
        labels.push_back(received.flow_label);
      }
      return labels;
    };
    EXPECT_EQ((std::vector<uint32_t>{0x12345, 0x12345}), pass());
    // Another program takes one to itself (IPV6_FLOWLABEL_MGR, man 7 ipv6).
    const base::UniqueFd other(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    // struct in6_flowlabel_req of <linux/in6.h>, which does not go together with <netinet/in.h>.
    struct {
      Gid destination = gid("::1");
      uint32_t label = htonl(0x777);
      uint8_t action = 0;  // IPV6_FL_A_GET
      uint8_t share = 1;   // IPV6_FL_S_EXCL
      uint16_t flags = 1;  // IPV6_FL_F_CREATE
      uint16_t expires = 0;
      uint16_t linger = 0;
      uint32_t padding = 0;
    } request;
    static_assert(sizeof request == 32);
    constexpr int kFlowLabelManager = 32;  // IPV6_FLOWLABEL_MGR
    ASSERT_EQ(0, setsockopt(other.get(), IPPROTO_IPV6, kFlowLabelManager, &request, sizeof request));
    const std::vector<uint32_t> labels = pass();
    ASSERT_EQ(2u, labels.size());
    for (const uint32_t label : labels) EXPECT_NE(0x12345u, label);
  });
}

}  // namespace
}  // namespace nupa::net::own_network_test
