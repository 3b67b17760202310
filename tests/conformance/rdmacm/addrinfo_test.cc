// SPDX-License-Identifier: Apache-2.0
/// rdma_getaddrinfo(3) and rdma_event_str(), through the drop-in library.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <infiniband/ib.h>
#include <malloc.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

namespace nupa::test {
namespace {

struct ListDelete {
  void operator()(rdma_addrinfo* list) const { rdma_freeaddrinfo(list); }
};
using List = std::unique_ptr<rdma_addrinfo, ListDelete>;

/// One entry; errno: why there is none.
List get(const char* node, const char* service, const rdma_addrinfo* hints) {
  rdma_addrinfo* list = nullptr;
  errno = 0;
  const int result = rdma_getaddrinfo(node, service, hints, &list);
  EXPECT_EQ(result, list == nullptr ? -1 : 0);
  return List(list);
}

rdma_addrinfo hints_of(int flags, int port_space = 0, int qp_type = 0, int family = 0) {
  rdma_addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_port_space = port_space;
  hints.ai_qp_type = qp_type;
  hints.ai_family = family;
  return hints;
}

/// "address port", with the length checked.
std::string text_of(const sockaddr* address, socklen_t length) {
  if (address == nullptr) return length == 0 ? "" : "length without address";
  char text[INET6_ADDRSTRLEN];
  if (address->sa_family == AF_INET) {
    sockaddr_in ip;
    if (length != sizeof ip) return "wrong length";
    std::memcpy(&ip, address, sizeof ip);
    inet_ntop(AF_INET, &ip.sin_addr, text, sizeof text);
    return std::string(text) + " " + std::to_string(ntohs(ip.sin_port));
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 ip;
    if (length != sizeof ip) return "wrong length";
    std::memcpy(&ip, address, sizeof ip);
    inet_ntop(AF_INET6, &ip.sin6_addr, text, sizeof text);
    return std::string(text) + " " + std::to_string(ntohs(ip.sin6_port));
  }
  return "family " + std::to_string(address->sa_family);
}
std::string source(const List& list) { return text_of(list->ai_src_addr, list->ai_src_len); }
std::string destination(const List& list) { return text_of(list->ai_dst_addr, list->ai_dst_len); }

void expect_nothing_else(const List& list) {
  EXPECT_EQ(list->ai_next, nullptr);
  EXPECT_EQ(list->ai_route, nullptr);
  EXPECT_EQ(list->ai_route_len, 0u);
  EXPECT_EQ(list->ai_connect, nullptr);
  EXPECT_EQ(list->ai_connect_len, 0u);
  EXPECT_EQ(list->ai_src_canonname, nullptr);
  EXPECT_EQ(list->ai_dst_canonname, nullptr);
}

TEST(RdmaAddrinfo, Destination_WithHints_IsResolved) {
  const rdma_addrinfo hints = hints_of(0, RDMA_PS_TCP);
  const List list = get("192.0.2.7", "7471", &hints);
  ASSERT_TRUE(list) << errno;
  EXPECT_EQ(destination(list), "192.0.2.7 7471");
  EXPECT_EQ(source(list), "");
  EXPECT_EQ(list->ai_flags, 0);
  EXPECT_EQ(list->ai_family, AF_INET);
  EXPECT_EQ(list->ai_qp_type, IBV_QPT_RC);
  EXPECT_EQ(list->ai_port_space, RDMA_PS_TCP);
  expect_nothing_else(list);
}

TEST(RdmaAddrinfo, NoHints_GiveAReliableConnection) {
  const List list = get("192.0.2.7", "7471", nullptr);
  ASSERT_TRUE(list) << errno;
  EXPECT_EQ(destination(list), "192.0.2.7 7471");
  EXPECT_EQ(list->ai_qp_type, IBV_QPT_RC);
  EXPECT_EQ(list->ai_port_space, RDMA_PS_TCP);
  expect_nothing_else(list);
}

TEST(RdmaAddrinfo, PortSpaceOrQueuePairType_OneGiven_DeterminesTheOther) {
  const struct {
    int port_space, qp_type, port_space_found, qp_type_found;
  } kCases[] = {
      {RDMA_PS_UDP, 0, RDMA_PS_UDP, IBV_QPT_UD},
      {0, IBV_QPT_UD, RDMA_PS_UDP, IBV_QPT_UD},
      {0, IBV_QPT_UC, RDMA_PS_TCP, IBV_QPT_UC},
      {RDMA_PS_TCP, IBV_QPT_XRC_SEND, RDMA_PS_TCP, IBV_QPT_XRC_SEND},
      {RDMA_PS_TCP, IBV_QPT_XRC_RECV, RDMA_PS_TCP, IBV_QPT_XRC_RECV},
      {RDMA_PS_IB, 0, RDMA_PS_IB, IBV_QPT_RC},
      {RDMA_PS_IB, IBV_QPT_UD, RDMA_PS_IB, IBV_QPT_UD},
      {RDMA_PS_IB, IBV_QPT_RC, RDMA_PS_IB, IBV_QPT_RC},
      {RDMA_PS_IPOIB, 0, RDMA_PS_IPOIB, IBV_QPT_UD},
  };
  for (const auto& one : kCases) {
    const rdma_addrinfo hints = hints_of(0, one.port_space, one.qp_type);
    const List list = get("127.0.0.1", "1", &hints);
    ASSERT_TRUE(list) << errno << " for " << one.port_space << " " << one.qp_type;
    EXPECT_EQ(list->ai_port_space, one.port_space_found);
    EXPECT_EQ(list->ai_qp_type, one.qp_type_found);
  }
}

TEST(RdmaAddrinfo, PortSpaceAndQueuePairType_Contradictory_AreRefused) {
  for (const auto& [port_space, qp_type] : {std::pair(RDMA_PS_TCP, IBV_QPT_UD), {RDMA_PS_UDP, IBV_QPT_RC}}) {
    const rdma_addrinfo hints = hints_of(0, port_space, qp_type);
    EXPECT_FALSE(get("127.0.0.1", "1", &hints));
    EXPECT_EQ(errno, EAI_SOCKTYPE);
  }
}

TEST(RdmaAddrinfo, PassiveFlag_AddressIsTheSource) {
  const rdma_addrinfo hints = hints_of(RAI_PASSIVE, RDMA_PS_TCP);
  const List some = get("192.0.2.7", "7471", &hints);
  ASSERT_TRUE(some) << errno;
  EXPECT_EQ(some->ai_flags, RAI_PASSIVE);
  EXPECT_EQ(source(some), "192.0.2.7 7471");
  EXPECT_EQ(destination(some), "");
  expect_nothing_else(some);

  const List any = get(nullptr, "7471", &hints);
  ASSERT_TRUE(any) << errno;
  EXPECT_EQ(source(any), "0.0.0.0 7471");
  const rdma_addrinfo of_ipv6 = hints_of(RAI_PASSIVE, RDMA_PS_TCP, 0, AF_INET6);
  const List any_ipv6 = get(nullptr, "7471", &of_ipv6);
  ASSERT_TRUE(any_ipv6) << errno;
  EXPECT_EQ(source(any_ipv6), ":: 7471");
}

TEST(RdmaAddrinfo, ServiceWithoutNode_IsAtTheLoopback) {
  const rdma_addrinfo hints = hints_of(0, RDMA_PS_TCP, 0, AF_INET);
  const List list = get(nullptr, "7471", &hints);
  ASSERT_TRUE(list) << errno;
  EXPECT_EQ(destination(list), "127.0.0.1 7471");
}

TEST(RdmaAddrinfo, NodeWithoutService_HasPortZero) {
  const rdma_addrinfo hints = hints_of(0, RDMA_PS_TCP);
  const List list = get("::1", nullptr, &hints);
  ASSERT_TRUE(list) << errno;
  EXPECT_EQ(list->ai_family, AF_INET6);
  EXPECT_EQ(destination(list), "::1 0");
}

TEST(RdmaAddrinfo, AddressOfAnotherFamily_IsRefused) {
  const rdma_addrinfo hints = hints_of(RAI_NUMERICHOST, RDMA_PS_TCP, 0, AF_INET6);
  EXPECT_FALSE(get("127.0.0.1", "1", &hints));
  EXPECT_EQ(errno, EAI_ADDRFAMILY);
  EXPECT_STREQ(gai_strerror(errno), gai_strerror(EAI_ADDRFAMILY));
}

TEST(RdmaAddrinfo, NumericHostFlag_HostName_IsRefused) {
  const rdma_addrinfo hints = hints_of(RAI_NUMERICHOST, RDMA_PS_TCP);
  EXPECT_FALSE(get("localhost", "1", &hints));
  EXPECT_EQ(errno, EAI_NONAME);
  const rdma_addrinfo names = hints_of(0, RDMA_PS_TCP);
  EXPECT_TRUE(get("localhost", "1", &names)) << errno;
}

TEST(RdmaAddrinfo, UnknownService_IsRefused) {
  const rdma_addrinfo hints = hints_of(0, RDMA_PS_TCP);
  EXPECT_FALSE(get("127.0.0.1", "no such service", &hints));
  EXPECT_EQ(errno, EAI_SERVICE);
}

TEST(RdmaAddrinfo, NoNodeServiceOrHints_FailWithEinval) {
  EXPECT_FALSE(get(nullptr, nullptr, nullptr));
  EXPECT_EQ(errno, EINVAL);
}

sockaddr_in ipv4(const char* address, uint16_t port) {
  sockaddr_in ip{};
  ip.sin_family = AF_INET;
  ip.sin_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET, address, &ip.sin_addr), 1);
  return ip;
}

