// SPDX-License-Identifier: Apache-2.0
/// Unreliable datagrams and multicast (IBTA 9.8.3, 10.5, 11.4.1.2).
#include <sys/resource.h>

#include "fixture.h"

namespace nupa::test {
namespace {

constexpr uint32_t kGrh = 40;

class VerbsDatagrams : public VerbsPair {
 protected:
  void SetUp() override {
    VerbsPair::SetUp();
    make_pair(IBV_QPT_UD);
    ibv_ah_attr attr = path();
    attr.grh.traffic_class = 0x5a;
    attr.grh.flow_label = 0x54321;
    attr.grh.hop_limit = 17;
    attr.sl = 4;
    ah = ibv_create_ah(pd, &attr);
    ASSERT_NE(ah, nullptr);
  }
  void TearDown() override {
    for (ibv_ah* made : {ah, group_ah})
      if (made != nullptr) {
        EXPECT_EQ(ibv_destroy_ah(made), 0);
      }
    VerbsPair::TearDown();
  }

  int send(ibv_qp* from, uint64_t wr_id, uint32_t qpn, uint32_t qkey, uint32_t length = 8) {
    ibv_sge sge = span(0, length);
    ibv_send_wr wr = request(IBV_WR_SEND, wr_id, &sge);
    wr.wr.ud = {ah, qpn, qkey};
    return post(from, wr);
  }

  int send_to_group(ibv_qp* from, uint64_t wr_id) {
    ibv_sge sge = span(0, 8);
    ibv_send_wr wr = request(IBV_WR_SEND, wr_id, &sge);
    wr.wr.ud = {group_ah, 0xffffff, kQkey};
    return post(from, wr);
  }

  /// A group of the family that path() is of.
  ibv_gid make_group() {
    ibv_ah_attr attr = path();
    const ibv_gid group = attr.grh.sgid_index == 0 ? ipv6_group() : ipv4_group();
    reach_group(attr, group);
    return group;
  }
  void reach_group(ibv_ah_attr attr, const ibv_gid& group) {
    if (group_ah != nullptr) {
      EXPECT_EQ(ibv_destroy_ah(group_ah), 0);
    }
    attr.grh.dgid = group;
    group_ah = ibv_create_ah(pd, &attr);
    EXPECT_NE(group_ah, nullptr);
  }
  /// ff0e::42
  static ibv_gid ipv6_group() {
    ibv_gid group{};
    group.raw[0] = 0xff;
    group.raw[1] = 0x0e;
    group.raw[15] = 0x42;
    return group;
  }
  /// 239.1.1.66
  static ibv_gid ipv4_group() {
    ibv_gid group{};
    group.raw[10] = group.raw[11] = 0xff;
    group.raw[12] = 239;
    group.raw[13] = group.raw[14] = 1;
    group.raw[15] = 66;
    return group;
  }

