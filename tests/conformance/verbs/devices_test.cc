// SPDX-License-Identifier: Apache-2.0
/// Several devices in one process (NUPA_DEVICES): the loopback and another interface.
#include <net/if.h>

#include <optional>
#include <string>

#include "fixture.h"

namespace nupa::test {
namespace {

/// One with an IPv4 address if there is one; empty: the loopback is all that there is.
std::string another_interface() {
  std::string found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if ((at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const bool addressed = at->ifa_addr != nullptr && at->ifa_addr->sa_family == AF_INET;
    if (found.empty() || addressed) found = at->ifa_name;
    if (addressed) break;
  }
  freeifaddrs(list);
  return found;
}

/// One device of the two with a queue pair and memory.
class Side : public Verbs {
 public:
  using Verbs::connect;
  using Verbs::context;
  using Verbs::make_qp;
  using Verbs::next;
  using Verbs::next_event;
  using Verbs::path;
  using Verbs::pd;
  using Verbs::post;
  using Verbs::post_recv;
  using Verbs::request;
  using Verbs::stays_empty;
  using Verbs::TearDown;
  using Verbs::to_init;
  using Verbs::to_rts;
  using Verbs::towards;
  static constexpr uint32_t kQkey = Verbs::kQkey;

  void TestBody() override {}
  void open(int number) {
    place = number;
    Verbs::SetUp();
    mr = reg(memory, sizeof memory);
    ASSERT_NE(mr, nullptr);
  }
  uint64_t address(size_t offset) { return reinterpret_cast<uint64_t>(memory + offset); }
  ibv_sge span(size_t offset, uint32_t length) { return {address(offset), length, mr->lkey}; }
  bool is_quiet() { return stays_empty(cq); }
  ibv_gid gid(int index) {
    ibv_gid found{};
    EXPECT_EQ(ibv_query_gid(context, 1, index, &found), 0);
    return found;
  }

  alignas(4096) char memory[4096] = {};
  ibv_mr* mr = nullptr;
};

class VerbsDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    interface = another_interface();
    if (interface.empty()) GTEST_SKIP() << "the loopback is the only interface";
    if (const char* text = std::getenv("NUPA_DEVICES"); text != nullptr) before = text;
    setenv("NUPA_DEVICES", ("lo," + interface).c_str(), 1);
    sides[0].open(0);
    sides[1].open(1);
    for (int i : {0, 1}) sides[i].towards = sides[1 - i].context;
  }
  void TearDown() override {
    for (Side& side : sides) side.TearDown();
    if (before)
      setenv("NUPA_DEVICES", before->c_str(), 1);
    else
      unsetenv("NUPA_DEVICES");
  }
  void connect(ibv_qp_type type) {
    for (int i : {0, 1}) {
      qps[i] = sides[i].make_qp(type);
      ASSERT_NE(qps[i], nullptr);
      ASSERT_EQ(sides[i].to_init(qps[i]), 0);
    }
    EXPECT_NE(qps[0]->qp_num, qps[1]->qp_num);
    for (int i : {0, 1}) ASSERT_EQ(sides[i].to_rts(qps[i], qps[1 - i]->qp_num), 0);
  }

  std::string interface;
  std::optional<std::string> before;
  Side sides[2];
  ibv_qp* qps[2] = {};
};

TEST_F(VerbsDevices, DeviceList_HasNameNumberAndGuidOfEach) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(count, 2);
  EXPECT_EQ(list[2], nullptr);
  ibv_device_attr attrs[2];
  for (int i : {0, 1}) {
    EXPECT_EQ(list[i], sides[i].context->device);
    EXPECT_EQ(ibv_get_device_name(list[i]), "nupa" + std::to_string(i));
    EXPECT_EQ(list[i]->dev_name, "uverbs" + std::to_string(i));
    EXPECT_EQ(ibv_get_device_index(list[i]), i);
    ASSERT_EQ(ibv_query_device(sides[i].context, &attrs[i]), 0);
    EXPECT_EQ(ibv_get_device_guid(list[i]), attrs[i].node_guid);
    // The port's GUID is in the GID that IBTA 4.1.1 makes of it.
    EXPECT_EQ(sides[i].gid(0).global.interface_id, attrs[i].node_guid);
  }
  EXPECT_NE(attrs[0].node_guid, attrs[1].node_guid);
  EXPECT_EQ(attrs[0].sys_image_guid, attrs[1].sys_image_guid);
  ibv_free_device_list(list);
}