TEST(RdmaAddrinfo, SourceInTheHints_IsKept) {
  sockaddr_in from = ipv4("192.0.2.1", 5);
  rdma_addrinfo hints = hints_of(RAI_NOROUTE, RDMA_PS_TCP);
  hints.ai_src_addr = reinterpret_cast<sockaddr*>(&from);
  hints.ai_src_len = sizeof from;
  const List list = get("192.0.2.7", "7471", &hints);
  ASSERT_TRUE(list) << errno;
  EXPECT_EQ(source(list), "192.0.2.1 5");
  EXPECT_EQ(destination(list), "192.0.2.7 7471");
  EXPECT_NE(list->ai_src_addr, hints.ai_src_addr) << "a copy";

  hints.ai_flags = RAI_PASSIVE;
  const List passive = get("192.0.2.7", "7471", &hints);
  ASSERT_TRUE(passive) << errno;
  EXPECT_EQ(source(passive), "192.0.2.7 7471") << "what is named goes first";
}

TEST(RdmaAddrinfo, HintsWithoutNames_AreReturned) {
  sockaddr_in from = ipv4("192.0.2.1", 5), to = ipv4("192.0.2.7", 6);
  rdma_addrinfo hints = hints_of(RAI_NOROUTE | RAI_FAMILY, RDMA_PS_UDP, IBV_QPT_UD, AF_INET);
  hints.ai_src_addr = reinterpret_cast<sockaddr*>(&from);
  hints.ai_src_len = sizeof from;
  hints.ai_dst_addr = reinterpret_cast<sockaddr*>(&to);
  hints.ai_dst_len = sizeof to;
  const List list = get(nullptr, nullptr, &hints);
  ASSERT_TRUE(list) << errno;
  EXPECT_EQ(list->ai_flags, RAI_NOROUTE | RAI_FAMILY);
  EXPECT_EQ(list->ai_family, AF_INET);
  EXPECT_EQ(list->ai_qp_type, IBV_QPT_UD);
  EXPECT_EQ(list->ai_port_space, RDMA_PS_UDP);
  EXPECT_EQ(source(list), "192.0.2.1 5");
  EXPECT_EQ(destination(list), "192.0.2.7 6");
  expect_nothing_else(list);
  const rdma_addrinfo empty{};
  const List nothing = get(nullptr, nullptr, &empty);
  ASSERT_TRUE(nothing) << errno;
  EXPECT_EQ(source(nothing) + destination(nothing), "");
}

