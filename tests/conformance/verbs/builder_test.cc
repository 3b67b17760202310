// SPDX-License-Identifier: Apache-2.0
/// The ibv_wr_* calls (manual ibv_wr_post).
#include <atomic>
#include <thread>

#include "fixture.h"

namespace nupa::test {
namespace {

constexpr uint64_t kEverything = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
                                 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                                 IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
                                 IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV |
                                 IBV_QP_EX_WITH_ATOMIC_WRITE;

class VerbsBuilder : public Verbs {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    qp = make_builder_qp(kEverything);
    peer = make_builder_qp(kEverything);
    connect(qp, peer);
    ex = ibv_qp_to_qp_ex(qp);
    ASSERT_NE(ex, nullptr);
    mr = reg(memory, sizeof memory);
    ASSERT_NE(mr, nullptr);
    ex->wr_flags = IBV_SEND_SIGNALED;
  }

  uint64_t address(size_t offset) { return reinterpret_cast<uint64_t>(memory + offset); }

  alignas(4096) char memory[16384] = {};
  ibv_mr* mr = nullptr;
  ibv_qp* qp = nullptr;
  ibv_qp* peer = nullptr;
  ibv_qp_ex* ex = nullptr;
};

TEST_F(VerbsBuilder, InlineData_IsCopiedByTheSetter) {
  char text[] = "early";
  ibv_wr_start(ex);
  ex->wr_id = 7;
  ibv_wr_rdma_write(ex, mr->rkey, address(8192));
  ibv_wr_set_inline_data(ex, text, sizeof text);
  std::memset(text, 'x', sizeof text);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  const ibv_wc wc = next();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_STREQ(memory + 8192, "early");
}

TEST_F(VerbsBuilder, InlineDataList_IsJoined) {
  char first[] = "one ", second[] = "two";
  const ibv_data_buf list[] = {{first, 4}, {second, 4}};
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, mr->rkey, address(8192));
  ibv_wr_set_inline_data_list(ex, 2, list);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 8192, "one two");
}

TEST_F(VerbsBuilder, OneRun_WithManyRequestsOfBothKinds_ArrivesInOrder) {
  std::strcpy(memory, "from a list");
  ibv_wr_start(ex);
  for (uint64_t i = 0; i < 20; ++i) {
    ex->wr_id = i;
    ibv_wr_rdma_write(ex, mr->rkey, address(4096 + i * 64));
    if (i % 2 == 0) {
      ibv_wr_set_inline_data(ex, &i, sizeof i);
    } else {
      const ibv_sge list[] = {{address(0), 5, mr->lkey}, {address(5), 7, mr->lkey}};
      ibv_wr_set_sge_list(ex, 2, list);
    }
  }
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  for (uint64_t i = 0; i < 20; ++i) {
    const ibv_wc wc = next();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, i);
    const void* expected = i % 2 == 0 ? static_cast<const void*>(&i) : "from a list";
    EXPECT_EQ(std::memcmp(memory + 4096 + i * 64, expected, 8), 0) << i;
  }
}

TEST_F(VerbsBuilder, InlineFlagWithoutItsSetter_ChecksTheKey) {
  // With the flag alone the list still names registered memory: a wrong key must be noticed.
  ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, mr->rkey, address(8192));
  ibv_wr_set_sge(ex, mr->lkey + 1, address(0), 8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(next().status, IBV_WC_LOC_PROT_ERR);
}

TEST_F(VerbsBuilder, InlineFlagOnARequestWithoutData_DoesNotAffectTheOthers) {
  std::strcpy(memory, "8 bytes");
  ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, mr->rkey, address(8192));  // of nothing
  ibv_wr_rdma_write(ex, mr->rkey, address(8192));
  ibv_wr_set_sge(ex, mr->lkey, address(0), 8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 8192, "8 bytes");
}

