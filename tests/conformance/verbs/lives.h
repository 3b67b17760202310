// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A pair of queue pairs and its memory, for tests of resets and limits.
#include "fixture.h"

namespace nupa::test {

class VerbsLives : public VerbsPair {
 protected:
  void connect_again(ibv_qp* one, ibv_qp* other) {
    ASSERT_EQ(move(one, IBV_QPS_RESET), 0);
    ASSERT_EQ(move(other, IBV_QPS_RESET), 0);
    connect(one, other);
  }
  ibv_qp_attr attributes_of(ibv_qp* qp) {
    ibv_qp_attr attr{};
    ibv_qp_init_attr made{};
    EXPECT_EQ(ibv_query_qp(qp, &attr, 0, &made), 0);
    return attr;
  }
};

}  // namespace nupa::test
