// SPDX-License-Identifier: Apache-2.0
// NUPA_EXPLAIN: a call that fails prints why, with the value and the rule.
#include <cerrno>
#include <string>

#include "../../support/printed_reasons.h"
#include "fixture.h"

namespace nupa::test {
namespace {

class VerbsReasons : public Verbs {
 protected:
  std::string of_modify(ibv_qp* qp, ibv_qp_attr attr, int mask) {
    return printed_by([&] { EXPECT_EQ(ibv_modify_qp(qp, &attr, mask), EINVAL); });
  }
};

TEST_F(VerbsReasons, DISABLED_Calls_ThatFail_NameValueAndRule) {
  ibv_device_attr limits;
  ASSERT_EQ(ibv_query_device(context, &limits), 0);
  const std::string device = ibv_get_device_name(context->device);
  EXPECT_EQ(printed_by([&] { EXPECT_EQ(ibv_create_cq(context, limits.max_cqe + 1, nullptr, nullptr, 0), nullptr); }),
            "ibv_create_cq: Invalid argument: " + device + ": a completion queue has 1 to " +
                std::to_string(limits.max_cqe) + " entries, not " + std::to_string(limits.max_cqe + 1));
  ibv_qp_init_attr wanted = init();
  wanted.cap.max_send_sge = 1000;
  EXPECT_EQ(printed_by([&] { EXPECT_EQ(ibv_create_qp(pd, &wanted), nullptr); }),
            "ibv_create_qp: Invalid argument: " + device + ": max_send_sge 1000 (at most " +
                std::to_string(limits.max_sge) + ")");
  ibv_qp* const qp = make_qp();
  ASSERT_NE(qp, nullptr);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  EXPECT_EQ(of_modify(qp, attr, IBV_QP_STATE),
            "ibv_modify_qp: Invalid argument: RESET to RTR: not a transition of this queue pair type");
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 2;
  EXPECT_EQ(
      of_modify(qp, attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_QKEY),
      "ibv_modify_qp: Invalid argument: RESET to INIT: missing in the mask: IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX");
  const int to_init = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
  EXPECT_EQ(of_modify(qp, attr, to_init | IBV_QP_QKEY),
            "ibv_modify_qp: Invalid argument: RESET to INIT: not allowed in the mask: IBV_QP_QKEY");
  EXPECT_EQ(of_modify(qp, attr, to_init), "ibv_modify_qp: Invalid argument: port_num 2 (the device has port 1)");
  EXPECT_EQ(of_modify(qp, attr, to_init), "") << "the same within a second";
}

TEST_F(VerbsReasons, DISABLED_ModifyQp_WrongValue_IsNamed) {
  ibv_qp* const qp = make_qp();
  ASSERT_NE(qp, nullptr);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX), 0);
  ibv_port_attr port;
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.ah_attr = path();
  attr.ah_attr.grh.sgid_index = 200;
  EXPECT_EQ(of_modify(qp, attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            "ibv_modify_qp: Invalid argument: ah_attr: GID index 200 (the table has " +
                std::to_string(port.gid_tbl_len) + " entries)");
}

TEST_F(VerbsReasons, DISABLED_Posts_ThatFail_NameTheRuleAndErrnoStays) {
  ibv_qp* const qp = make_qp();
  ASSERT_NE(qp, nullptr);
  ibv_send_wr send{}, *bad = nullptr;
  EXPECT_EQ(printed_by([&] { EXPECT_EQ(ibv_post_send(qp, &send, &bad), EINVAL); }),
            "ibv_post_send: Invalid argument: the queue pair is not in RTS");
  ibv_recv_wr receive{};
  EXPECT_EQ(printed_by([&] {
              EXPECT_EQ(ibv_post_recv(qp, &receive, reinterpret_cast<ibv_recv_wr**>(&bad)), EINVAL);
              EXPECT_EQ(errno, EINVAL);
            }),
            "ibv_post_recv: Invalid argument: the queue pair is in RESET (receives are posted from INIT on)");
  EXPECT_EQ(printed_by([&] { EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY); }),
            "ibv_dealloc_pd: Device or resource busy: objects that were made with it still exist");
}

TEST_F(VerbsReasons, DISABLED_Calls_WithoutTheVariable_PrintNothing) {
  EXPECT_EQ(printed_by([&] { EXPECT_EQ(ibv_create_cq(context, 1 << 30, nullptr, nullptr, 0), nullptr); }), "");
}

TEST_F(VerbsReasons, Explain_EachCallThatFails_PrintsItsReason) {
  for (const char* variable : {"NUPA_EXPLAIN=on", "NUPA_LOG=info"})
    for (const char* test :
         {"VerbsReasons.DISABLED_Calls_ThatFail_NameValueAndRule", "VerbsReasons.DISABLED_ModifyQp_WrongValue_IsNamed",
          "VerbsReasons.DISABLED_Posts_ThatFail_NameTheRuleAndErrnoStays"})
      EXPECT_EQ(run_again(test, variable), 0) << variable << " " << test;
  EXPECT_EQ(run_again("VerbsReasons.DISABLED_Calls_WithoutTheVariable_PrintNothing", "NUPA_EXPLAIN=off"), 0);
}

}  // namespace
}  // namespace nupa::test