TEST_F(VerbsBuilder, TwoSetters_TheLastOneCounts) {
  std::strcpy(memory, "wrong");
  std::strcpy(memory + 64, "right");
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, mr->rkey, address(8192));
  ibv_wr_set_sge(ex, mr->lkey, address(0), 6);
  ibv_wr_set_sge(ex, mr->lkey, address(64), 6);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 8192, "right");
}

TEST_F(VerbsBuilder, EntrySetAfterInlineData_IsSentFromItsMemory) {
  char text[] = "wrong";
  std::strcpy(memory, "right");
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, mr->rkey, address(8192));
  ibv_wr_set_inline_data(ex, text, sizeof text);
  ibv_wr_set_sge(ex, mr->lkey, address(0), sizeof text);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 8192, "right");
}

TEST_F(VerbsBuilder, Complete_WrongRequest_ReturnsTheErrorAndPostsNothing) {
  const ibv_sge list[8] = {};
  char big[512] = {};
  const auto fails = [&](auto build) {
    ibv_wr_start(ex);
    ibv_wr_rdma_write(ex, mr->rkey, address(8192));
    ibv_wr_set_inline_data(ex, big, 8);
    build();
    EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
    ibv_wc wc;
    EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 0);
  };
  fails([&] { ibv_wr_set_sge_list(ex, 8, list); });
  fails([&] { ibv_wr_set_sge_list(ex, SIZE_MAX, list); });
  fails([&] { ibv_wr_set_sge_list(ex, 1, nullptr); });
  fails([&] { ibv_wr_set_inline_data(ex, big, sizeof big); });
  fails([&] { ibv_wr_set_inline_data(ex, big, SIZE_MAX); });
  fails([&] { ibv_wr_set_inline_data_list(ex, 2, nullptr); });
  fails([&] { ibv_wr_set_ud_addr(ex, nullptr, 1, 1); });
  fails([&] { ibv_wr_bind_mw(ex, nullptr, 1, nullptr); });
  fails([&] { ibv_wr_atomic_write(ex, mr->rkey, address(0), nullptr); });
  ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
  fails([] {});
  ex->wr_flags = IBV_SEND_SIGNALED;
  // The next run starts clean.
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, mr->rkey, address(8192));
  ibv_wr_set_inline_data(ex, big, 8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

TEST_F(VerbsBuilder, SetterWithoutRequest_Complete_Fails) {
  ibv_wr_start(ex);
  ibv_wr_set_sge(ex, mr->lkey, address(0), 8);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
}

TEST_F(VerbsBuilder, SetterBeforeTheFirstRequest_InALaterRun_Fails) {
  for (const bool aborted : {false, true}) {
    ibv_wr_start(ex);
    ibv_wr_rdma_write(ex, mr->rkey, address(8192));
    ibv_wr_set_sge(ex, mr->lkey, address(0), 8);
    if (aborted) {
      ibv_wr_abort(ex);
    } else {
      ASSERT_EQ(ibv_wr_complete(ex), 0);
      EXPECT_EQ(next().status, IBV_WC_SUCCESS);
    }
    ibv_wr_start(ex);
    ibv_wr_set_sge(ex, mr->lkey, address(0), 8);
    EXPECT_EQ(ibv_wr_complete(ex), EINVAL) << aborted;
  }
}

TEST_F(VerbsBuilder, Abort_DropsTheRun) {
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, mr->rkey, address(8192));
  ibv_wr_set_inline_data(ex, const_cast<char*>("dropped"), 8);
  ibv_wr_abort(ex);
  ibv_wr_start(ex);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 0);
  EXPECT_EQ(memory[8192], 0);
  // A fault goes with the run it was found in.
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, mr->rkey, address(8192));
  ibv_wr_set_sge_list(ex, 1, nullptr);
  ibv_wr_abort(ex);
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, mr->rkey, address(8192));
  ibv_wr_set_inline_data(ex, const_cast<char*>("written"), 8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 8192, "written");
}

