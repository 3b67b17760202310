// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A network namespace with interfaces, addresses and routes of the test.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "net/udp_socket.h"
#include "transport/roce/port/port.h"
#include "../../support/soon.h"

namespace nupa::net::own_network_test {

constexpr int kSoonMs = 20'000;

inline Gid gid(const char* text) {
  Gid gid;
  const std::string mapped = std::strchr(text, ':') == nullptr ? std::string("::ffff:") + text : text;
  EXPECT_EQ(1, inet_pton(AF_INET6, mapped.c_str(), gid.raw.data())) << text;
  return gid;
}

inline UdpAddress at(const char* text, uint32_t scope = 0) { return {gid(text), 9, scope}; }

/// The kernel notes a little later that the other end is there, too; until then there may be no routes.
inline bool is_running_soon(const char* name) {
  const base::UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, name, IF_NAMESIZE - 1);
  return nupa::test::soon(
      [&] { return ioctl(fd.get(), SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_RUNNING) != 0; });
}

/// So many IPv6 addresses are there as far as routes know, which is a little after they were given.
inline bool has_ipv6_addresses_soon(ptrdiff_t count) {
  return count == 0 ||
         std::system(("for i in $(seq 2000); do "
                      "[ $(ip -6 route show table local | grep -v '^local ::1 ' | grep -c '^local ') -ge " +
                      // sleep: the pause between two looks
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

}  // namespace nupa::net::own_network_test
