// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A connection whose ends show the parameters that they agreed on.
#include <rdma/rdma_verbs.h>

#include "fixture.h"

namespace nupa::test {

constexpr int kConsumerReject = 28;

inline ibv_qp_attr attributes_of(ibv_qp* qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  constexpr int kAll = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT |
                       IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN | IBV_QP_QKEY;
  EXPECT_EQ(ibv_query_qp(qp, &attr, kAll, &init), 0);
  return attr;
}

class RdmaCmTerms : public RdmaCm {
 protected:
  OwnId connecting_with(rdma_conn_param* param) {
    OwnId id = resolved();
    make_qp(id.get());
    EXPECT_EQ(rdma_connect(id.get(), param), 0) << errno;
    return id;
  }
  /// The next request, its id with a queue pair.
  Seen request() {
    Seen seen = passive_.next();
    EXPECT_EQ(seen.type, RDMA_CM_EVENT_CONNECT_REQUEST);
    if (seen.type != RDMA_CM_EVENT_CONNECT_REQUEST) return seen;
    make_qp(seen.id);
    passive_id_.reset(seen.id);
    return seen;
  }
  ibv_device_attr device() {
    ibv_device_attr attr{};
    const OwnId id = resolved();
    EXPECT_EQ(ibv_query_device(id->verbs, &attr), 0);
    return attr;
  }

  OwnId passive_id_;
};

}  // namespace nupa::test