TEST_F(VerbsDevices, GidTable_HasTheAddressesOfItsInterface) {
  const unsigned int own[2] = {if_nametoindex("lo"), if_nametoindex(interface.c_str())};
  for (int i : {0, 1}) {
    ibv_gid_entry entries[256];
    const ssize_t count = ibv_query_gid_table(sides[i].context, entries, 256, 0);
    ASSERT_GE(count, 2);
    int of_its_own = 0;
    for (ssize_t at = 0; at < count; ++at) {
      EXPECT_TRUE(entries[at].ndev_ifindex == 0 || entries[at].ndev_ifindex == own[i]) << i << " " << at;
      of_its_own += entries[at].ndev_ifindex == own[i];
    }
    EXPECT_EQ(of_its_own > 0, i == 1) << "the loopback's are of no interface";
  }
}

TEST_F(VerbsDevices, Connection_BetweenTwoDevices_CarriesData) {
  connect(IBV_QPT_RC);
  for (int from : {0, 1}) {
    Side& sender = sides[from];
    Side& receiver = sides[1 - from];
    ASSERT_EQ(receiver.post_recv(qps[1 - from], 5, receiver.memory, 64, receiver.mr->lkey), 0);
    std::strcpy(sender.memory + 1024, from == 0 ? "there" : "and back");
    std::strcpy(sender.memory + 2048, "written");
    ibv_sge text = sender.span(2048, 8);
    ibv_send_wr write = sender.request(IBV_WR_RDMA_WRITE, 1, &text);
    write.wr.rdma = {receiver.address(3072), receiver.mr->rkey};
    ASSERT_EQ(sender.post(qps[from], write), 0);
    ibv_sge word = sender.span(1024, 16);
    ASSERT_EQ(sender.post(qps[from], sender.request(IBV_WR_SEND, 2, &word)), 0);
    EXPECT_EQ(sender.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(sender.next().status, IBV_WC_SUCCESS);
    const ibv_wc wc = receiver.next();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, 5u);
    EXPECT_STREQ(receiver.memory, sender.memory + 1024);
    EXPECT_STREQ(receiver.memory + 3072, "written");
  }
}

TEST_F(VerbsDevices, PathMtu_LargerThanThePath_IsRefused) {
  ibv_port_attr port;
  ASSERT_EQ(ibv_query_port(sides[1].context, 1, &port), 0);
  if (!sends_packets() || port.active_mtu == IBV_MTU_4096) GTEST_SKIP() << "each way takes any path MTU";
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.dest_qp_num = 17;
  attr.ah_attr = sides[1].path();
  attr.ah_attr.grh.dgid = sides[1].gid(1);
  attr.ah_attr.grh.dgid.raw[15] ^= 3;  // a neighbour: this host's own addresses are reached by the loopback
  constexpr int kMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  for (int mtu = IBV_MTU_256; mtu <= IBV_MTU_4096; ++mtu) {
    ibv_qp* qp = sides[1].make_qp();
    ASSERT_EQ(sides[1].to_init(qp), 0);
    attr.path_mtu = static_cast<ibv_mtu>(mtu);
    EXPECT_EQ(ibv_modify_qp(qp, &attr, kMask), mtu <= port.active_mtu ? 0 : EINVAL) << mtu;
  }
}

TEST_F(VerbsDevices, AsyncEvent_IsReportedAtTheDeviceOfItsQueuePair) {
  connect(IBV_QPT_RC);
  ibv_sge text = sides[0].span(0, 8);
  ibv_send_wr write = sides[0].request(IBV_WR_RDMA_WRITE, 1, &text);
  write.wr.rdma = {sides[1].address(0), sides[1].mr->rkey ^ 1};
  ASSERT_EQ(sides[0].post(qps[0], write), 0);
  EXPECT_EQ(sides[0].next().status, IBV_WC_REM_ACCESS_ERR);
  const ibv_async_event event = sides[1].next_event();
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(event.element.qp, qps[1]);
  pollfd ready{sides[0].context->async_fd, POLLIN, 0};
  EXPECT_EQ(poll(&ready, 1, 0), 0);
}

