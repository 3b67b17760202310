// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>

#include "core/gid_table.h"
#include "shm/layout.h"

namespace nupa::core {
namespace {

Gid gid_of(const char* text) {
  Gid gid;
  EXPECT_EQ(1, inet_pton(AF_INET6, text, gid.raw.data())) << text;
  return gid;
}

std::string text_of(const Gid& gid) {
  char text[INET6_ADDRSTRLEN];
  return inet_ntop(AF_INET6, gid.raw.data(), text, sizeof text);
}

GidEntry address(const char* text, uint32_t interface_index) {
  GidEntry entry;
  entry.gid = gid_of(text);
  entry.interface_index = interface_index;
  return entry;
}

/// A host whose interface 4 has the hardware address 02:11:22:33:44:55.
HostAddresses host() {
  HostAddresses addresses;
  addresses.interface_id = {0x00, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55};
  addresses.interface_id_owner = 4;
  return addresses;
}

bool is_mapped(const Gid& gid) { return std::memcmp(gid.raw.data(), gid_of("::ffff:0.0.0.0").raw.data(), 12) == 0; }

TEST(IbtaAnnexA17GidTable, IndexZero_IsTheLinkLocalAddressOfTheFirstInterface) {
  const auto table = gid_table_of(host());
  EXPECT_EQ("fe80::11:22ff:fe33:4455", text_of(table[0].gid));
  EXPECT_EQ(4u, table[0].interface_index);
}

TEST(IbtaAnnexA17GidTable, Ipv4Addresses_ComeBeforeIpv6Addresses) {
  HostAddresses addresses = host();
  addresses.v6 = {address("2001:db8::7", 4), address("fe80::1234", 5)};
  addresses.v4 = {address("::ffff:192.0.2.7", 4), address("::ffff:198.51.100.9", 5)};
  const auto table = gid_table_of(addresses);
  ASSERT_EQ(6u, table.size());
  const char* expected[] = {"fe80::11:22ff:fe33:4455", "::ffff:192.0.2.7", "::ffff:198.51.100.9",
                            "::ffff:192.0.2.7",        "2001:db8::7",      "fe80::1234"};
  for (uint32_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(expected[i], text_of(table[i].gid));
    EXPECT_EQ(i, table[i].index);
    EXPECT_EQ(1u, table[i].port_num);
    EXPECT_EQ(GidType::kRoceV2, table[i].type);
  }
  EXPECT_EQ(4u, table[1].interface_index);
  EXPECT_EQ(5u, table[2].interface_index);
}

TEST(IbtaAnnexA17GidTable, LoopbackAddress_IsUsedOnlyWithoutAnAddressBeyondTheLink) {
  HostAddresses addresses = host();
  addresses.v6 = {address("fe80::1234", 5)};
  auto table = gid_table_of(addresses);
  ASSERT_EQ(3u, table.size());
  EXPECT_EQ("::ffff:127.0.0.1", text_of(table[1].gid));
  EXPECT_EQ("fe80::1234", text_of(table[2].gid));
  addresses.v6.push_back(address("2001:db8::7", 4));
  table = gid_table_of(addresses);
  ASSERT_EQ(3u, table.size()) << "programs prefer IPv4, and other hosts do not reach 127.0.0.1";
  EXPECT_EQ("2001:db8::7", text_of(table[1].gid));
  EXPECT_EQ("fe80::1234", text_of(table[2].gid));
  addresses.v4 = {address("::ffff:192.0.2.7", 4)};
  table = gid_table_of(addresses);
  EXPECT_FALSE(find_gid(table, gid_of("::ffff:127.0.0.1")));
}

TEST(IbtaAnnexA17GidTable, IndexThree_IsTheFirstIpv4AddressAgain) {
  HostAddresses addresses = host();
  addresses.v4 = {address("::ffff:192.0.2.7", 4)};
  auto table = gid_table_of(addresses);
  ASSERT_EQ(4u, table.size());
  EXPECT_EQ("fe80::11:22ff:fe33:4455", text_of(table[2].gid)) << "there is no other address";
  EXPECT_EQ("::ffff:192.0.2.7", text_of(table[3].gid));
  EXPECT_EQ(4u, table[3].interface_index);
  addresses.v6 = {address("2001:db8::7", 4), address("2001:db8::8", 4)};
  table = gid_table_of(addresses);
  ASSERT_EQ(5u, table.size());
  EXPECT_EQ("2001:db8::7", text_of(table[2].gid));
  EXPECT_EQ("::ffff:192.0.2.7", text_of(table[3].gid));
  EXPECT_EQ("2001:db8::8", text_of(table[4].gid));
  for (uint32_t i = 0; i < table.size(); ++i) EXPECT_EQ(i, table[i].index);
}

TEST(IbtaAnnexA17GidTable, RepeatedAddress_HasOneEntry) {
  HostAddresses addresses = host();
  addresses.v4 = {address("::ffff:192.0.2.7", 4), address("::ffff:192.0.2.7", 5)};
  addresses.v6 = {address("fe80::11:22ff:fe33:4455", 4)};  // the kernel's own, the same as index 0
  const auto table = gid_table_of(addresses);
  EXPECT_EQ(4u, table.size()) << "and index 3";
  EXPECT_EQ("::ffff:192.0.2.7", text_of(table[1].gid));
}

TEST(IbtaAnnexA17GidTable, MoreAddressesThanEntries_AreLeftOut) {
  HostAddresses addresses = host();
  for (int i = 0; i < 100; ++i) addresses.v4.push_back(address(("::ffff:192.0.2." + std::to_string(i)).c_str(), 4));
  const auto table = gid_table_of(addresses);
  ASSERT_EQ(shm::kMaxGids, table.size());
  EXPECT_EQ("::ffff:192.0.2.29", text_of(table.back().gid));
  EXPECT_EQ(shm::kMaxGids - 1, table.back().index);
}

TEST(Ibta411Gid, FindGid_ByValue_ReturnsItsIndex) {
  HostAddresses addresses = host();
  addresses.v4 = {address("::ffff:192.0.2.7", 4), address("::ffff:192.0.2.8", 4)};
  const auto table = gid_table_of(addresses);
  EXPECT_EQ(0u, find_gid(table, gid_of("fe80::11:22ff:fe33:4455")));
  EXPECT_EQ(2u, find_gid(table, gid_of("::ffff:192.0.2.8")));
  EXPECT_EQ(std::nullopt, find_gid(table, gid_of("::ffff:192.0.2.9")));
  EXPECT_EQ(std::nullopt, find_gid({}, Gid{}));
}

TEST(IbtaAnnexA17GidTable, TableOfThisHost_HoldsTheAddressesOfItsInterfaces) {
  const auto table = gid_table_of(read_host_addresses());
  ASSERT_GE(table.size(), 2u);
  ifaddrs* list = nullptr;
  ASSERT_EQ(0, getifaddrs(&list));
  std::set<std::string> mapped;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    if ((at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    char text[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, text, sizeof text);
    mapped.insert(std::string("::ffff:") + text);
  }
  freeifaddrs(list);
  if (mapped.empty()) mapped.insert("::ffff:127.0.0.1");
  if (mapped.size() >= shm::kMaxGids) GTEST_SKIP() << "more addresses than entries";
  std::set<std::string> found;
  for (const GidEntry& entry : table)
    if (is_mapped(entry.gid)) found.insert(text_of(entry.gid));
  EXPECT_EQ(mapped, found);
}

TEST(Rfc4291InterfaceIdentifier, InterfaceId_IsTheModifiedEui64OfTheHardwareAddress) {
  const HostAddresses addresses = read_host_addresses();
  char name[IF_NAMESIZE];
  if (addresses.interface_id_owner == 0 || if_indextoname(addresses.interface_id_owner, name) == nullptr)
    GTEST_SKIP() << "no interface with a hardware address is up";
  ifreq request{};
  std::strcpy(request.ifr_name, name);
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(0, ioctl(socket, SIOCGIFHWADDR, &request));
  close(socket);
  uint8_t mac[6];
  std::memcpy(mac, request.ifr_hwaddr.sa_data, sizeof mac);
  const unsigned expected[8] = {mac[0] ^ 2u, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(expected[i], addresses.interface_id[static_cast<size_t>(i)]) << i;
}

TEST(Rfc4291InterfaceIdentifier, WithoutAHardwareAddress_DoesNotChangeWithTheHostName) {
  if (geteuid() != 0) GTEST_SKIP() << "not root: the machine's name cannot be changed";
  if (::access("/etc/machine-id", R_OK) != 0) GTEST_SKIP() << "the machine has no number";
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0) _exit(2);
    const HostAddresses before = read_host_addresses();
    if (sethostname("another", 7) != 0) _exit(2);
    const HostAddresses after = read_host_addresses();
    _exit(before.interface_id_owner == 0 && after.interface_id == before.interface_id ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "no namespace can be made";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace nupa::core
