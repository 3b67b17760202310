// SPDX-License-Identifier: Apache-2.0
// Ways through networks that the tests make: interfaces, addresses, routes and their limits, in a network namespace of
// the thread that runs the test.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/gid.h"
#include "base/unique_fd.h"
#include "cm/connections.h"
#include "net/find_route.h"
#include "net/route.h"
#include "net/udp_socket.h"
#include "../roce/engine_fixture.h"
#include "transport/roce/datagram_endpoint.h"
#include "transport/roce/endpoint.h"
#include "transport/roce/port/groups.h"
#include "transport/roce/port/port.h"
#include "transport/roce/roce_transport.h"
#include "transport/roce/wire/wire.h"

namespace nupa::net::own_network_test {
namespace {

constexpr int kSoonMs = 20'000;

Gid gid(const char* text) {
  Gid gid;
  const std::string mapped = std::strchr(text, ':') == nullptr ? std::string("::ffff:") + text : text;
  EXPECT_EQ(1, inet_pton(AF_INET6, mapped.c_str(), gid.raw.data())) << text;
  return gid;
}
UdpAddress at(const char* text, uint32_t scope = 0) { return {gid(text), 9, scope}; }

/// What find_route() says, in words: "SOURCE INTERFACE [local] [via GATEWAY]", or the error's name.
std::string way(const UdpAddress& to, const char* from = nullptr) {
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

/// The kernel notes a little later that the other end is there, too; until then there may be no routes.
bool is_running_soon(const char* name) {
  const base::UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, name, IF_NAMESIZE - 1);
  for (int waited_ms = 0; waited_ms < kSoonMs; ++waited_ms) {
    if (ioctl(fd.get(), SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_RUNNING) != 0) return true;
    usleep(1000);
  }
  return false;
}

/// So many IPv6 addresses are there as far as routes know, which is a little after they were given.
bool has_ipv6_addresses_soon(ptrdiff_t count) {
  return count == 0 ||
         std::system(("for i in $(seq 2000); do "
                      "[ $(ip -6 route show table local | grep -v '^local ::1 ' | grep -c '^local ') -ge " +
                      std::to_string(count) + " ] && exit 0; sleep 0.01; done; exit 1")
                         .c_str()) == 0;
}

/// Two interfaces, a0 and b0, whose other ends are a1 and b1.
class OwnNetwork : public ::testing::Test {
 protected:
  /// Runs `body` in a network namespace where `commands` of ip(8) have been given.
  void within(const std::vector<std::string>& commands, const std::function<void()>& body) {
    bool made = false;
    std::thread thread([&] {
      if (unshare(CLONE_NEWNET) != 0) return;
      if (std::system("exec 2>/dev/null; ip link set lo up && ip link add a0 type veth peer name a1 && "
                      "ip link add b0 type veth peer name b1 && "
                      "for i in a0 a1 b0 b1; do ip link set $i addrgenmode none; ip link set $i up || exit 1; done") !=
          0)
        return;
      made = true;
      const bool needs_ipv6 = std::any_of(commands.begin(), commands.end(), is_of_ipv6);
      if (needs_ipv6 && std::system("ip -6 addr show dev lo | grep -q ::1") != 0) GTEST_SKIP() << "no IPv6 here";
      for (const char* name : {"a0", "a1", "b0", "b1"}) ASSERT_TRUE(is_running_soon(name)) << name;
      for (const std::string& command : commands) ASSERT_EQ(0, std::system(("ip " + command).c_str())) << command;
      ASSERT_TRUE(
          has_ipv6_addresses_soon(std::count_if(commands.begin(), commands.end(), [](const std::string& command) {
            return command.starts_with("addr add") && is_of_ipv6(command);
          })));
      body();
    });
    thread.join();
    if (!made) GTEST_SKIP() << "no network namespace with veth interfaces can be made";
  }
  static bool is_of_ipv6(const std::string& command) { return command.find(':') != std::string::npos; }
  static uint32_t index(const char* name) { return if_nametoindex(name); }
};

// Which way packets take.

TEST_F(OwnNetwork, RoutesAreThoseOfTheTables) {
  within({"addr add 10.1.0.1/24 dev a0", "addr add 10.2.0.1/24 dev b0", "addr add 10.2.0.7/32 dev b0",
          "route add 10.3.0.0/24 via 10.1.0.9", "route add 10.4.0.0/24 via inet6 fe80::9 dev b0",
          "route add 10.9.0.0/24 dev b0 src 10.2.0.7"},
         [] {
           EXPECT_EQ("10.1.0.1 a0 local", way(at("10.1.0.1"))) << "the interface that has it, not the loopback";
           EXPECT_EQ("10.2.0.7 b0 local", way(at("10.2.0.7")));
           EXPECT_EQ("10.1.0.1 a0", way(at("10.1.0.77")));
           EXPECT_EQ("10.2.0.1 b0", way(at("10.2.0.77")));
           EXPECT_EQ("10.1.0.1 a0 via 10.1.0.9", way(at("10.3.0.1")));
           EXPECT_EQ("10.2.0.1 b0 via fe80::9", way(at("10.4.0.1")));
           EXPECT_EQ("10.2.0.7 b0", way(at("10.9.0.1"))) << "the route's own source";
           EXPECT_EQ("ENETUNREACH", way(at("10.99.0.1")));
           EXPECT_EQ("EACCES", way(at("10.1.0.255"))) << "a network's broadcast address";
         });
}

TEST_F(OwnNetwork, RoutesThatSayNoAreErrors) {
  within({"addr add 10.1.0.1/24 dev a0", "route add blackhole 10.5.0.0/24", "route add unreachable 10.6.0.0/24",
          "route add prohibit 10.7.0.0/24", "route add throw 10.8.0.0/24"},
         [] {
           EXPECT_EQ("EINVAL", way(at("10.5.0.1")));
           EXPECT_EQ("EHOSTUNREACH", way(at("10.6.0.1")));
           EXPECT_EQ("EACCES", way(at("10.7.0.1")));
           EXPECT_EQ("ENETUNREACH", way(at("10.8.0.1")));
         });
}

TEST_F(OwnNetwork, TheSourceThatIsAskedForChoosesAndStays) {
  within({"addr add 10.1.0.1/24 dev a0", "addr add 10.2.0.1/24 dev b0", "rule add from 10.2.0.1 table 77",
          "route add default via 10.2.0.254 dev b0 table 77"},
         [] {
           EXPECT_EQ("ENETUNREACH", way(at("10.99.0.1")));
           EXPECT_EQ("ENETUNREACH", way(at("10.99.0.1"), "10.1.0.1"));
           EXPECT_EQ("10.2.0.1 b0 via 10.2.0.254", way(at("10.99.0.1"), "10.2.0.1")) << "by a rule for this source";
           EXPECT_EQ("10.1.0.1 a0", way(at("10.1.0.77"), "10.1.0.1"));
           EXPECT_EQ("10.1.0.1 b0", way(at("10.2.0.77"), "10.1.0.1")) << "though it leaves by another interface";
           EXPECT_EQ("10.1.0.1 b0", way(at("10.2.0.77", index("b0")), "10.1.0.1"));
           EXPECT_EQ("10.1.0.1 b0 local", way(at("10.2.0.1"), "10.1.0.1"));
           EXPECT_EQ("EADDRNOTAVAIL", way(at("10.1.0.77"), "10.1.0.78")) << "a neighbour's";
           EXPECT_EQ("EADDRNOTAVAIL", way(at("10.1.0.77"), "10.1.0.255"));
         });
}

TEST_F(OwnNetwork, TheInterfaceThatIsAskedForIsTaken) {
  within({"addr add 10.1.0.1/24 dev a0", "addr add 10.1.0.2/24 dev b0"}, [] {
    EXPECT_EQ("10.1.0.1 a0", way(at("10.1.0.77", index("a0"))));
    EXPECT_EQ("10.1.0.2 b0", way(at("10.1.0.77", index("b0"))));
  });
}

TEST_F(OwnNetwork, WithoutAnAddressThereIsNoWay) {
  within({"route add 10.1.0.0/24 dev a0"}, [] { EXPECT_EQ("EADDRNOTAVAIL", way(at("10.1.0.77"))); });
}

TEST_F(OwnNetwork, LinkLocalAddressesAreOfTheInterfaceThatIsAskedFor) {
  within({"addr add fe80::1/64 dev a0 nodad", "addr add fe80::1/64 dev b0 nodad", "addr add fe80::5/64 dev b0 nodad"},
         [] {
           for (const char* name : {"a0", "b0"}) {
             EXPECT_EQ(std::string("fe80::1 ") + name + " local", way(at("fe80::1", index(name))));
             EXPECT_EQ(std::string("fe80::1 ") + name, way(at("fe80::77", index(name)), "fe80::1"));
           }
           EXPECT_EQ("EINVAL", way(at("fe80::77")));
           EXPECT_EQ("EINVAL", way(at("febf::77"))) << "fe80::/10 is link-local";
           EXPECT_EQ("ENETUNREACH", way(at("fec0::77"))) << "and no more";
           EXPECT_EQ("fe80::5 b0", way(at("fe80::77"), "fe80::5")) << "the source's interface";
           EXPECT_EQ("EADDRNOTAVAIL", way(at("fe80::77", index("a0")), "fe80::5")) << "which this one has not";
         });
}

TEST_F(OwnNetwork, Ipv6RoutesAreThoseOfTheTables) {
  within({"addr add fd00:1::1/64 dev a0 nodad", "addr add fd00:2::1/64 dev b0 nodad",
          "route add fd00:3::/64 via fd00:1::9", "route add blackhole fd00:5::/64", "route add unreachable fd00:6::/64",
          "route add prohibit fd00:7::/64"},
         [] {
           EXPECT_EQ("fd00:1::1 a0 local", way(at("fd00:1::1")));
           EXPECT_EQ("fd00:2::1 b0", way(at("fd00:2::77")));
           EXPECT_EQ("fd00:1::1 a0 via fd00:1::9", way(at("fd00:3::1")));
           EXPECT_EQ("fd00:2::1 a0", way(at("fd00:1::77"), "fd00:2::1"));
           EXPECT_EQ("EADDRNOTAVAIL", way(at("fd00:1::77"), "fd00:1::78")) << "a neighbour's";
           EXPECT_EQ("EINVAL", way(at("fd00:5::1")));
           EXPECT_EQ("EHOSTUNREACH", way(at("fd00:6::1")));
           EXPECT_EQ("EACCES", way(at("fd00:7::1")));
         });
}

// How long packets may be.

TEST_F(OwnNetwork, MtuIsTheWays) {
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

TEST_F(OwnNetwork, ConnectionOverANarrowRoute_HasTheRoutesPathMtu) {
  within({"addr add 10.1.0.1/24 dev a0", "route add 10.3.0.0/24 via 10.1.0.9 dev a0 mtu 900"}, [] {
    setenv("NUPA_TRANSPORT", "roce", 1);
    const auto own = core::Process::acquire();
    unsetenv("NUPA_TRANSPORT");
    ASSERT_TRUE(own) << own.error().what();
    const auto path_mtu = [&](const char* to) {
      const auto route = cm::Connections::of(**own)->find_route(gid(to), 0, nullptr);
      return route ? route->path.mtu : 0;
    };
    EXPECT_EQ(3, path_mtu("10.1.0.77")) << "1024 bytes, as the port";
    EXPECT_EQ(2, path_mtu("10.3.0.1")) << "512 bytes";
  });
}

TEST_F(OwnNetwork, RouteToAnotherHost_OverSharedMemoryAlone_IsRefused) {
  within({"addr add 10.1.0.1/24 dev a0", "route add 239.0.0.0/8 dev a0"}, [] {
    setenv("NUPA_TRANSPORT", "shm", 1);
    const auto own = core::Process::acquire();
    unsetenv("NUPA_TRANSPORT");
    ASSERT_TRUE(own) << own.error().what();
    const auto there = cm::Connections::of(**own)->find_route(gid("10.1.0.77"), 0, nullptr);
    ASSERT_FALSE(there);
    EXPECT_EQ(EHOSTUNREACH, there.error().code());
    EXPECT_STREQ("no transport leads to 10.1.0.77", there.error().what());
    EXPECT_TRUE(cm::Connections::of(**own)->find_route(gid("10.1.0.1"), 0, nullptr)) << "its own";
    EXPECT_TRUE(cm::Connections::of(**own)->find_route(gid("239.9.8.1"), 0, nullptr)) << "a group";
  });
}

TEST_F(OwnNetwork, MtuOfInterfacesIsTheLeast) {
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

TEST_F(OwnNetwork, MtuWithoutAFreeDescriptor_IsAnErrorAndNoGuess) {
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

TEST_F(OwnNetwork, QuestionsLeaveNoDescriptor) {
  within({"addr add 10.1.0.1/24 dev a0"}, [] {
    const size_t before = open_descriptors();
    way(at("10.1.0.77"), "10.1.0.1");
    way(at("10.1.0.77"), "10.9.0.1");
    way(at("10.99.0.1"));
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

TEST_F(OwnNetwork, GroupsOfLinkLocalScope_AreHeardOnEachInterfaceOfTheDevice) {
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
          roce::Groups groups;
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
            std::string heard;
            for (const UdpSocket& socket : groups.list()[0].sockets) {
              std::byte buffer[16];
              UdpSocket::Received received;
              while (socket.receive(buffer, sizeof buffer, &received)) {
                char name[IF_NAMESIZE] = "?";
                heard += if_indextoname(received.from.scope, name);
                EXPECT_EQ(gid(source), received.from.address);
                EXPECT_EQ(gid(group), received.to);
              }
            }
            return heard;
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

TEST_F(OwnNetwork, DatagramsToAGroup_LeaveThroughTheInterfaceOfTheirSource) {
  within({"addr add fd00:a::1/64 dev a0 nodad", "addr add fd00:b::1/64 dev b0 nodad"}, [] {
    const auto entry = [](const char* address, const char* interface) {
      GidEntry made{};
      made.gid = gid(address);
      made.interface_index = index(interface);
      return made;
    };
    const Gid group = gid("ff0e::4791");
    // Each is heard at the other end of one of the two; the kernel would send all of them through one interface.
    for (const bool second : {false, true}) {
      const auto heard =
          UdpSocket::open_group(group, roce::kUdpPort, {entry("fd00::1", second ? "b1" : "a1")}, 1 << 16);
      ASSERT_TRUE(heard) << heard.error().what();
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
      pollfd ready{heard->fd(), POLLIN, 0};
      EXPECT_EQ(1, poll(&ready, 1, kSoonMs)) << second;
      endpoint.withdraw();
    }
  });
}

// Management datagrams. The ports are this network's: nobody else has the one where standard peers look.

/// A process without anything but a transport.
class BareProcess final : public core::ProcessContext {
 public:
  host::Node& node() override { std::abort(); }
  host::PeerMemories& memories() override { std::abort(); }
  const std::vector<Gid>& host_addresses() const override { return addresses_; }
  bool host_is_covered(const core::Transport&) const override { return false; }
  void count_thread(bool) override {}
  bool has_queue_pair(uint32_t) const override { return true; }

 private:
  const std::vector<Gid> addresses_;
};

class OwnNetworkMads : public OwnNetwork {
 protected:
  /// Sends one from `socket` to the carrier of slot 1. Returns it as the carrier shows it, and what comes back.
  static std::pair<core::MadDatagram, core::MadDatagram> exchange(bool standard, bool from_nupa) {
    core::MadDatagram shown, answer;
    roce::WireSettings settings;
    settings.standard = standard;
    BareProcess process;
    roce::RoceTransport transport(settings);
    EXPECT_EQ(transport.reserve(shm::kMinSlot), core::Transport::Slot::kFine);
    EXPECT_TRUE(transport.open(process));
    core::MadCarrier& carrier = *transport.mads();
    auto socket = roce::ManagementSocket::open(0, from_nupa);
    const base::UniqueFd arrived(eventfd(0, EFD_CLOEXEC));
    EXPECT_TRUE(carrier.listen([&](const core::MadDatagram& datagram) {
      shown = datagram;
      eventfd_write(arrived.get(), 1);
    }));
    core::MadDatagram question;
    question.bytes.fill(std::byte{7});
    question.local = gid("127.0.0.1");
    question.remote = {gid("127.0.0.1"), roce::kUdpPort};
    socket->send(question);
    EXPECT_TRUE(is_readable(arrived.get()));
    carrier.unlisten();
    question.remote.port = shown.from_port;
    EXPECT_TRUE(carrier.send(question));
    EXPECT_TRUE(is_readable(socket->fd()));
    socket->receive([&](const core::MadDatagram& datagram) { answer = datagram; });
    return {shown, answer};
  }
  static bool is_readable(int fd) {
    pollfd one{fd, POLLIN, 0};
    return poll(&one, 1, kSoonMs) == 1;
  }
};

TEST_F(OwnNetworkMads, ProcessOfNupa_IsAnsweredAtItsOwnPort) {
  within({}, [] {
    const auto [shown, answer] = exchange(false, true);
    EXPECT_TRUE(shown.of_nupa);
    EXPECT_NE(roce::kUdpPort, shown.from_port);
    EXPECT_EQ(shown.from_port, shown.remote.port);
    EXPECT_TRUE(answer.of_nupa);
  });
}

TEST_F(OwnNetworkMads, StandardPeer_IsAnsweredAtTheStandardsPort) {
  within({}, [] {
    const auto [shown, answer] = exchange(false, false);
    EXPECT_FALSE(shown.of_nupa);
    EXPECT_EQ(roce::kUdpPort, shown.remote.port);
    EXPECT_TRUE(answer.of_nupa);
  });
}

TEST_F(OwnNetworkMads, WhereOnlyTheStandardIsSpoken_NupasProcessesAreStandardPeers) {
  within({}, [] {
    const auto [shown, answer] = exchange(true, true);
    EXPECT_FALSE(shown.of_nupa);
    EXPECT_EQ(roce::kUdpPort, shown.remote.port);
    EXPECT_NE(roce::kUdpPort, shown.from_port);
    EXPECT_FALSE(answer.of_nupa) << "it is sent without NUPA's mark";
  });
}

TEST_F(OwnNetworkMads, OneProcessReceivesForTheHost) {
  within({}, [] {
    BareProcess process;
    roce::RoceTransport first({}), second({});
    ASSERT_EQ(second.reserve(shm::kMinSlot + 1), core::Transport::Slot::kFine);
    ASSERT_TRUE(second.open(process));
    EXPECT_FALSE(second.receives_for_host());
    EXPECT_TRUE(second.open_host_socket());
    ASSERT_EQ(first.reserve(shm::kMinSlot), core::Transport::Slot::kFine);
    ASSERT_TRUE(first.open(process));
    EXPECT_TRUE(first.receives_for_host());
    const auto refused = second.open_host_socket();
    ASSERT_FALSE(refused);
    EXPECT_EQ(EADDRINUSE, refused.error().code());
  });
}

// Packets that the kernel does not send.

TEST_F(OwnNetwork, APacketThatIsTooLongIsNoRefusal) {
  within({"link set lo mtu 1500"}, [] {
    auto socket = UdpSocket::open(0, 1 << 16);
    auto gone = UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(socket && gone);
    const UdpAddress nobody{gid("127.0.0.1"), gone->port(), 0};
    gone->close();
    socket->tell_refusals();
    UdpBatch batch;
    int error = 0;
    const std::string text(2000, 'x');
    batch.begin(1, nobody, gid("127.0.0.1"), 0, {}, 2000);
    batch.add(text.data(), 2000);
    EXPECT_EQ(1u, batch.flush(*socket, &error));
    EXPECT_EQ(EMSGSIZE, error);
    pollfd told{socket->fd(), 0, 0};
    ASSERT_EQ(1, poll(&told, 1, kSoonMs)) << "the kernel keeps the error";
    UdpSocket::Refusal refusal;
    EXPECT_FALSE(socket->next_refusal(&refusal));
    EXPECT_EQ(0, poll(&told, 1, 0)) << "and has told it";
    // Behind it a refusal is found.
    batch.begin(1, nobody, gid("127.0.0.1"), 0, {}, 2000);
    batch.add(text.data(), 2000);
    batch.begin(2, nobody, gid("127.0.0.1"), 0, {}, 4);
    batch.add("lost", 4);
    batch.flush(*socket, &error);
    ASSERT_EQ(1, poll(&told, 1, kSoonMs));
    ASSERT_TRUE(socket->next_refusal(&refusal));
    EXPECT_EQ(nobody.port, refusal.to.port);
  });
}

TEST_F(OwnNetwork, WithAnExclusiveFlowLabelOnTheHost_PacketsLeaveWithoutLabels) {
  within({"addr add fd00:1::1/64 dev a0 nodad"}, [] {
    const auto from = UdpSocket::open(0, 1 << 16), to = UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(from && to);
    to->tell_more();
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

// Sockets without room. What leaves to an address whose hardware address is not known yet takes room of its socket
// until that is known.

constexpr uint32_t kFullBytes = 1400;

class FullSockets : public OwnNetwork {
 protected:
  /// Each socket has room for one message to 10.1.0.77, which open_way() lets out.
  void within_full(const std::function<void()>& body) {
    within({"addr add 10.1.0.1/24 dev a0", "link set a0 gso_max_segs 1",
            "ntable change name arp_cache dev a0 retrans 600000"},
           body);
  }
  static void open_way() {
    EXPECT_EQ(0, std::system("ip neigh replace 10.1.0.77 lladdr 02:00:00:00:00:77 dev a0 nud permanent"));
  }
  static void leave_room_for_one(const UdpSocket& socket) {
    constexpr int kLeast = 1;
    ASSERT_EQ(0, setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &kLeast, sizeof kLeast));
  }

  /// Reads what comes out of a0.
  class Wire {
   public:
    Wire() : fd_(socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_IP))) {
      sockaddr_ll address{};
      address.sll_family = AF_PACKET;
      address.sll_protocol = htons(ETH_P_IP);
      address.sll_ifindex = static_cast<int>(index("a1"));
      EXPECT_EQ(0, bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
    }
    /// The UDP payloads since the last call, of our own datagrams.
    std::vector<std::string> take() {
      constexpr size_t kHeaders = 20 + 8;
      std::vector<std::string> came;
      std::string packet(2048, '\0');
      for (ssize_t length; (length = recv(fd_.get(), packet.data(), packet.size(), 0)) >= 0;)
        if (static_cast<size_t>(length) > kHeaders && packet[9] == IPPROTO_UDP)
          came.push_back(packet.substr(kHeaders, static_cast<size_t>(length) - kHeaders));
      return came;
    }
    /// Until something is there, for a millisecond at most: what is awaited may need the caller's next turn.
    void wait() const {
      pollfd arrived{fd_.get(), POLLIN, 0};
      poll(&arrived, 1, 1);
    }

   private:
    base::UniqueFd fd_;
  };
};

TEST_F(FullSockets, MessagesWithoutRoom_AreKeptAndLeaveInOrder) {
  within_full([] {
    const auto from = UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(from);
    leave_room_for_one(*from);
    Wire wire;
    UdpBatch batch;
    UdpBacklog backlog;
    int error = 0;
    constexpr uint64_t kMany = UdpBatch::kMaxMessages;
    std::vector<std::string> texts;
    for (uint64_t i = 0; i < 2 * kMany; ++i) texts.emplace_back(kFullBytes, static_cast<char>('!' + i));
    for (uint64_t i = 0; i < 2 * kMany; ++i) {
      batch.begin(i + 1, at("10.1.0.77"), gid("10.1.0.1"), 0, {}, kFullBytes);
      batch.add(texts[i].data(), kFullBytes / 2);
      batch.add(texts[i].data(), kFullBytes / 2);  // the same bytes again, as another part
      if (batch.has_room(2) && i + 1 != 2 * kMany) continue;
      EXPECT_EQ(0u, batch.flush(*from, &error, &backlog));
    }
    EXPECT_FALSE(backlog.empty());
    uint32_t lost = 0;
    EXPECT_FALSE(backlog.flush(*from, &lost, &error)) << "there is no room";
    std::vector<std::string> sent = texts;
    for (std::string& text : texts) text.assign(kFullBytes, '?');  // the caller's memory is its own again
    open_way();
    // There is room, and others were before.
    sent.emplace_back(kFullBytes, 'z');
    batch.begin(1, at("10.1.0.77"), gid("10.1.0.1"), 0, {}, kFullBytes);
    batch.add(sent.back().data(), kFullBytes);
    EXPECT_EQ(0u, batch.flush(*from, &error, &backlog));
    std::vector<std::string> came;
    for (int waited_ms = 0; came.size() < sent.size() && waited_ms < kSoonMs; ++waited_ms) {
      backlog.flush(*from, &lost, &error);
      for (std::string& text : wire.take()) came.push_back(std::move(text));
      if (came.size() < sent.size()) wire.wait();
    }
    EXPECT_EQ(came, sent);
    EXPECT_TRUE(backlog.empty());
    EXPECT_EQ(0u, lost);
  });
}

TEST_F(FullSockets, MessagesWithoutRoomAndWithoutABacklog_AreLostAtOnce) {
  within_full([] {
    const auto from = UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(from);
    leave_room_for_one(*from);
    UdpBatch batch;
    const std::string text(kFullBytes, 'x');
    for (uint64_t place = 1; place <= UdpBatch::kMaxMessages; ++place) {
      batch.begin(place, at("10.1.0.77"), gid("10.1.0.1"), 0, {}, kFullBytes);
      batch.add(text.data(), kFullBytes);
    }
    int error = 0;
    EXPECT_GT(batch.flush(*from, &error), UdpBatch::kMaxMessages / 2);
    EXPECT_EQ(EAGAIN, error);
    EXPECT_TRUE(batch.empty());
  });
}

TEST_F(FullSockets, BacklogThatIsFull_TakesNothingMore) {
  within_full([] {
    const auto from = UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(from);
    leave_room_for_one(*from);
    UdpBacklog backlog;
    UdpBatch batch;
    const std::string text(kFullBytes, 'x');
    int error = 0;
    uint32_t lost = 0;
    uint32_t messages = 0;
    for (; lost == 0 && messages < UdpBacklog::kMostBytes; ++messages) {
      batch.begin(1, at("10.1.0.77"), gid("10.1.0.1"), 0, {}, kFullBytes);
      batch.add(text.data(), kFullBytes);
      lost = batch.flush(*from, &error, &backlog);
    }
    EXPECT_EQ(1u, lost);
    EXPECT_LE(messages, UdpBacklog::kMostBytes / kFullBytes + 8);
  });
}

/// A queue pair whose packets leave to 10.1.0.77, and the port of its process, which has two sockets.
class FullPort : public FullSockets {
 protected:
  static constexpr uint32_t kNumber = shm::number_of(1, 5), kPeer = shm::number_of(2, 7);

  void open_port() {
    auto socket = UdpSocket::open(0, 1 << 18);
    ASSERT_TRUE(socket);
    auto opened = roce::Port::open(std::move(*socket), 2);
    ASSERT_TRUE(opened);
    port = std::move(*opened);
    for (const UdpSocket& each : port->sockets()) leave_room_for_one(each);
    shared.state.store(shm::pack_state(1, QpState::kRts));
    host.identity().shared = &shared;
    host.identity().statistics = &block;
    host.identity().number = kNumber;
    host.identity().cap = {16, 16, 2, 2, 64};
    end.context = &host;
    end.max_datagram = kFullBytes;
  }
  /// The packets that have come out, by their numbers.
  ::testing::AssertionResult psns_come(Wire& wire, const std::vector<uint32_t>& wanted) {
    std::vector<uint32_t> came;
    for (int waited_ms = 0; came.size() < wanted.size() && waited_ms < kSoonMs; ++waited_ms) {
      port->poll();
      for (const std::string& bytes : wire.take())
        came.push_back(roce::name_in(reinterpret_cast<const std::byte*>(bytes.data())).psn);
      if (came.size() < wanted.size()) wire.wait();
    }
    if (came == wanted) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << ::testing::PrintToString(came);
  }
  /// By the second socket.
  bool others_leave() {
    auto far = UdpSocket::open(0, 1 << 16);
    if (!far) return false;
    roce::Destination destination;
    destination.place = 1;
    destination.to = {gid("10.1.0.1"), far->port(), 0};
    destination.from = gid("10.1.0.1");
    destination.socket = 1;
    roce::Packet packet;
    packet.opcode = roce::opcode_of(roce::Service::kRc, roce::Operation::kAcknowledge);
    roce::Burst* const burst = port->burst();
    burst->aim(&destination);
    const bool taken = burst->send(0, packet, nullptr, 0) == roce::Sent::kYes;
    burst->flush();
    std::byte buffer[128];
    UdpSocket::Received received;
    return taken && far->receive(buffer, sizeof buffer, &received);
  }

  std::unique_ptr<roce::Port> port;
  shm::QpShared shared{};
  shm::StatisticsShared block{};
  roce::test::RecordingHost host;
  roce::LocalEnd end;
};

TEST_F(FullPort, PacketsOfAConnection_LeaveWhenThereIsRoomWithoutATimeout) {
  within_full([this] {
    open_port();
    end.rails = {{gid("10.1.0.1"), 0, 50'000, 0}};
    QpAttr attr;
    attr.dest_qp_num = kPeer;
    attr.rq_psn = roce::test::kFirstPsn;
    attr.path_mtu = 5;
    attr.timeout = 22;  // 17 s
    attr.retry_cnt = attr.rnr_retry = 7;
    roce::ConnectedEndpoint endpoint(*port, end, attr, gid("10.1.0.77"), {});
    endpoint.set_attributes(attr);
    endpoint.start(roce::test::kFirstPsn);
    Wire wire;
    const auto post = [&] {
      const Sge sge{roce::test::kBase, 1024, roce::test::kKey};
      SendWr wr;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      endpoint.post({wr, nullptr, nullptr, 0, 1024, 0, WcStatus::kSuccess});
      endpoint.send();
    };
    constexpr uint32_t kMany = 8;
    for (uint32_t i = 0; i < kMany; ++i) post();
    EXPECT_TRUE(others_leave()) << "what leaves by another socket is not held up";
    EXPECT_LE(port->wanted_at(), base::now_ns() + 1'000'000) << "room is looked for soon";
    EXPECT_LE(endpoint.deadline(), base::now_ns() + 1'000'000);
    open_way();
    std::vector<uint32_t> wanted;
    for (uint32_t i = 0; i < kMany; ++i) wanted.push_back(roce::test::kFirstPsn + i);
    EXPECT_TRUE(psns_come(wire, wanted));
    const auto* const shown = reinterpret_cast<const roce::Statistics*>(block.bytes);
    EXPECT_EQ(0u, shown->resent_timeout + shown->resent_selective + shown->resent_sequence);
    endpoint.withdraw();
  });
}

TEST_F(FullPort, QueuePairsThatAreHeldUp_HaveTurns) {
  within_full([this] {
    open_port();
    roce::SendBacklog backlog(port->sockets(), [](int64_t) {});
    constexpr int64_t kTime = 1'000'000;
    const int64_t first = backlog.turn(kTime);
    const int64_t second = backlog.turn(kTime);
    EXPECT_GE(first, kTime);
    EXPECT_GT(second, first);
    EXPECT_GT(backlog.turn(kTime), second) << "the first one again";
    EXPECT_EQ(backlog.turn(2 * kTime), 2 * kTime) << "nobody was held up for a while";

    end.rails = {{gid("10.1.0.1"), 0, 50'000, 0}};
    QpAttr attr;
    attr.dest_qp_num = kPeer;
    attr.path_mtu = 5;
    roce::ConnectedEndpoint endpoint(*port, end, attr, gid("10.1.0.77"), {});
    endpoint.start(roce::test::kFirstPsn);
    const Sge sge{roce::test::kBase, 1024, roce::test::kKey};
    SendWr wr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    int64_t turn = 0;
    for (int i = 0; i < 12; ++i) {
      endpoint.post({wr, nullptr, nullptr, 0, 1024, 0, WcStatus::kSuccess});
      endpoint.send();
      const int64_t before = std::exchange(turn, endpoint.deadline());
      const bool has_come = before <= base::now_ns();
      if (has_come || i < 4) continue;
      EXPECT_EQ(turn, before) << "it stays where it is in line";
    }
    endpoint.withdraw();
  });
}

TEST_F(FullPort, AnswersOfAQueuePairThatStops_StandBehindTheOthers) {
  within_full([this] {
    open_port();
    end.rails = {{gid("10.1.0.1"), 0, 50'000, 0}};
    host.receives.assign(8, 2048);
    QpAttr attr;
    attr.dest_qp_num = kPeer;
    attr.rq_psn = roce::test::kFirstPsn;
    attr.path_mtu = 3;
    roce::ConnectedEndpoint endpoint(*port, end, attr, gid("10.1.0.77"), {});
    Wire wire;
    // Each answer that leaves takes room, until there is none.
    UdpSocket::Received from;
    from.from = {gid("10.1.0.77"), roce::Port::port_of_slot(2), 0};
    from.to = gid("10.1.0.1");
    constexpr uint32_t kMany = 64;
    const std::vector<std::byte> payload(8);
    host.receives.assign(kMany, 2048);
    for (uint32_t i = 0; i < kMany; ++i) {
      roce::Packet packet;
      packet.opcode = roce::opcode_of(roce::Service::kRc, roce::Operation::kSendOnly);
      packet.dest_qpn = kNumber;
      packet.psn = roce::test::kFirstPsn + i;
      packet.ack_request = true;
      packet.payload = payload.data();
      packet.payload_length = static_cast<uint32_t>(payload.size());
      endpoint.deliver(packet, from, base::now_ns());
      endpoint.transmit(base::now_ns(), *port->burst(), true);
      port->burst()->flush();
    }
    EXPECT_TRUE(endpoint.owes_answers()) << "the socket is full";
    endpoint.stop();
    EXPECT_FALSE(endpoint.owes_answers());
    endpoint.withdraw();
    open_way();
    const uint32_t last = roce::test::kFirstPsn + kMany - 1;
    bool came = false;
    for (int waited_ms = 0; !came && waited_ms < kSoonMs; ++waited_ms) {
      port->poll();
      for (const std::string& bytes : wire.take())
        came = came || roce::name_in(reinterpret_cast<const std::byte*>(bytes.data())).psn == last;
      if (!came) wire.wait();
    }
    EXPECT_TRUE(came);
  });
}

TEST_F(FullPort, DatagramWithoutRoom_IsSentWhenItIsOfferedAgain) {
  within_full([this] {
    open_port();
    host.identity().type = QpType::kUd;
    roce::Sources sources;
    sources.gids = {{gid("10.1.0.1"), 0}};
    roce::DatagramEndpoint endpoint(*port, end, sources, {});
    Wire wire;
    AddressVector vector;
    vector.dgid = gid("10.1.0.77");
    vector.is_global = true;
    const std::string text(1024, 'x');
    const core::Piece piece{reinterpret_cast<std::byte*>(const_cast<char*>(text.data())), text.size()};
    const auto send = [&] {
      SendWr wr;
      wr.remote_qpn = kPeer;
      return endpoint.send({wr, &vector, &piece, 1, text.size(), 0, WcStatus::kSuccess});
    };
    uint32_t sent = 0;
    while (sent < 64 && send()) ++sent;
    ASSERT_LT(sent, 64u) << "the socket is full";
    ASSERT_GT(sent, 0u);
    open_way();
    std::vector<uint32_t> wanted;
    for (uint32_t i = 0; i < sent; ++i) wanted.push_back(i);
    EXPECT_TRUE(psns_come(wire, wanted));
    EXPECT_TRUE(send());
    EXPECT_TRUE(psns_come(wire, {sent})) << "the number of the one that was refused";
    endpoint.withdraw();
  });
}

}  // namespace
}  // namespace nupa::net::own_network_test
