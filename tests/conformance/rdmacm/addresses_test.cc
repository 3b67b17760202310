// SPDX-License-Identifier: Apache-2.0
/// Resolving and binding addresses: the errno of each refusal, and the path that an id shows.
#include <infiniband/ib.h>

#include "calls.h"
#include "fixture.h"

namespace nupa::test {
namespace {

std::string destination_of(rdma_cm_id* id) { return address_text(rdma_get_peer_addr(id)); }

TEST_F(RdmaCmCalls, ResolveAddr_AddressOfADevice_IsThePathsDestination) {
  int count = 0;
  ibv_context** devices = rdma_get_devices(&count);
  ASSERT_NE(devices, nullptr);
  int found = 0;
  for (int device = 0; device < count; ++device)
    for (int i = 0; i < 16; ++i) {
      ibv_gid gid;
      if (ibv_query_gid(devices[device], 1, i, &gid) != 0 || !is_ipv4(gid)) continue;
      char text[INET_ADDRSTRLEN];
      ASSERT_NE(inet_ntop(AF_INET, &gid.raw[12], text, sizeof text), nullptr);
      const OwnId id = addressed(text);
      EXPECT_EQ(std::memcmp(&id->route.addr.addr.ibaddr.dgid, &gid, sizeof gid), 0) << text;
      ++found;
    }
  rdma_free_devices(devices);
  EXPECT_GT(found, 0);
}

TEST_F(RdmaCmCalls, ResolveAddr_NoRoute_FailsWithTheSystemsErrno) {
  const OwnId id = make_id(active_.get());
  const int error = error_of(resolve(id.get(), nullptr, "255.255.255.255"));
  // With the loopback alone there is no network.
  EXPECT_TRUE(error == EACCES || error == ENETUNREACH) << error;
}

TEST_F(RdmaCmCalls, ResolveAddr_WrongArguments_AreRefused) {
  const OwnId id = make_id(active_.get());
  Address to("127.0.0.1", 7), from_ipv6("::1");
  sockaddr_storage strange{};
  strange.ss_family = AF_UNIX;
  auto* unknown = reinterpret_cast<sockaddr*>(&strange);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, nullptr, 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, to.get(), -1)), EINVAL);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, unknown, 1)), EAFNOSUPPORT);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), unknown, to.get(), 1)), EAFNOSUPPORT);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), from_ipv6.get(), to.get(), 1)), EINVAL) << "two families";
  EXPECT_NE(error_of(resolve(id.get(), "192.0.2.77", "127.0.0.1")), 0) << "not this host's";
  EXPECT_TRUE(active_.silent());
  sockaddr_storage none{};
  EXPECT_EQ(rdma_resolve_addr(id.get(), reinterpret_cast<sockaddr*>(&none), to.get(), 0), 0)
      << "no source, and no time is a time: " << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(error_of(rdma_resolve_route(id.get(), -1)), EINVAL);
  EXPECT_EQ(rdma_resolve_route(id.get(), 0), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

TEST_F(RdmaCmCalls, ResolveAddr_BoundId_KeepsFamilyAddressAndPort) {
  const OwnId id = make_id(active_.get());
  ASSERT_EQ(bind_to(id.get(), "127.0.0.2"), 0) << errno;
  const uint16_t port = port_of(id.get());
  EXPECT_EQ(error_of(resolve(id.get(), nullptr, "::1")), EINVAL) << "two families";
  ASSERT_EQ(resolve(id.get(), "127.0.0.3", "127.0.0.1", 9), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(source_of(id.get()), "127.0.0.2");
  EXPECT_EQ(port_of(id.get()), port);
  OwnId other = make_id(active_.get());
  EXPECT_EQ(error_of(bind_to(other.get(), "127.0.0.2", port)), EADDRINUSE) << "it has the port still";
}

TEST_F(RdmaCmCalls, ResolveAddr_SourceWithAPort_BindsThatPort) {
  OwnId other = make_id(active_.get());
  ASSERT_EQ(bind_to(other.get(), "127.0.0.2"), 0);
  const uint16_t port = port_of(other.get());
  const OwnId id = make_id(active_.get());
  EXPECT_EQ(error_of(resolve(id.get(), "127.0.0.2", "127.0.0.1", port)), EADDRINUSE);
  EXPECT_EQ(port_of(id.get()), 0);
  other.reset();
  ASSERT_EQ(resolve(id.get(), "127.0.0.2", "127.0.0.1", port), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(source_of(id.get()), "127.0.0.2");
  EXPECT_EQ(port_of(id.get()), port);
  other = make_id(active_.get());
  EXPECT_EQ(error_of(bind_to(other.get(), "127.0.0.2", port)), EADDRINUSE);
}

TEST_F(RdmaCmCalls, ResolveAddr_SourceWithoutAPort_GetsAPort) {
  const OwnId id = make_id(active_.get());
  ASSERT_EQ(resolve(id.get(), "127.0.0.2", "127.0.0.1"), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(source_of(id.get()), "127.0.0.2");
  EXPECT_NE(port_of(id.get()), 0);
  EXPECT_EQ(destination_of(id.get()), "127.0.0.1");
  EXPECT_EQ(ntohs(rdma_get_dst_port(id.get())), 7);
}

TEST_F(RdmaCmCalls, ResolveAddr_WildcardAddress_IsTheLoopback) {
  for (const auto& [any, loopback] : {std::pair("0.0.0.0", "127.0.0.1"), {"::", "::1"}}) {
    const OwnId id = addressed(any);
    EXPECT_EQ(destination_of(id.get()), loopback);
    EXPECT_NE(id->verbs, nullptr);
  }
}

TEST_F(RdmaCmCalls, ResolveRoute_WithOptions_FillsThePathRecord) {
  const OwnId id = make_id(active_.get());
  ASSERT_EQ(set_id_byte(id.get(), RDMA_OPTION_ID_TOS, 0x28), 0);
  ASSERT_EQ(set_id_byte(id.get(), RDMA_OPTION_ID_ACK_TIMEOUT, 19), 0);
  ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(id->route.num_paths, 0);
  const rdma_ib_addr& ends = id->route.addr.addr.ibaddr;
  EXPECT_EQ(ends.pkey, htobe16(kWholePkey));
  EXPECT_EQ(id->port_num, 1);
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  ASSERT_EQ(id->route.num_paths, 1);
  const ibv_sa_path_rec& path = *id->route.path_rec;
  ibv_port_attr port;
  ASSERT_EQ(ibv_query_port(id->verbs, 1, &port), 0);
  EXPECT_EQ(std::memcmp(&path.sgid, &ends.sgid, sizeof path.sgid), 0);
  EXPECT_EQ(std::memcmp(&path.dgid, &ends.dgid, sizeof path.dgid), 0);
  const ibv_gid none{};
  EXPECT_NE(std::memcmp(&path.sgid, &none, sizeof none), 0);
  EXPECT_EQ(path.pkey, htobe16(kWholePkey));
  EXPECT_EQ(path.traffic_class, 0x28);
  EXPECT_EQ(path.mtu, port.active_mtu);
  EXPECT_EQ(path.packet_life_time, 18) << "half of the way there and back";
  EXPECT_EQ(path.hop_limit, 64);
  EXPECT_EQ(path.reversible, 1);
  EXPECT_EQ(path.numb_path, 1);
  EXPECT_EQ(path.mtu_selector, 2);
  EXPECT_EQ(path.rate_selector, 2);
  EXPECT_EQ(path.packet_life_time_selector, 2);
}

TEST_F(RdmaCmCalls, ResolveRoute_AckTimeoutSetBefore_IsInThePathRecord) {
  const OwnId id = addressed();
  ASSERT_EQ(set_id_byte(id.get(), RDMA_OPTION_ID_ACK_TIMEOUT, 21), 0);
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_EQ(id->route.path_rec->packet_life_time, 20);
}

TEST_F(RdmaCmCalls, Bind_PortInUse_LeavesTheIdUnbound) {
  const OwnId one = make_id(active_.get()), other = make_id(active_.get());
  ASSERT_EQ(bind_to(one.get(), "127.0.0.1"), 0);
  EXPECT_EQ(error_of(bind_to(other.get(), "127.0.0.1", port_of(one.get()))), EADDRINUSE);
  EXPECT_EQ(port_of(other.get()), 0);
  EXPECT_EQ(other->verbs, nullptr);
  EXPECT_EQ(bind_to(other.get(), "127.0.0.1"), 0) << errno;
  EXPECT_NE(port_of(other.get()), 0);
}

TEST_F(RdmaCmCalls, Bind_AddressOfAnotherHost_FailsWithEaddrnotavail) {
  const OwnId id = make_id(active_.get());
  EXPECT_EQ(error_of(bind_to(id.get(), "192.0.2.1")), EADDRNOTAVAIL);  // RFC 5737: nobody's
}

TEST_F(RdmaCmCalls, Bind_AddressOfADevice_AttachesTheIdToTheDevice) {
  int count = 0;
  ibv_context** devices = rdma_get_devices(&count);
  ASSERT_NE(devices, nullptr);
  bool bound = false;
  for (int at = 0; at < 16 * count && !bound; ++at) {
    ibv_context* const device = devices[at / 16];
    ibv_gid gid;
    if (ibv_query_gid(device, 1, at % 16, &gid) != 0 || !is_ipv4(gid)) continue;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    std::memcpy(&address.sin_addr, &gid.raw[12], 4);
    const OwnId id = make_id(active_.get());
    ASSERT_EQ(rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&address)), 0) << errno;
    EXPECT_EQ(id->verbs, device);
    EXPECT_EQ(id->port_num, 1);
    EXPECT_NE(id->pd, nullptr);
    EXPECT_EQ(std::memcmp(&id->route.addr.addr.ibaddr.sgid, &gid, sizeof gid), 0);
    bound = true;
  }
  rdma_free_devices(devices);
  EXPECT_TRUE(bound);
}

TEST_F(RdmaCmCalls, Bind_IbAddressWithAPortSpaceMask_GetsAFreePort) {
  sockaddr_ib any{};
  any.sib_family = AF_IB;
  any.sib_pkey = htobe16(kWholePkey);
  any.sib_sid = htobe64(RDMA_IB_IP_PS_TCP);
  any.sib_sid_mask = htobe64(RDMA_IB_IP_PS_MASK);
  const OwnId id = make_id(active_.get(), RDMA_PS_IB), other = make_id(active_.get(), RDMA_PS_TCP);
  ASSERT_EQ(rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&any)), 0) << errno;
  const uint16_t port = port_of(id.get());
  EXPECT_NE(port, 0);
  sockaddr_ib shown;
  std::memcpy(&shown, rdma_get_local_addr(id.get()), sizeof shown);
  EXPECT_EQ(shown.sib_family, AF_IB);
  EXPECT_EQ(be64toh(shown.sib_sid), RDMA_IB_IP_PS_TCP | port);
  EXPECT_EQ(be64toh(shown.sib_sid_mask), ~uint64_t{0});
  EXPECT_EQ(error_of(bind_to(other.get(), "0.0.0.0", port)), EADDRINUSE) << "one space of ports";
}

TEST_F(RdmaCmCalls, PortSpaces_SamePort_DoNotConflict) {
  const OwnId first = make_id(active_.get(), RDMA_PS_TCP);
  ASSERT_EQ(bind_to(first.get(), "127.0.0.1"), 0);
  for (const rdma_port_space ps : {RDMA_PS_UDP, RDMA_PS_IPOIB, RDMA_PS_IB}) {
    const OwnId id = make_id(active_.get(), ps), again = make_id(active_.get(), ps);
    EXPECT_EQ(bind_to(id.get(), "127.0.0.1", port_of(first.get())), 0) << ps << " " << errno;
    EXPECT_EQ(error_of(bind_to(again.get(), "127.0.0.1", port_of(first.get()))), EADDRINUSE) << ps;
  }
}

}  // namespace
}  // namespace nupa::test
