// SPDX-License-Identifier: Apache-2.0
/// Features that docs/reference/verbs-support.md lists as unsupported are not advertised, and fail with the error that
/// it names.
#include <dlfcn.h>

#include <string>

#include "fixture.h"

namespace nupa::test {
namespace {

TEST_F(Verbs, QueryDeviceEx_AdvertisesSupportedCapabilitiesOnly) {
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &attr), 0);
  constexpr unsigned int kTrue = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN |
                                 IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS |
                                 IBV_DEVICE_XRC;
  constexpr uint64_t kFlushGlobal = uint64_t{1} << 38, kAtomicWrite = uint64_t{1} << 40;  // of later headers
  EXPECT_EQ(attr.orig_attr.device_cap_flags, kTrue);
  EXPECT_EQ(attr.device_cap_flags_ex, kTrue | kFlushGlobal | kAtomicWrite);
  EXPECT_EQ(attr.orig_attr.atomic_cap, IBV_ATOMIC_GLOB);
  EXPECT_EQ(attr.orig_attr.max_raw_ipv6_qp, 0);
  EXPECT_EQ(attr.orig_attr.max_raw_ethy_qp, 0);
  EXPECT_EQ(attr.orig_attr.max_ee, 0);
  EXPECT_EQ(attr.orig_attr.max_rdd, 0);
  EXPECT_EQ(attr.orig_attr.max_fmr, 0);
  EXPECT_EQ(attr.odp_caps.general_caps, uint64_t{IBV_ODP_SUPPORT});
  EXPECT_EQ(attr.tso_caps.max_tso, 0u);
  EXPECT_EQ(attr.rss_caps.supported_qpts, 0u);
  EXPECT_EQ(attr.max_wq_type_rq, 0u);
  EXPECT_EQ(attr.packet_pacing_caps.supported_qpts, 0u);
  EXPECT_EQ(attr.raw_packet_caps, 0u);
  EXPECT_EQ(attr.tm_caps.max_num_tags, 0u);
  EXPECT_EQ(attr.pci_atomic_caps.fetch_add, 0u);
}

TEST_F(Verbs, WorkQueuesAndFlows_FailWithEopnotsupp) {
  // Nobody can have such an object; the calls are asked with one made up.
  ibv_wq wq{};
  ibv_rwq_ind_table table{};
  ibv_flow flow{};
  ibv_flow_action action{};
  ibv_counters counters{};
  wq.context = table.context = flow.context = action.context = counters.context = context;
  ibv_wq_attr wq_attr{};
  EXPECT_EQ(ibv_modify_wq(&wq, &wq_attr), EOPNOTSUPP);
  EXPECT_EQ(ibv_destroy_wq(&wq), EOPNOTSUPP);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(&table), EOPNOTSUPP);
  EXPECT_EQ(ibv_destroy_flow(&flow), EOPNOTSUPP);
  EXPECT_EQ(ibv_destroy_flow_action(&action), EOPNOTSUPP);
  ibv_flow_action_esp_attr esp{};
  EXPECT_EQ(ibv_modify_flow_action_esp(&action, &esp), EOPNOTSUPP);
  EXPECT_EQ(ibv_attach_counters_point_flow(&counters, nullptr, &flow), EOPNOTSUPP);
  uint64_t value = 0;
  EXPECT_EQ(ibv_read_counters(&counters, &value, 1, 0), EOPNOTSUPP);
  EXPECT_EQ(ibv_destroy_counters(&counters), EOPNOTSUPP);
  ibv_srq srq{};
  srq.context = context;
  ibv_ops_wr op{}, *bad = nullptr;
  EXPECT_EQ(ibv_post_srq_ops(&srq, &op, &bad), EOPNOTSUPP);
  EXPECT_EQ(bad, &op);
}

TEST_F(Verbs, CreateQp_UnsupportedFlagOrType_IsRefused) {
  ibv_qp_init_attr_ex ex{};
  const ibv_qp_init_attr plain = init();
  std::memcpy(&ex, &plain, offsetof(ibv_qp_init_attr, sq_sig_all));
  ex.pd = pd;
  ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  for (int bit = 0; bit < 32; ++bit) {
    ex.create_flags = 1u << bit;
    errno = 0;
    EXPECT_EQ(ibv_create_qp_ex(context, &ex), nullptr) << bit;
    EXPECT_EQ(errno, EOPNOTSUPP) << bit;
  }
  ex.qp_type = IBV_QPT_UD;
  for (int bit = 0; bit < 32; ++bit) {
    ex.create_flags = 1u << bit;
    const bool offered = ex.create_flags == IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
    EXPECT_EQ(keep(ibv_create_qp_ex(context, &ex)) != nullptr, offered) << bit;
  }
  ex.qp_type = IBV_QPT_RC;
  ex.create_flags = 0;
  EXPECT_NE(keep(ibv_create_qp_ex(context, &ex)), nullptr);
  for (const uint32_t type : {uint32_t{IBV_QPT_RAW_PACKET}, uint32_t{IBV_QPT_DRIVER}, 1u, 5u, 6u, 7u, 11u, 100u}) {
    ibv_qp_init_attr attr = init();
    std::memcpy(&attr.qp_type, &type, sizeof type);  // a C program's enumeration holds any number
    errno = 0;
    EXPECT_EQ(ibv_create_qp(pd, &attr), nullptr) << type;
    EXPECT_EQ(errno, EOPNOTSUPP) << type;
  }
}