struct IbAddress {
  std::string gid;
  sockaddr_ib raw;
};

IbAddress ib(const sockaddr* address, socklen_t length) {
  IbAddress found{};
  EXPECT_EQ(length, sizeof found.raw);
  std::memcpy(&found.raw, address, sizeof found.raw);
  EXPECT_EQ(found.raw.sib_family, AF_IB);
  char text[INET6_ADDRSTRLEN];
  found.gid = inet_ntop(AF_INET6, &found.raw.sib_addr, text, sizeof text);
  return found;
}

TEST(RdmaAddrinfo, GidAsNode_WithFamilyAfIb_IsAnIbAddress) {
  const rdma_addrinfo hints = hints_of(RAI_NUMERICHOST | RAI_FAMILY, RDMA_PS_TCP, 0, AF_IB);
  const List list = get("fe80::1:2:3:4", "7471", &hints);
  ASSERT_TRUE(list) << errno;
  EXPECT_EQ(list->ai_family, AF_IB);
  EXPECT_EQ(list->ai_src_len, 0u);
  const IbAddress found = ib(list->ai_dst_addr, list->ai_dst_len);
  EXPECT_EQ(found.gid, "fe80::1:2:3:4");
  EXPECT_EQ(found.raw.sib_pkey, 0xffff);
  EXPECT_EQ(be64toh(found.raw.sib_sid), RDMA_IB_IP_PS_TCP + 7471);
  EXPECT_EQ(be64toh(found.raw.sib_sid_mask), ~0ull);
  EXPECT_EQ(found.raw.sib_scope_id, 0u);
}

TEST(RdmaAddrinfo, IbAddressWithoutService_MasksThePort) {
  const rdma_addrinfo hints = hints_of(RAI_PASSIVE | RAI_NUMERICHOST | RAI_FAMILY, RDMA_PS_UDP, 0, AF_IB);
  const List list = get("fe80::1", nullptr, &hints);
  ASSERT_TRUE(list) << errno;
  EXPECT_EQ(list->ai_dst_len, 0u);
  const IbAddress found = ib(list->ai_src_addr, list->ai_src_len);
  EXPECT_EQ(be64toh(found.raw.sib_sid), RDMA_IB_IP_PS_UDP);
  EXPECT_EQ(be64toh(found.raw.sib_sid_mask), RDMA_IB_IP_PS_MASK);
}