TEST_F(VerbsBuilder, AtomicsReadAndSend_AreExecuted) {
  *reinterpret_cast<uint64_t*>(memory + 8192) = 40;
  ASSERT_EQ(post_recv(peer, 99, memory + 1024, 64, mr->lkey), 0);
  const uint64_t written = 77;
  ibv_wr_start(ex);
  ibv_wr_atomic_fetch_add(ex, mr->rkey, address(8192), 2);
  ibv_wr_set_sge(ex, mr->lkey, address(0), 8);
  ibv_wr_atomic_cmp_swp(ex, mr->rkey, address(8192), 42, 43);
  ibv_wr_set_sge(ex, mr->lkey, address(8), 8);
  ibv_wr_rdma_read(ex, mr->rkey, address(8192));
  ibv_wr_set_sge(ex, mr->lkey, address(16), 8);
  ibv_wr_atomic_write(ex, mr->rkey, address(8200), &written);
  ibv_wr_send_imm(ex, htobe32(5));
  ibv_wr_set_inline_data(ex, const_cast<char*>("hello"), 6);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  int sends = 0;
  bool received = false;
  for (int i = 0; i < 6; ++i) {
    const ibv_wc wc = next();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << i;
    if (wc.wr_id == 99) {
      received = true;
      EXPECT_EQ(wc.opcode, IBV_WC_RECV);
      EXPECT_EQ(wc.imm_data, htobe32(5));
      EXPECT_EQ(wc.wc_flags & IBV_WC_WITH_IMM, static_cast<unsigned>(IBV_WC_WITH_IMM));
    } else {
      ++sends;
    }
  }
  EXPECT_EQ(sends, 5);
  EXPECT_TRUE(received);
  const auto* words = reinterpret_cast<const uint64_t*>(memory);
  EXPECT_EQ(words[0], 40u);
  EXPECT_EQ(words[1], 42u);
  EXPECT_EQ(words[2], 43u);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(memory + 8200), 77u);
  EXPECT_STREQ(memory + 1024, "hello");
}

TEST_F(VerbsBuilder, TwoThreads_StartToComplete_ExcludesTheOther) {
  constexpr int kThreads = 4, kRuns = 500;
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRuns; ++i) {
        ibv_wr_start(ex);
        ex->wr_flags = 0;
        const uint64_t value = static_cast<uint64_t>(t) << 32 | static_cast<uint64_t>(i);
        for (size_t k = 0; k < 3; ++k) {
          ibv_wr_rdma_write(ex, mr->rkey, address(8192 + static_cast<size_t>(t) * 64 + k * 8));
          ibv_wr_set_inline_data(ex, const_cast<uint64_t*>(&value), sizeof value);
        }
        if (i % 8 == 7) ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(ex, mr->rkey, address(8192 + static_cast<size_t>(t) * 64 + 24));
        ibv_wr_set_inline_data(ex, const_cast<uint64_t*>(&value), sizeof value);
        const int error = ibv_wr_complete(ex);
        ibv_wc wc[16];
        // Only a full queue may refuse; it empties as completions are polled.
        if (error != 0 && error != ENOMEM) ++failures;
        if (ibv_poll_cq(cq, 16, wc) < 0) ++failures;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
}

