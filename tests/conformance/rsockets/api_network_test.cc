// SPDX-License-Identifier: Apache-2.0
// rsockets at an Ethernet interface: between two of its addresses, and to another host. Each case is a process of its
// own, since a process keeps the devices that it has found first.
#include <arpa/inet.h>
#include <infiniband/sa.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <cstdlib>
#include <filesystem>

#include "api_datagrams.h"

namespace nupa::rsockets_network_test {
namespace {

using namespace rsockets_test;

constexpr const char* kHere = "192.0.2.1";  // RFC 5737: no real host has these
constexpr const char* kAlsoHere = "192.0.2.2";
constexpr const char* kOtherHost = "192.0.2.3";

bool run(const std::string& command) { return std::system(command.c_str()) == 0; }

void run_in_own_process(const std::string& name) {
  if (!run("unshare --net ip link add wire type veth peer name far 2>/dev/null"))
    GTEST_SKIP() << "no network namespace with veth interfaces can be made";
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  EXPECT_TRUE(run("exec '" + program + "' --gtest_also_run_disabled_tests --gtest_filter=" + name + " >&2"));
}

sockaddr_in address_of(const char* text) {
  sockaddr_in address = loopback(0);
  EXPECT_EQ(inet_pton(AF_INET, text, &address.sin_addr), 1);
  return address;
}

ibv_gid gid_of(const char* text) {
  ibv_gid gid{};
  EXPECT_EQ(inet_pton(AF_INET6, (std::string("::ffff:") + text).c_str(), gid.raw), 1);
  return gid;
}

/// The network namespace of the process has an interface with an MTU of 1500. Another host is at its other end.
class RsocketsNetwork : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(unshare(CLONE_NEWNET), 0);
    const std::string here = std::to_string(getpid());
    std::thread([&] {
      if (unshare(CLONE_NEWNET) == 0 && run("ip link add far type veth peer name wire netns " + here +
                                            " && ip address add 192.0.2.3/24 dev far && ip link set far mtu 1500 up"))
        other_host = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    }).join();
    ASSERT_GE(other_host, 0);
    ASSERT_TRUE(
        run("ip link set wire addrgenmode none 2>/dev/null; ip link set lo up && "
            "ip address add 192.0.2.1/24 dev wire && ip address add 192.0.2.2/24 dev wire && "
            "ip link set wire mtu 1500 up"));
    ASSERT_TRUE(await([&] { return has_carrier(); }));
  }
  void TearDown() override {
    for (const int fd : rsockets) rclose(fd);
    if (other_host >= 0) close(other_host);
  }
  /// Packets are lost until the kernel has noticed that both ends are up.
  static bool has_carrier() {
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq request{};
    std::strcpy(request.ifr_name, "wire");
    const bool is_read = ioctl(fd, SIOCGIFFLAGS, &request) == 0;
    close(fd);
    return is_read && (request.ifr_flags & IFF_RUNNING) != 0;
  }
  int bound(int type, sockaddr_in* address) {
    const int fd = rsocket(AF_INET, type, 0);
    rsockets.push_back(fd);
    socklen_t length = sizeof *address;
    EXPECT_EQ(rbind(fd, as_sockaddr(*address), length), 0) << std::strerror(errno);
    EXPECT_EQ(rgetsockname(fd, reinterpret_cast<sockaddr*>(address), &length), 0);
    return fd;
  }

  int other_host = -1;  ///< its UDP socket
  std::vector<int> rsockets;
};

}  // namespace