TEST_F(VerbsDevices, Datagram_HasTheAddressOfItsDevice) {
  connect(IBV_QPT_UD);
  for (int from : {0, 1}) {
    Side& sender = sides[from];
    Side& receiver = sides[1 - from];
    ASSERT_EQ(receiver.post_recv(qps[1 - from], 5, receiver.memory, 128, receiver.mr->lkey), 0);
    ibv_ah_attr attr = sender.path();
    ibv_ah* ah = ibv_create_ah(sender.pd, &attr);
    ASSERT_NE(ah, nullptr);
    ibv_sge text = sender.span(1024, 16);
    ibv_send_wr wr = sender.request(IBV_WR_SEND, 1, &text);
    wr.wr.ud = {ah, qps[1 - from]->qp_num, Side::kQkey};
    ASSERT_EQ(sender.post(qps[from], wr), 0);
    EXPECT_EQ(sender.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(receiver.next().status, IBV_WC_SUCCESS);
    ibv_grh header;
    std::memcpy(&header, receiver.memory, sizeof header);
    const ibv_gid source = sender.gid(1);
    const ibv_gid destination = receiver.gid(1);
    EXPECT_EQ(std::memcmp(&header.sgid, &source, sizeof source), 0);
    EXPECT_EQ(std::memcmp(&header.dgid, &destination, sizeof destination), 0);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
  }
}

/// IBTA 10.5.2: in a network a group is joined by the interfaces of the device; shared memory is one network of all.
TEST_F(VerbsDevices, Multicast_IsJoinedByEachDevice) {
  connect(IBV_QPT_UD);
  ibv_gid group{};
  const uint8_t address[] = {0xff, 0xff, 239, 1, 1, 71};
  std::memcpy(group.raw + 10, address, sizeof address);
  for (int i : {0, 1}) {
    ASSERT_EQ(ibv_attach_mcast(qps[i], &group, 0), 0);
    ASSERT_EQ(sides[i].post_recv(qps[i], 7, sides[i].memory, 128, sides[i].mr->lkey), 0);
  }
  ibv_ah_attr attr = sides[1].path();
  attr.grh.dgid = group;
  ibv_ah* ah = ibv_create_ah(sides[1].pd, &attr);
  ASSERT_NE(ah, nullptr);
  ibv_sge text = sides[1].span(1024, 16);
  ibv_send_wr wr = sides[1].request(IBV_WR_SEND, 1, &text);
  wr.wr.ud = {ah, 0xffffff, Side::kQkey};
  ASSERT_EQ(sides[1].post(qps[1], wr), 0);
  for (int i : {0, 1}) EXPECT_EQ(sides[1].next().status, IBV_WC_SUCCESS) << i;
  if (uses_network() && sides[0].gid(1).raw[12] != sides[1].gid(1).raw[12])
    EXPECT_TRUE(sides[0].is_quiet());
  else
    EXPECT_EQ(sides[0].next().wr_id, 7u);
  for (int i : {0, 1}) EXPECT_EQ(ibv_detach_mcast(qps[i], &group, 0), 0);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST(VerbsDevicesSetting, WrongSetting_ListsNoDevice) {
  const char* before = std::getenv("NUPA_DEVICES");
  const std::optional<std::string> kept = before == nullptr ? std::nullopt : std::optional<std::string>(before);
  for (const char* text : {"lo,", "lo,lo", "lo,nosuchif0"}) {
    setenv("NUPA_DEVICES", text, 1);
    int count = -1;
    ibv_device** list = ibv_get_device_list(&count);
    ASSERT_NE(list, nullptr);
    EXPECT_EQ(count, 0) << text;
    EXPECT_EQ(list[0], nullptr) << text;
    ibv_free_device_list(list);
  }
  if (kept)
    setenv("NUPA_DEVICES", kept->c_str(), 1);
  else
    unsetenv("NUPA_DEVICES");
}

}  // namespace
}  // namespace nupa::test