TEST(RdmaAddrinfo, Ipv4AddressAsNode_WithFamilyAfIb_IsAMappedGid) {
  const rdma_addrinfo hints = hints_of(RAI_NUMERICHOST | RAI_FAMILY, RDMA_PS_IB, IBV_QPT_RC, AF_IB);
  const List list = get("192.0.2.7", "9", &hints);
  ASSERT_TRUE(list) << errno;
  const IbAddress found = ib(list->ai_dst_addr, list->ai_dst_len);
  EXPECT_EQ(found.gid, "::ffff:192.0.2.7");
  EXPECT_EQ(be64toh(found.raw.sib_sid), (static_cast<uint64_t>(RDMA_PS_IB) << 16) + 9);
}

TEST(RdmaAddrinfo, GidAsNode_OneFlagMissing_StaysIpv6) {
  for (const int flags : {RAI_NUMERICHOST, RAI_FAMILY}) {
    const rdma_addrinfo hints = hints_of(flags, RDMA_PS_TCP, 0, AF_IB);
    const List list = get("fe80::1", "9", &hints);
    ASSERT_TRUE(list) << errno;
    EXPECT_EQ(list->ai_family, AF_INET6);
    EXPECT_EQ(destination(list), "fe80::1 9");
  }
}

TEST(RdmaAddrinfo, FreeAddrinfo_ListOfTheProgram_IsFreed) {
  // Blocks above the threshold are mappings of their own, which the allocator counts, unless the heap has that much
  // free memory; a sanitizer's counts leaks itself.
  constexpr int kThreshold = 128 * 1024;
  constexpr size_t kLarge = size_t{64} << 20;
  mallopt(M_MMAP_THRESHOLD, kThreshold);
  const auto mappings = [] { return mallinfo2().hblks; };
  const auto text = [] {
    auto* made = static_cast<char*>(std::calloc(1, kLarge));
    made[0] = 'x';
    return made;
  };
  const size_t before = mappings();
  auto* first = static_cast<rdma_addrinfo*>(std::calloc(1, kLarge));
  auto* second = static_cast<rdma_addrinfo*>(std::calloc(1, kLarge));
  first->ai_next = second;
  second->ai_src_addr = static_cast<sockaddr*>(std::calloc(1, kLarge));
  second->ai_dst_addr = static_cast<sockaddr*>(std::calloc(1, kLarge));
  second->ai_src_canonname = text();
  second->ai_dst_canonname = text();
  second->ai_route = std::calloc(1, kLarge);
  second->ai_connect = std::calloc(1, kLarge);
  constexpr size_t kBlocks = 8;
  const size_t made = mappings() - before;
  EXPECT_TRUE(made == kBlocks || made == 0) << made;
  rdma_freeaddrinfo(first);
  EXPECT_EQ(mappings(), before);
  rdma_freeaddrinfo(nullptr);
}

TEST(RdmaEvents, EventStr_EachEvent_ReturnsItsName) {
#define EXPECT_NAMED(event) EXPECT_STREQ(rdma_event_str(event), #event)
  EXPECT_NAMED(RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_NAMED(RDMA_CM_EVENT_ADDR_ERROR);
  EXPECT_NAMED(RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_NAMED(RDMA_CM_EVENT_ROUTE_ERROR);
  EXPECT_NAMED(RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_NAMED(RDMA_CM_EVENT_CONNECT_RESPONSE);
  EXPECT_NAMED(RDMA_CM_EVENT_CONNECT_ERROR);
  EXPECT_NAMED(RDMA_CM_EVENT_UNREACHABLE);
  EXPECT_NAMED(RDMA_CM_EVENT_REJECTED);
  EXPECT_NAMED(RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_NAMED(RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_NAMED(RDMA_CM_EVENT_DEVICE_REMOVAL);
  EXPECT_NAMED(RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_NAMED(RDMA_CM_EVENT_MULTICAST_ERROR);
  EXPECT_NAMED(RDMA_CM_EVENT_ADDR_CHANGE);
  EXPECT_NAMED(RDMA_CM_EVENT_TIMEWAIT_EXIT);
#undef EXPECT_NAMED
  // As C programs may, for which an enumeration is a number.
  const auto of_number = reinterpret_cast<const char* (*)(int)>(rdma_event_str);
  EXPECT_STREQ(of_number(16), "RDMA_CM_EVENT_ADDRINFO_RESOLVED");
  EXPECT_STREQ(of_number(17), "RDMA_CM_EVENT_ADDRINFO_ERROR");
  EXPECT_STREQ(of_number(18), "UNKNOWN EVENT");
  EXPECT_STREQ(of_number(-1), "UNKNOWN EVENT");
}

}  // namespace
}  // namespace nupa::test