TEST_F(RsocketsNetwork, DISABLED_Route) {
  sockaddr_in here = address_of(kHere), also_here = address_of(kAlsoHere);
  const int listener = bound(SOCK_STREAM, &also_here);
  ASSERT_EQ(rlisten(listener, 4), 0) << std::strerror(errno);
  const int client = bound(SOCK_STREAM, &here);
  ASSERT_EQ(rconnect(client, as_sockaddr(also_here), sizeof also_here), 0) << std::strerror(errno);
  ibv_path_data path{};
  socklen_t length = sizeof path;
  ASSERT_EQ(rgetsockopt(client, SOL_RDMA, RDMA_ROUTE, &path, &length), 0);
  const ibv_gid source = gid_of(kHere), destination = gid_of(kAlsoHere);
  EXPECT_EQ(std::memcmp(&path.path.sgid, &source, sizeof source), 0);
  EXPECT_EQ(std::memcmp(&path.path.dgid, &destination, sizeof destination), 0);
  here = address_of(kHere);
  const int again = bound(SOCK_STREAM, &here);
  ASSERT_EQ(rsetsockopt(again, SOL_RDMA, RDMA_ROUTE, &path, sizeof path), 0);
  EXPECT_EQ(rconnect(again, as_sockaddr(also_here), sizeof also_here), 0) << std::strerror(errno);
}

TEST(RsocketsOwnNetwork, Route_HasTheGidsOfBothSidesAndCanBeUsedAgain) {
  run_in_own_process("RsocketsNetwork.DISABLED_Route");
}

TEST_F(RsocketsNetwork, DISABLED_Datagrams) {
  constexpr size_t kHeader = rsockets::kUdpHeaderV4;
  constexpr size_t kMost = 1024 - 8;  // the largest InfiniBand MTU within 1500, less the header
  const timeval limit{kSoonMs / 1000, 0};
  sockaddr_in here = address_of(kHere), there = address_of(kOtherHost);
  socklen_t length = sizeof there;
  ASSERT_EQ(bind(other_host, as_sockaddr(there), length), 0) << std::strerror(errno);
  ASSERT_EQ(getsockname(other_host, reinterpret_cast<sockaddr*>(&there), &length), 0);
  ASSERT_EQ(setsockopt(other_host, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  const int fd = bound(SOCK_DGRAM, &here);
  ASSERT_EQ(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  UdpHeader header{};
  header.tag = htobe32(rsockets::kUdpTag);
  header.version = 4;
  header.op = static_cast<uint8_t>(rsockets::Op::kData);
  header.length = kHeader;
  header.qpn = htobe32(0x77);
  header.addr.ipv4 = there.sin_addr.s_addr;
  const std::string question = std::string(reinterpret_cast<const char*>(&header), kHeader) + "?";
  ASSERT_EQ(sendto(other_host, question.data(), question.size(), 0, as_sockaddr(here), sizeof here),
            static_cast<ssize_t>(question.size()));
  char room[4096];
  ASSERT_EQ(rrecv(fd, room, sizeof room, 0), 1) << std::strerror(errno);
  ASSERT_EQ(recv(other_host, room, sizeof room, 0), static_cast<ssize_t>(kHeader)) << "the queue pair's number";
  const std::string text(kMost + 1, 'x');
  for (const size_t bytes : {kMost, kMost + 1})
    ASSERT_EQ(rsendto(fd, text.data(), bytes, 0, as_sockaddr(there), sizeof there), static_cast<ssize_t>(bytes));
  const char* const transport = std::getenv("NUPA_TRANSPORT");
  if (transport != nullptr && (std::string(transport) == "shm" || std::string(transport) == "pool")) {
    ASSERT_EQ(recv(other_host, room, sizeof room, 0), static_cast<ssize_t>(kHeader + kMost))
        << "shared memory does not lead to another host, and that one has no pool";
  }
  EXPECT_EQ(recv(other_host, room, sizeof room, 0), static_cast<ssize_t>(kHeader + kMost + 1))
      << "the datagram that fits goes to the queue pair, the longer one over UDP";
}

TEST(RsocketsOwnNetwork, Datagram_LongerThanTheMtuOfThePathToAnotherHost_GoesOverUdp) {
  run_in_own_process("RsocketsNetwork.DISABLED_Datagrams");
}

}  // namespace nupa::rsockets_network_test