  ibv_ah* ah = nullptr;
  ibv_ah* group_ah = nullptr;
};

class VerbsDatagramsOfNetworks : public VerbsDatagrams {
 protected:
  void SetUp() override {
    place = place_of_network_device();
    VerbsDatagrams::SetUp();
  }
};

TEST_F(VerbsDatagrams, Receive_HasTheRouteHeaderBeforeTheMessage) {  // 11.4.1.2, 8.3
  std::strcpy(memory, "message");
  ASSERT_EQ(receive(b, 7, 4096, 256), 0);
  ASSERT_EQ(send(a, 1, b->qp_num, kQkey), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  const ibv_wc wc = next(other_cq);
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, kGrh + 8);
  EXPECT_EQ(wc.src_qp, a->qp_num);
  if (!sends_packets()) {
    EXPECT_EQ(wc.sl, 4);  // RoCEv2 has no field for it
  }
  EXPECT_NE(wc.wc_flags & IBV_WC_GRH, 0u);
  const auto* grh = reinterpret_cast<const ibv_grh*>(memory + 4096);
  const ibv_gid own = path().grh.dgid;
  EXPECT_EQ(std::memcmp(&grh->sgid, &own, 16), 0);
  EXPECT_EQ(std::memcmp(&grh->dgid, &own, 16), 0);
  // A packet of IPv4 has no flow label; nor has one of a host where some program has leased a label to itself.
  const bool labelled = !sends_packets() || path().grh.sgid_index == 0;
  EXPECT_EQ(be32toh(grh->version_tclass_flow), 6u << 28 | 0x5au << 20 | (labelled ? 0x54321u : 0u));
  EXPECT_EQ(grh->hop_limit, 17);
  EXPECT_EQ(grh->next_hdr, 0x1b);
  EXPECT_GE(be16toh(grh->paylen), 8);
  EXPECT_STREQ(memory + 4096 + kGrh, "message");
}

TEST_F(VerbsDatagramsOfNetworks, Receive_FromAnIpv4Address_HasAnIpv4Header) {  // annex A17
  ibv_ah_attr attr = path();
  attr.grh.sgid_index = 1;
  attr.grh.traffic_class = 0xa2;
  attr.grh.hop_limit = 9;
  ASSERT_EQ(ibv_query_gid(context, 1, 1, &attr.grh.dgid), 0);
  ASSERT_EQ(ibv_destroy_ah(ah), 0);
  ah = ibv_create_ah(pd, &attr);
  ASSERT_NE(ah, nullptr);
  ASSERT_EQ(receive(b, 7, 4096, 256), 0);
  ASSERT_EQ(send(a, 1, b->qp_num, kQkey), 0);
  ASSERT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
  const auto* grh = reinterpret_cast<const ibv_grh*>(memory + 4096);
  EXPECT_EQ(std::memcmp(&grh->sgid, &attr.grh.dgid, 16), 0);
  EXPECT_EQ(std::memcmp(&grh->dgid, &attr.grh.dgid, 16), 0);
  EXPECT_EQ(be32toh(grh->version_tclass_flow), 6u << 28 | 0xa2u << 20);
  EXPECT_EQ(grh->hop_limit, 9);
}

TEST_F(VerbsDatagramsOfNetworks, SourceAddress_IsOfTheHandlesGidIndex) {  // 11.2.2.1
  constexpr uint8_t kIndex = 2;
  ibv_ah_attr attr = path();
  attr.grh.sgid_index = kIndex;
  if (ibv_query_gid(context, 1, kIndex, &attr.grh.dgid) != 0) GTEST_SKIP() << "the interfaces have one address";
  ASSERT_EQ(ibv_destroy_ah(ah), 0);
  ah = ibv_create_ah(pd, &attr);
  ASSERT_NE(ah, nullptr);
  ASSERT_EQ(receive(b, 7, 4096, 256), 0);
  ASSERT_EQ(send(a, 1, b->qp_num, kQkey), 0);
  ibv_wc wc = next(other_cq);
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  ibv_ah_attr back{};
  ASSERT_EQ(ibv_init_ah_from_wc(context, 1, &wc, reinterpret_cast<ibv_grh*>(memory + 4096), &back), 0);
  EXPECT_EQ(std::memcmp(&back.grh.dgid, &attr.grh.dgid, 16), 0);
}

TEST_F(VerbsDatagrams, WrongQkey_IsDropped) {  // 10.2.5
  ASSERT_EQ(receive(b, 7, 4096, 256), 0);
  ASSERT_EQ(send(a, 1, b->qp_num, kQkey + 1), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);  // the sender learns nothing
  EXPECT_TRUE(stays_empty(other_cq));
  EXPECT_EQ(state_of(b), IBV_QPS_RTS);
  ASSERT_EQ(send(a, 2, b->qp_num, kQkey), 0);  // the receive is still there
  EXPECT_EQ(next(other_cq).wr_id, 7u);
}

TEST_F(VerbsDatagrams, QkeyWithTheHighBit_UsesTheSendersQkey) {  // 10.2.5
  ASSERT_EQ(receive(b, 7, 4096, 256), 0);
  ASSERT_EQ(send(a, 1, b->qp_num, 0x80000000u), 0);
  EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
}

TEST_F(VerbsDatagrams, NoReceive_IsDropped) {  // 9.8.3.3
  ASSERT_EQ(send(a, 1, b->qp_num, kQkey), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  catch_up();
  ASSERT_EQ(receive(b, 7, 4096, 256), 0);
  EXPECT_TRUE(stays_empty(other_cq));
}

TEST_F(VerbsDatagrams, LargerThanTheReceive_IsDropped) {  // 9.9.3.1, class D1; the 40 bytes count
  ASSERT_EQ(receive(b, 7, 4096, kGrh + 7), 0);
  ASSERT_EQ(send(a, 1, b->qp_num, kQkey, 8), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(stays_empty(other_cq));
  ASSERT_EQ(send(a, 2, b->qp_num, kQkey, 7), 0);
  EXPECT_EQ(next(other_cq).wr_id, 7u);
  EXPECT_EQ(state_of(b), IBV_QPS_RTS);
}

TEST_F(VerbsDatagrams, UnknownQueuePair_IsDropped) {
  ASSERT_EQ(send(a, 1, b->qp_num ^ 0x40, kQkey), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(state_of(a), IBV_QPS_RTS);
}

TEST_F(VerbsDatagrams, LargerThanThePathMtu_IsALocalError) {  // 9.8.3: a datagram is one packet
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  const uint32_t largest = 128u << port.active_mtu;
  if (!sends_packets()) {
    EXPECT_EQ(largest, 4096u);
  }
  ASSERT_EQ(receive(b, 7, 8192, 8192), 0);
  ASSERT_EQ(send(a, 1, b->qp_num, kQkey, largest), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next(other_cq).byte_len, largest + kGrh);
  ASSERT_EQ(send(a, 2, b->qp_num, kQkey, largest + 1), 0);
  EXPECT_EQ(next().status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(state_of(a), IBV_QPS_SQE);  // 10.3.1.6
  EXPECT_EQ(move(a, IBV_QPS_RTS), 0);
}

TEST_F(VerbsDatagrams, OneSidedRequests_AreRefused) {  // 10.2.4, table of services
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
                                     IBV_WR_SEND_WITH_INV, IBV_WR_LOCAL_INV, IBV_WR_BIND_MW, IBV_WR_ATOMIC_WRITE}) {
    ibv_sge sge = span(0, 8);
    ibv_send_wr wr = request(opcode, 1, &sge);
    wr.wr.ud = {ah, b->qp_num, kQkey};
    EXPECT_EQ(post(a, wr), EINVAL) << opcode;
  }
}

TEST_F(VerbsDatagrams, Multicast_EachMember_GetsACopy) {  // 10.5.2
  const ibv_gid group = make_group();
  ibv_qp* c = make_qp(IBV_QPT_UD);
  ibv_qp* outsider = make_qp(IBV_QPT_UD);
  connect(c, c);
  connect(outsider, outsider);
  std::strcpy(memory, "to all");
  for (ibv_qp* member : {a, b, c}) ASSERT_EQ(ibv_attach_mcast(member, &group, 0), 0);
  ASSERT_EQ(ibv_attach_mcast(c, &group, 0), 0);  // manual: attached again, it still gets a single copy
  ASSERT_EQ(receive(a, 11, 4096, 128), 0);
  ASSERT_EQ(receive(b, 12, 4352, 128), 0);
  ASSERT_EQ(receive(c, 13, 4608, 128), 0);
  ASSERT_EQ(receive(c, 14, 4864, 128), 0);
  ASSERT_EQ(receive(outsider, 15, 5120, 128), 0);
  // The sender is a member and hears itself.
  ASSERT_EQ(send_to_group(a, 1), 0);
  bool seen[16] = {};
  for (int i = 0; i < 3; ++i) {  // the send, and the receives of `a` and `c`
    const ibv_wc wc = next();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    seen[wc.wr_id & 15] = true;
  }
  EXPECT_TRUE(seen[1] && seen[11] && seen[13]);
  const ibv_wc wc = next(other_cq);
  EXPECT_EQ(wc.wr_id, 12u);
  EXPECT_EQ(wc.byte_len, kGrh + 8);
  for (const size_t at : {4096, 4352, 4608}) {
    EXPECT_STREQ(memory + at + kGrh, "to all");
    EXPECT_EQ(std::memcmp(&reinterpret_cast<ibv_grh*>(memory + at)->dgid, &group, 16), 0);
  }
  EXPECT_TRUE(stays_empty(cq));  // one copy for `c`, none for the outsider
  EXPECT_EQ(ibv_destroy_qp(b), EBUSY);
  for (ibv_qp* member : {a, b, c}) EXPECT_EQ(ibv_detach_mcast(member, &group, 0), 0);
  EXPECT_EQ(ibv_detach_mcast(a, &group, 0), EINVAL);
  // Nobody is left: sent into the void.
  ASSERT_EQ(send_to_group(a, 1), 0);
  EXPECT_EQ(next().wr_id, 1u);
  EXPECT_TRUE(stays_empty(cq));
}

TEST_F(VerbsDatagrams, DetachMcast_OneOfTwoGroups_LeavesTheOther) {
  const ibv_gid first = make_group();
  ibv_gid second = first;
  second.raw[15] ^= 1;
  for (const ibv_gid& group : {first, second}) ASSERT_EQ(ibv_attach_mcast(b, &group, 0), 0);
  EXPECT_EQ(ibv_detach_mcast(b, &second, 0), 0);
  EXPECT_EQ(ibv_detach_mcast(b, &second, 0), EINVAL);
  ASSERT_EQ(receive(b, 12, 4352, 128), 0);
  ASSERT_EQ(send_to_group(a, 1), 0);
  EXPECT_EQ(next(other_cq).wr_id, 12u);
  EXPECT_EQ(next().wr_id, 1u);
  EXPECT_EQ(ibv_detach_mcast(b, &first, 0), 0);
}

TEST_F(VerbsDatagrams, AttachMcast_Fails_TakesNoPlace) {
  if (!uses_network()) GTEST_SKIP() << "members that share memory need no socket";
  constexpr int kPlaces = 1024;
  ibv_gid group = make_group();
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  int refused = 0;
  for (int i = 0; i < kPlaces; ++i) refused += ibv_attach_mcast(b, &group, 0) == EMFILE ? 1 : 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(refused, kPlaces);
  EXPECT_EQ(ibv_attach_mcast(b, &group, 0), 0);
  EXPECT_EQ(ibv_detach_mcast(b, &group, 0), 0);
}

TEST_F(VerbsDatagrams, Multicast_SenderIsNoMember_IsDelivered) {  // 10.5.2.2
  const ibv_gid group = make_group();
  ASSERT_EQ(ibv_attach_mcast(b, &group, 0), 0);
  ASSERT_EQ(receive(a, 11, 4096, 128), 0);
  ASSERT_EQ(receive(b, 12, 4352, 128), 0);
  ASSERT_EQ(send_to_group(a, 1), 0);
  EXPECT_EQ(next(other_cq).wr_id, 12u);
  EXPECT_EQ(next().wr_id, 1u);
  EXPECT_TRUE(stays_empty(cq));
  EXPECT_EQ(ibv_detach_mcast(b, &group, 0), 0);
}

TEST_F(VerbsDatagramsOfNetworks, Multicast_Ipv4Group_IsDelivered) {  // annex A17: ::ffff:a.b.c.d
  const ibv_gid group = ipv4_group();
  ibv_ah_attr attr = path();
  attr.grh.sgid_index = 1;
  reach_group(attr, group);
  ASSERT_EQ(ibv_attach_mcast(b, &group, 0), 0);
  ASSERT_EQ(receive(b, 12, 4352, 128), 0);
  ASSERT_EQ(receive(b, 13, 4608, 128), 0);
  ASSERT_EQ(send_to_group(a, 1), 0);
  EXPECT_EQ(next(other_cq).wr_id, 12u);
  EXPECT_EQ(std::memcmp(&reinterpret_cast<ibv_grh*>(memory + 4352)->dgid, &group, 16), 0);
  EXPECT_EQ(next().wr_id, 1u);
  EXPECT_TRUE(stays_empty(other_cq)) << "by shared memory and by packets, too";
  EXPECT_EQ(ibv_detach_mcast(b, &group, 0), 0);
  ASSERT_EQ(send_to_group(a, 2), 0);
  EXPECT_EQ(next().wr_id, 2u);
  EXPECT_TRUE(stays_empty(other_cq));
}

TEST_F(VerbsDatagrams, AttachMcast_ConnectedQueuePairOrUnicastAddress_IsRefused) {
  ibv_gid group = make_group();
  ibv_qp* connected = make_qp(IBV_QPT_RC);
  EXPECT_EQ(ibv_attach_mcast(connected, &group, 0), EINVAL);
  group = ipv6_group();
  group.raw[0] = 0xfe;
  EXPECT_EQ(ibv_attach_mcast(a, &group, 0), EINVAL);
  group = ipv4_group();
  group.raw[12] = 10;
  EXPECT_EQ(ibv_attach_mcast(a, &group, 0), EINVAL);
}

}  // namespace
}  // namespace nupa::test