TEST_F(Verbs, Builder_UnsupportedOperations_AreRefused) {
  EXPECT_EQ(make_builder_qp(IBV_QP_EX_WITH_TSO), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(make_builder_qp(uint64_t{1} << 13), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(make_builder_qp(uint64_t{1} << 40), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(make_builder_qp(IBV_QP_EX_WITH_RDMA_READ, IBV_QPT_UC), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(make_builder_qp(IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QPT_UC), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(make_builder_qp(IBV_QP_EX_WITH_RDMA_WRITE, IBV_QPT_UD), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_qp* plain = make_qp();
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(ibv_qp_to_qp_ex(plain), nullptr);
}

TEST_F(Verbs, Builder_AtomicWriteWithoutInlineRoom_IsSent) {
  ibv_qp_init_attr plain = init();
  plain.cap.max_inline_data = plain.cap.max_send_sge = 0;
  ibv_qp_init_attr_ex attr{};
  std::memcpy(&attr, &plain, offsetof(ibv_qp_init_attr, sq_sig_all));
  attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  attr.pd = pd;
  attr.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE;
  ibv_qp* qp = keep(ibv_create_qp_ex(context, &attr));
  ASSERT_NE(qp, nullptr);
  connect(qp, qp);
  uint64_t target = 0, value = 5;
  ibv_mr* mr = reg(&target, sizeof target);
  ASSERT_NE(mr, nullptr);
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_start(ex);
  ibv_wr_atomic_write(ex, mr->rkey, reinterpret_cast<uint64_t>(&target), &value);
  value = 6;
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  const ibv_wc wc = next();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_ATOMIC_WRITE);
  EXPECT_EQ(target, 5u);
}

TEST_F(Verbs, Builder_Datagrams_AreSent) {
  ibv_qp* qp = make_builder_qp(IBV_QP_EX_WITH_SEND, IBV_QPT_UD);
  ASSERT_NE(qp, nullptr);
  connect(qp, qp);
  alignas(64) char memory[256] = {};
  ibv_mr* mr = reg(memory, sizeof memory);
  ASSERT_NE(mr, nullptr);
  ibv_ah_attr attr = path();
  ibv_ah* ah = ibv_create_ah(pd, &attr);
  ASSERT_NE(ah, nullptr);
  ASSERT_EQ(post_recv(qp, 1, memory, sizeof memory, mr->lkey), 0);
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
  ex->wr_id = 2;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_start(ex);
  ibv_wr_send(ex);
  ibv_wr_set_inline_data(ex, const_cast<char*>("gram"), 5);
  ibv_wr_set_ud_addr(ex, ah, qp->qp_num, kQkey);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  for (int i = 0; i < 2; ++i) {
    const ibv_wc wc = next();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.byte_len, wc.wr_id == 1 ? 45u : 5u);
  }
  EXPECT_STREQ(memory + 40, "gram");
  // Without its address the whole run is refused, the first request of it too.
  ASSERT_EQ(post_recv(qp, 1, memory, sizeof memory, mr->lkey), 0);
  ibv_wr_start(ex);
  ibv_wr_send(ex);
  ibv_wr_set_inline_data(ex, const_cast<char*>("one"), 4);
  ibv_wr_set_ud_addr(ex, ah, qp->qp_num, kQkey);
  ibv_wr_send(ex);
  ibv_wr_set_inline_data(ex, const_cast<char*>("two"), 4);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
  EXPECT_TRUE(stays_empty(cq));
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_F(Verbs, Builder_XrcRequestWithoutASharedQueue_IsRefused) {
  ibv_qp_init_attr plain = init(IBV_QPT_XRC_SEND);
  ibv_qp_init_attr_ex attr{};
  plain.recv_cq = nullptr;
  plain.cap.max_recv_wr = plain.cap.max_recv_sge = 0;
  std::memcpy(&attr, &plain, offsetof(ibv_qp_init_attr, sq_sig_all));
  attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  attr.pd = pd;
  attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
  ibv_qp* qp = keep(ibv_create_qp_ex(context, &attr));
  ASSERT_NE(qp, nullptr);
  connect(qp, qp);  // to a peer that takes no requests: what is accepted waits
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
  ibv_wr_start(ex);
  ibv_wr_send(ex);
  ibv_wr_set_inline_data(ex, const_cast<char*>("x"), 1);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
  ibv_wr_start(ex);
  ibv_wr_send(ex);
  ibv_wr_set_inline_data(ex, const_cast<char*>("x"), 1);
  ibv_wr_set_xrc_srqn(ex, 1);
  EXPECT_EQ(ibv_wr_complete(ex), 0);
}

}  // namespace
}  // namespace nupa::test