TEST_F(Verbs, ModifySrq_Resize_IsRefused) {
  ibv_srq_init_attr attr{};
  attr.attr = {8, 1, 0};
  ibv_srq* srq = ibv_create_srq(pd, &attr);
  ASSERT_NE(srq, nullptr);
  ibv_srq_attr wanted{};
  wanted.max_wr = attr.attr.max_wr + 1;
  EXPECT_EQ(ibv_modify_srq(srq, &wanted, IBV_SRQ_MAX_WR), EINVAL);
  wanted.max_wr = attr.attr.max_wr;
  EXPECT_EQ(ibv_modify_srq(srq, &wanted, IBV_SRQ_MAX_WR), 0) << "what it has";
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST_F(Verbs, RegMr_ImplicitRegionOrUnknownRight_IsRefused) {
  errno = 0;
  EXPECT_EQ((ibv_reg_mr)(pd, nullptr, SIZE_MAX, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  static char memory[64];
  for (int bit = 10; bit < 20; ++bit) {
    errno = 0;
    EXPECT_EQ((ibv_reg_mr)(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | 1 << bit), nullptr) << bit;
    EXPECT_EQ(errno, EINVAL) << bit;
  }
  for (int bit = 20; bit < 30; ++bit) EXPECT_NE(reg(memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | 1 << bit), nullptr);
}

TEST_F(Verbs, QueryQpDataInOrder_ReturnsZero) {
  ibv_qp* qp = make_qp();
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND})
    EXPECT_EQ(ibv_query_qp_data_in_order(qp, opcode, 0), 0);
}

TEST_F(Verbs, ResolveEthL2_ReturnsNoHardwareAddress) {
  ibv_ah_attr attr = path();
  uint8_t mac[6] = {};
  uint16_t vid = 0;
  std::memset(&attr.grh.dgid, 0, sizeof attr.grh.dgid);
  attr.grh.dgid.raw[10] = attr.grh.dgid.raw[11] = 0xff;  // maps an IPv4 address
  errno = 0;
  EXPECT_EQ(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vid), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  const uint8_t link_local[16] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55};
  std::memcpy(attr.grh.dgid.raw, link_local, sizeof link_local);
  ASSERT_EQ(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vid), 0);
  const uint8_t expected[6] = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55};
  EXPECT_EQ(std::memcmp(mac, expected, sizeof mac), 0);
  EXPECT_EQ(vid, 0xffff);
}

/// Entry points of providers' libraries and of the ABI before 2006.
class VerbsOtherSymbols : public ::testing::Test {
 protected:
  void SetUp() override {
    Dl_info info{};
    ASSERT_NE(dladdr(reinterpret_cast<void*>(&ibv_get_device_list), &info), 0);
    self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(self, nullptr);
  }
  void TearDown() override {
    if (self != nullptr) dlclose(self);
  }
  template <class Function>
  Function* symbol(const char* name, const char* version) {
    void* found = dlvsym(self, name, version);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Function*>(found);
  }
  void* self = nullptr;
};

TEST_F(VerbsOtherSymbols, Commands_FailWithAnError) {
  for (const char* name :
       {"execute_ioctl",           "ibv_cmd_advise_mr",        "ibv_cmd_alloc_dm",      "ibv_cmd_alloc_mw",
        "ibv_cmd_alloc_pd",        "ibv_cmd_attach_mcast",     "ibv_cmd_close_xrcd",    "ibv_cmd_create_ah",
        "ibv_cmd_create_counters", "ibv_cmd_create_cq",        "ibv_cmd_create_cq_ex",  "ibv_cmd_create_flow",
        "ibv_cmd_create_qp",       "ibv_cmd_create_qp_ex",     "ibv_cmd_create_qp_ex2", "ibv_cmd_create_rwq_ind_table",
        "ibv_cmd_create_srq",      "ibv_cmd_create_srq_ex",    "ibv_cmd_create_wq",     "ibv_cmd_dealloc_mw",
        "ibv_cmd_dealloc_pd",      "ibv_cmd_dereg_mr",         "ibv_cmd_destroy_ah",    "ibv_cmd_destroy_cq",
        "ibv_cmd_destroy_flow",    "ibv_cmd_destroy_qp",       "ibv_cmd_destroy_srq",   "ibv_cmd_destroy_wq",
        "ibv_cmd_detach_mcast",    "ibv_cmd_free_dm",          "ibv_cmd_get_context",   "ibv_cmd_modify_cq",
        "ibv_cmd_modify_qp",       "ibv_cmd_modify_qp_ex",     "ibv_cmd_modify_srq",    "ibv_cmd_open_qp",
        "ibv_cmd_open_xrcd",       "ibv_cmd_post_recv",        "ibv_cmd_post_send",     "ibv_cmd_post_srq_recv",
        "ibv_cmd_query_context",   "ibv_cmd_query_device_any", "ibv_cmd_query_mr",      "ibv_cmd_query_port",
        "ibv_cmd_query_qp",        "ibv_cmd_query_srq",        "ibv_cmd_read_counters", "ibv_cmd_reg_dm_mr",
        "ibv_cmd_reg_dmabuf_mr",   "ibv_cmd_reg_mr",           "ibv_cmd_req_notify_cq", "ibv_cmd_rereg_mr",
        "ibv_cmd_resize_cq"}) {
    auto* command = symbol<int()>(name, "IBVERBS_PRIVATE_34");
    errno = 0;
    ASSERT_NE(command, nullptr);
    EXPECT_EQ(command(), EOPNOTSUPP) << name;
    EXPECT_EQ(errno, EOPNOTSUPP) << name;
  }
  for (const char* name : {"verbs_open_device", "_verbs_init_and_alloc_context"}) {
    errno = 0;
    EXPECT_EQ(symbol<void*()>(name, "IBVERBS_PRIVATE_34")(), nullptr) << name;
    EXPECT_EQ(errno, EOPNOTSUPP) << name;
  }
}

