// SPDX-License-Identifier: Apache-2.0
// NUPA_EXPLAIN: a call of rdma_cm that fails prints why.
#include <cerrno>
#include <string>

#include "../../support/printed_reasons.h"
#include "fixture.h"

namespace nupa::test {
namespace {

class RdmaCmReasons : public ::testing::Test {
 protected:
  static std::string of_create(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* attr) {
    return printed_by([&] {
      EXPECT_EQ(rdma_create_qp(id, pd, attr), -1);
      EXPECT_EQ(errno, EINVAL);
    });
  }
  static std::string of_connect(rdma_cm_id* id, rdma_conn_param* param) {
    return printed_by([&] {
      EXPECT_EQ(rdma_connect(id, param), -1);
      EXPECT_EQ(errno, EINVAL);
    });
  }
  Events events;
};

TEST_F(RdmaCmReasons, DISABLED_CreateQp_Fails_NamesTheRule) {
  const OwnId id = make_id(events.get());
  ibv_qp_init_attr attr{};
  attr.qp_type = IBV_QPT_RC;
  attr.cap = {4, 4, 1, 1, 0};
  EXPECT_EQ(of_create(id.get(), nullptr, nullptr), "rdma_create_qp: Invalid argument: the attributes are null");
  EXPECT_EQ(
      of_create(id.get(), nullptr, &attr),
      "rdma_create_qp_ex: Invalid argument: the id is bound to no device (rdma_resolve_addr() or rdma_bind_addr() "
      "comes first)");
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", 7471).get(), kSoonMs), 0);
  ASSERT_EQ(events.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  ibv_context* const other = ibv_open_device(id->verbs->device);
  ASSERT_NE(other, nullptr);
  ibv_pd* const pd = ibv_alloc_pd(other);
  ASSERT_NE(pd, nullptr);
  EXPECT_EQ(of_create(id.get(), pd, &attr),
            "rdma_create_qp_ex: Invalid argument: the protection domain is not of the id's device context (id->verbs)");
  ASSERT_EQ(rdma_create_qp(id.get(), nullptr, &attr), 0);
  EXPECT_EQ(of_create(id.get(), nullptr, &attr), "rdma_create_qp_ex: Invalid argument: the id has a queue pair");
  rdma_destroy_qp(id.get());
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(other), 0);
}

TEST_F(RdmaCmReasons, DISABLED_Connect_Fails_NamesValueAndRule) {
  const OwnId id = make_id(events.get());
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), kSoonMs), 0);
  ASSERT_EQ(events.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(
      printed_by([&] { EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), kSoonMs), -1); }),
      "rdma_resolve_addr: Invalid argument: the id is in use for a connection, or its address was resolved already");
  ASSERT_EQ(rdma_resolve_route(id.get(), kSoonMs), 0);
  ASSERT_EQ(events.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  ibv_device_attr can;
  ASSERT_EQ(ibv_query_device(id->verbs, &can), 0);
  EXPECT_EQ(of_connect(id.get(), nullptr),
            "rdma_connect: Invalid argument: no parameters, and the id has no queue pair whose number could be sent");
  rdma_conn_param param{};
  param.qp_num = 1;
  param.private_data_len = 5;
  EXPECT_EQ(of_connect(id.get(), &param),
            "rdma_connect: Invalid argument: private_data is null, and private_data_len is 5");
  const char data[60] = {};
  param.private_data = data;
  param.private_data_len = sizeof data;
  EXPECT_EQ(of_connect(id.get(), &param),
            "rdma_connect: Invalid argument: 60 bytes of private data (there is room for 56)");
  param.private_data_len = 0;
  param.initiator_depth = 254;
  EXPECT_EQ(of_connect(id.get(), &param),
            "rdma_connect: Invalid argument: initiator_depth 254 (max_qp_init_rd_atom is " +
                std::to_string(can.max_qp_init_rd_atom) + ")");
  param.responder_resources = 254;
  EXPECT_EQ(of_connect(id.get(), &param),
            "rdma_connect: Invalid argument: responder_resources 254 (max_qp_rd_atom is " +
                std::to_string(can.max_qp_rd_atom) + ")");
}

class RdmaCmEventReasons : public RdmaCm {
 protected:
  /// The line of the next event.
  std::string of_event(int type) {
    return printed_by([&] { EXPECT_EQ(active_.next().type, type); });
  }
  OwnId asking() {
    OwnId id = resolved("127.0.0.1", RDMA_PS_UDP);
    make_qp(id.get());
    rdma_conn_param param = param_of();
    EXPECT_EQ(rdma_connect(id.get(), &param), 0) << errno;
    return id;
  }
  std::string nobody() const {
    return "no program listens at 127.0.0.1 port " + std::to_string(port_) + " with rdma_listen()";
  }
  static constexpr const char* kRejected = "rdma_get_cm_event: RDMA_CM_EVENT_REJECTED: Connection refused: status ";
  static constexpr const char* kUnreachable =
      "rdma_get_cm_event: RDMA_CM_EVENT_UNREACHABLE: Connection refused: status ";
};

TEST_F(RdmaCmEventReasons, DISABLED_Rejected_NamesTheCause) {
  listen();
  {
    OwnId active = connecting();
    OwnId passive = requested();
    ASSERT_EQ(rdma_reject(passive.get(), nullptr, 0), 0);
    EXPECT_EQ(of_event(RDMA_CM_EVENT_REJECTED),
              kRejected + std::string("28: the peer's program called rdma_reject(), or ended"));
  }
  listener_.reset();
  OwnId active = connecting();
  EXPECT_EQ(of_event(RDMA_CM_EVENT_REJECTED), kRejected + ("8: " + nobody()));
}

TEST_F(RdmaCmEventReasons, DISABLED_UnreachableDatagrams_NameTheCause) {
  listen(RDMA_PS_UDP);
  {
    OwnId active = asking();
    OwnId passive = requested();
    ASSERT_EQ(rdma_reject(passive.get(), nullptr, 0), 0);
    EXPECT_EQ(of_event(RDMA_CM_EVENT_UNREACHABLE),
              kUnreachable + std::string("2: the peer's program called rdma_reject(), or ended"));
  }
  listener_.reset();
  OwnId active = asking();
  EXPECT_EQ(of_event(RDMA_CM_EVENT_UNREACHABLE), kUnreachable + ("1: " + nobody()));
}

TEST_F(RdmaCmEventReasons, DISABLED_EventsOfSuccess_PrintNothing) {
  listen();
  EXPECT_EQ(printed_by([&] { connected(); }), "");
}

TEST_F(RdmaCmReasons, Explain_EachCallThatFails_PrintsItsReason) {
  for (const char* test :
       {"RdmaCmReasons.DISABLED_CreateQp_Fails_NamesTheRule", "RdmaCmReasons.DISABLED_Connect_Fails_NamesValueAndRule",
        "RdmaCmEventReasons.DISABLED_Rejected_NamesTheCause",
        "RdmaCmEventReasons.DISABLED_UnreachableDatagrams_NameTheCause",
        "RdmaCmEventReasons.DISABLED_EventsOfSuccess_PrintNothing"})
    EXPECT_EQ(run_again(test, "NUPA_EXPLAIN=on"), 0) << test;
}

}  // namespace
}  // namespace nupa::test