TEST_F(VerbsOtherSymbols, OldAbi_FailsWithAnError) {
  for (const char* name :
       {"ibv_attach_mcast", "ibv_close_device", "ibv_dealloc_pd", "ibv_dereg_mr", "ibv_destroy_ah", "ibv_destroy_cq",
        "ibv_destroy_qp", "ibv_destroy_srq", "ibv_detach_mcast", "ibv_modify_qp", "ibv_modify_srq", "ibv_query_device",
        "ibv_query_port", "ibv_query_qp", "ibv_query_srq", "ibv_resize_cq"}) {
    errno = 0;
    EXPECT_EQ(symbol<int()>(name, "IBVERBS_1.0")(), ENOSYS) << name;
    EXPECT_EQ(errno, ENOSYS) << name;
  }
  for (const char* name : {"ibv_alloc_pd", "ibv_create_ah", "ibv_create_cq", "ibv_create_qp", "ibv_create_srq",
                           "ibv_get_device_list", "ibv_get_device_name", "ibv_open_device", "ibv_reg_mr"}) {
    errno = 0;
    EXPECT_EQ(symbol<void*()>(name, "IBVERBS_1.0")(), nullptr) << name;
    EXPECT_EQ(errno, ENOSYS) << name;
  }
  for (const char* name : {"ibv_get_async_event", "ibv_get_cq_event", "ibv_query_gid", "ibv_query_pkey"}) {
    errno = 0;
    EXPECT_EQ(symbol<int()>(name, "IBVERBS_1.0")(), -1) << name;
    EXPECT_EQ(errno, ENOSYS) << name;
  }
}

TEST_F(VerbsOtherSymbols, Helpers_FillTheirStructures) {
  auto* init_cq = symbol<void(ibv_cq*, ibv_context*, ibv_comp_channel*, void*)>("verbs_init_cq", "IBVERBS_PRIVATE_34");
  ASSERT_NE(init_cq, nullptr);
  ibv_cq cq;
  std::memset(&cq, 0x5a, sizeof cq);
  ibv_comp_channel channel{};
  init_cq(&cq, nullptr, &channel, &cq);
  EXPECT_EQ(cq.context, nullptr);
  EXPECT_EQ(cq.channel, &channel);
  EXPECT_EQ(cq.cq_context, &cq);
  EXPECT_EQ(channel.refcnt, 1);
  ibv_ack_cq_events(&cq, 2);
  EXPECT_EQ(cq.comp_events_completed, 2u);
  EXPECT_EQ(cq.async_events_completed, 0u);
  auto* log = symbol<void(void*, uint32_t, const char*, ...)>("__verbs_log", "IBVERBS_PRIVATE_34");
  ASSERT_NE(log, nullptr);
  ::testing::internal::CaptureStderr();
  unsetenv("VERBS_LOG_LEVEL");
  log(nullptr, 1, "silent");
  setenv("VERBS_LOG_LEVEL", "2", 1);
  log(nullptr, 2, "number %d\n", 7);
  log(nullptr, 3, "silent");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "number 7\n");
  // A wrong level counts as 0, and is reported once.
  ::testing::internal::CaptureStderr();
  setenv("VERBS_LOG_LEVEL", "5", 1);
  log(nullptr, 1, "silent");
  log(nullptr, 1, "silent");
  unsetenv("VERBS_LOG_LEVEL");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "nupa: VERBS_LOG_LEVEL=5: expected a whole number from 0 to 4; using 0\n");
}

}  // namespace
}  // namespace nupa::test
