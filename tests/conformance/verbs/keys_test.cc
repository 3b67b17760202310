// SPDX-License-Identifier: Apache-2.0
/// Keys of regions and windows (IBTA 10.6): which memory they give access to, for which domain, and how long.
#include <sys/mman.h>

#include "fixture.h"

namespace nupa::test {
namespace {

class VerbsKeys : public VerbsPair {
 protected:
  void SetUp() override {
    VerbsPair::SetUp();
    foreign = ibv_alloc_pd(context);
    ASSERT_NE(foreign, nullptr);
    theirs = ibv_reg_mr(foreign, memory, sizeof memory, kWholeAccess);
    ASSERT_NE(theirs, nullptr);
  }
  void TearDown() override {
    for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    qps.clear();
    for (ibv_mw* mw : windows) EXPECT_EQ(ibv_dealloc_mw(mw), 0);
    EXPECT_EQ(ibv_dereg_mr(theirs), 0);
    EXPECT_EQ(ibv_dealloc_pd(foreign), 0);
    VerbsPair::TearDown();
  }

  /// Posts on a fresh pair: the sender alone fails, with a local protection error.
  void expect_local_fault(ibv_send_wr wr) {
    make_pair();
    wr.wr_id = 1;
    ASSERT_EQ(post(a, wr), 0);
    const ibv_wc wc = next();
    EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(wc.wr_id, 1u);
    EXPECT_EQ(state_of(a), IBV_QPS_ERR);
    EXPECT_EQ(state_of(b), IBV_QPS_RTS);
  }

  /// Sends on a fresh pair to a receive that names `target`: the responder's own list is at fault (9.9.3.1).
  void expect_receiver_fault(const ibv_sge& target) {
    make_pair();
    ASSERT_EQ(post_recv(b, 7, reinterpret_cast<void*>(target.addr), target.length, target.lkey), 0);
    std::memset(memory, 'x', 64);
    ibv_sge sge = span(0, 64);
    ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
    EXPECT_EQ(next().status, IBV_WC_REM_OP_ERR);
    const ibv_wc wc = next(other_cq);
    EXPECT_EQ(wc.wr_id, 7u);
    EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
    EXPECT_TRUE(reaches(b, IBV_QPS_ERR));
  }

  /// One request of eight bytes on the present pair; its status.
  ibv_wc_status run(ibv_wr_opcode opcode, uint64_t remote_addr, uint32_t rkey) {
    ibv_sge sge = span(0, 8);
    ibv_send_wr wr = request(opcode, 1, &sge);
    wr.wr.rdma = {remote_addr, rkey};
    EXPECT_EQ(post(a, wr), 0);
    return next().status;
  }

  ibv_mw* make_window(ibv_mw_type type, ibv_pd* domain) {
    ibv_mw* mw = ibv_alloc_mw(domain, type);
    if (mw != nullptr) windows.push_back(mw);
    return mw;
  }
  /// Binds a window of type 2 on `qp`, which completes to `queue`.
  ibv_wc_status bind(ibv_qp* qp, ibv_cq* queue, ibv_mw* mw, uint32_t rkey, ibv_mr* region, unsigned int access,
                     size_t offset = 4096, uint64_t length = 64) {
    ibv_send_wr wr = request(IBV_WR_BIND_MW, 90, nullptr);
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = {region, address(offset), length, access};
    EXPECT_EQ(post(qp, wr), 0);
    return next(queue).status;
  }

  ibv_pd* foreign = nullptr;
  ibv_mr* theirs = nullptr;  ///< the same memory in another protection domain
  std::vector<ibv_mw*> windows;
};

TEST_F(VerbsKeys, LocalKeyOfAnotherDomainIsRefused) {  // 10.6.3.3
  ibv_sge sge{address(0), 8, theirs->lkey};
  expect_local_fault(request(IBV_WR_SEND, 1, &sge));
  expect_local_fault(remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096));
  expect_local_fault(remote(IBV_WR_RDMA_READ, 1, &sge, 4096));
  ibv_send_wr add = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge);
  add.wr.atomic = {address(4096), 1, 0, mr->rkey};
  expect_local_fault(add);
  uint64_t word = 0;
  std::memcpy(&word, memory + 4096, 8);
  EXPECT_EQ(word, 0u);
}

TEST_F(VerbsKeys, EachEntryOfAListNeedsAKeyOfTheDomain) {
  for (const int wrong : {0, 1, 2}) {
    ibv_sge list[] = {span(0, 8), span(8, 8), span(16, 8)};
    list[wrong].lkey = theirs->lkey;
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 1, list, 4096);
    wr.num_sge = 3;
    std::memset(memory, 'x', 64);
    expect_local_fault(wr);
    EXPECT_EQ(memory[4096], 0);
  }
}

TEST_F(VerbsKeys, EachEntryThatIsReadIntoNeedsLocalWrite) {  // 10.6.3.1
  ibv_mr* constant = reg(memory, sizeof memory, IBV_ACCESS_REMOTE_READ);
  ASSERT_NE(constant, nullptr);
  for (const int wrong : {0, 1}) {
    ibv_sge list[] = {span(0, 8), span(8, 8)};
    list[wrong].lkey = constant->lkey;
    ibv_send_wr wr = remote(IBV_WR_RDMA_READ, 1, list, 4096);
    wr.num_sge = 2;
    expect_local_fault(wr);
  }
}

TEST_F(VerbsKeys, ReceiveOfAnotherDomainIsRefused) {  // 10.6.3.3
  expect_receiver_fault({address(4096), 64, theirs->lkey});
  for (size_t i = 0; i < 64; ++i) ASSERT_EQ(memory[4096 + i], 0);
}

TEST_F(VerbsKeys, ReceiveIntoARegionWithoutLocalWriteIsRefused) {  // 10.6.3.1
  ibv_mr* constant = reg(memory, sizeof memory, IBV_ACCESS_REMOTE_READ);
  ASSERT_NE(constant, nullptr);
  expect_receiver_fault({address(4096), 64, constant->lkey});
  for (size_t i = 0; i < 64; ++i) ASSERT_EQ(memory[4096 + i], 0);
}

TEST_F(VerbsKeys, DatagramIntoARegionWithoutLocalWrite_FailsTheReceiver) {  // 10.6.3.1
  ibv_mr* constant = reg(memory, sizeof memory, IBV_ACCESS_REMOTE_READ);
  make_pair(IBV_QPT_UD);
  ASSERT_EQ(post_recv(b, 7, memory + 4096, 256, constant->lkey), 0);
  ibv_ah_attr way = path();
  ibv_ah* ah = ibv_create_ah(pd, &way);
  ASSERT_NE(ah, nullptr);
  std::memset(memory, 'x', 64);
  ibv_sge sge = span(0, 64);
  ibv_send_wr wr = request(IBV_WR_SEND, 1, &sge);
  wr.wr.ud = {ah, b->qp_num, kQkey};
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next(other_cq).status, IBV_WC_LOC_PROT_ERR);
  for (size_t i = 0; i < 256; ++i) ASSERT_EQ(memory[4096 + i], 0) << i;
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_F(VerbsKeys, ReceiveThatLeavesItsRegionIsRefused) {
  ibv_mr* small = reg(memory, 4096);
  ASSERT_NE(small, nullptr);
  expect_receiver_fault({address(4096 - 63), 64, small->lkey});
}

TEST_F(VerbsKeys, LocalListStaysWithinItsRegion) {
  ibv_mr* middle = reg(memory + 4096, 4096);
  ASSERT_NE(middle, nullptr);
  ibv_sge sge{address(8192 - 8), 9, middle->lkey};
  expect_local_fault(remote(IBV_WR_RDMA_WRITE, 1, &sge, 12288));
  sge = {address(4096 - 1), 8, middle->lkey};
  expect_local_fault(remote(IBV_WR_RDMA_WRITE, 1, &sge, 12288));
  sge = {address(8192), 1, middle->lkey};
  expect_local_fault(remote(IBV_WR_RDMA_WRITE, 1, &sge, 12288));
  make_pair();
  sge = {address(4096), 4096, middle->lkey};
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &sge, 12288)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

TEST_F(VerbsKeys, WindowIsNoLocalKey) {  // 10.6.7: a window opens memory to others alone
  make_pair();
  ibv_mw* mw = make_window(IBV_MW_TYPE_1, pd);
  ASSERT_NE(mw, nullptr);
  ibv_mw_bind to{};
  to.send_flags = IBV_SEND_SIGNALED;
  to.bind_info = {mr, address(0), 4096, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
  ASSERT_EQ(ibv_bind_mw(b, mw, &to), 0);
  ASSERT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
  ibv_sge sge{address(0), 8, mw->rkey};
  expect_local_fault(remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096));
}

TEST_F(VerbsKeys, NullRegion_ReadsZerosAndDiscardsWrites) {  // manual ibv_alloc_null_mr
  ibv_mr* null = ibv_alloc_null_mr(pd);
  ASSERT_NE(null, nullptr);
  mrs.push_back(null);
  make_pair();
  std::memset(memory, 'x', sizeof memory);
  ibv_sge list[] = {span(0, 8), {0x123450, 5000, null->lkey}, span(0, 8)};
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 1, list, 4096);
  wr.num_sge = 3;
  ASSERT_EQ(post(a, wr), 0);
  ASSERT_EQ(next().status, IBV_WC_SUCCESS);
  for (size_t i = 0; i < 5000; ++i) ASSERT_EQ(memory[4096 + 8 + i], 0) << i;
  EXPECT_EQ(memory[4096 + 7], 'x');
  EXPECT_EQ(memory[4096 + 8 + 5000], 'x');
  // What is read into it is thrown away, and the next entry gets what follows.
  std::memcpy(memory + 4096, "first 8 second 8", 16);
  ibv_sge into[] = {{0, 8, null->lkey}, span(0, 8)};
  wr = remote(IBV_WR_RDMA_READ, 2, into, 4096);
  wr.num_sge = 2;
  ASSERT_EQ(post(a, wr), 0);
  ASSERT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::string(memory, 8), "second 8");
  // It is for local use alone.
  EXPECT_EQ(run(IBV_WR_RDMA_READ, 0, null->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsKeys, RequestsOfNoBytesNeedNoKey) {  // C9-88
  make_pair();
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    ibv_send_wr wr = request(opcode, opcode, nullptr);
    wr.wr.rdma = {0, 0x12345678};
    ASSERT_EQ(post(a, wr), 0);
    const ibv_wc wc = next();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << opcode;
    EXPECT_EQ(wc.wr_id, opcode);
  }
  EXPECT_EQ(state_of(b), IBV_QPS_RTS);
}

TEST_F(VerbsKeys, EntryOfNoBytes_NeedsNoKey) {  // 10.6.3.1
  make_pair();
  std::strcpy(memory, "8 bytes");
  ibv_sge list[] = {{0, 0, 0}, span(0, 8)};
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    ibv_send_wr wr = remote(opcode, opcode, list, 4096);
    wr.num_sge = 2;
    ASSERT_EQ(post(a, wr), 0);
    EXPECT_EQ(next().status, IBV_WC_SUCCESS) << opcode;
    EXPECT_STREQ(memory + 4096, "8 bytes") << opcode;
    wr.num_sge = 1;  // the empty one
    ASSERT_EQ(post(a, wr), 0);
    EXPECT_EQ(next().status, IBV_WC_SUCCESS) << opcode;
  }
}

TEST_F(VerbsKeys, DeregisteredKeys_AreRefused) {
  char* const own = memory + 8192;
  for (const bool used_before : {false, true}) {
    ibv_mr* gone = ibv_reg_mr(pd, own, 4096, kWholeAccess);
    ASSERT_NE(gone, nullptr);
    const uint32_t rkey = gone->rkey, lkey = gone->lkey;
    make_pair();
    if (used_before) {
      ASSERT_EQ(run(IBV_WR_RDMA_WRITE, address(8192), rkey), IBV_WC_SUCCESS);
    }
    ASSERT_EQ(ibv_dereg_mr(gone), 0);
    EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(8192), rkey), IBV_WC_REM_ACCESS_ERR);
    ibv_sge sge{address(8192), 8, lkey};
    expect_local_fault(remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096));
  }
}

TEST_F(VerbsKeys, OldKey_OfAReusedEntry_IsRefused) {  // the low byte of a key follows each use of its entry
  ibv_mr* first = ibv_reg_mr(pd, memory + 8192, 4096, kWholeAccess);
  ASSERT_NE(first, nullptr);
  const uint32_t old = first->rkey;
  ASSERT_EQ(ibv_dereg_mr(first), 0);
  make_pair();
  ibv_mr* second = reg(memory + 8192, 4096);
  ASSERT_NE(second, nullptr);
  EXPECT_NE(second->rkey, old);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(8192), second->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(8192), old), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsKeys, ReregisteredRegion_OldMemory_IsRefused) {  // 11.2.8.6
  ibv_mr* moved = reg(memory + 4096, 64);
  ASSERT_NE(moved, nullptr);
  make_pair();
  std::strcpy(memory, "before");
  ASSERT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), moved->rkey), IBV_WC_SUCCESS);
  ASSERT_EQ(ibv_rereg_mr(moved, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, memory + 8192, 32, 0), 0);
  EXPECT_EQ(moved->addr, memory + 8192);
  EXPECT_EQ(moved->length, 32u);
  std::strcpy(memory, "after");
  ASSERT_EQ(run(IBV_WR_RDMA_WRITE, address(8192), moved->rkey), IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 8192, "after");
  EXPECT_STREQ(memory + 4096, "before");
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), moved->rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_STREQ(memory + 4096, "before");
  make_pair();
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(8192 + 32), moved->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsKeys, ReregisteredRights_KeyUsedBefore_AreApplied) {
  ibv_mr* changed = reg(memory + 4096, 64);
  ASSERT_NE(changed, nullptr);
  make_pair();
  ASSERT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), changed->rkey), IBV_WC_SUCCESS);
  ASSERT_EQ(ibv_rereg_mr(changed, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ),
            0);
  EXPECT_EQ(run(IBV_WR_RDMA_READ, address(4096), changed->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), changed->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsKeys, ReregisteredRegionBelongsToItsNewDomain) {
  ibv_mr* changed = reg(memory + 4096, 64);
  ASSERT_NE(changed, nullptr);
  make_pair();
  ASSERT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), changed->rkey), IBV_WC_SUCCESS);
  ASSERT_EQ(ibv_rereg_mr(changed, IBV_REREG_MR_CHANGE_PD, foreign, nullptr, 0, 0), 0);
  EXPECT_EQ(changed->pd, foreign);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), changed->rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dealloc_pd(foreign), EBUSY);
  ASSERT_EQ(ibv_rereg_mr(changed, IBV_REREG_MR_CHANGE_PD, pd, nullptr, 0, 0), 0);
  make_pair();
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), changed->rkey), IBV_WC_SUCCESS);
}

TEST_F(VerbsKeys, FailedReregistration_LeavesTheRegionUnchanged) {
  ibv_mr* kept = reg(memory + 4096, 64);
  ASSERT_NE(kept, nullptr);
  make_pair();
  EXPECT_EQ(ibv_rereg_mr(kept, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD, foreign,
                         reinterpret_cast<void*>(4096), 64, 0),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(kept->pd, pd);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), kept->rkey), IBV_WC_SUCCESS);
}

TEST_F(VerbsKeys, RegionUnderAWindowIsNotReregistered) {
  make_pair();
  ibv_mw* mw = make_window(IBV_MW_TYPE_2, pd);
  ASSERT_NE(mw, nullptr);
  const uint32_t rkey = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(bind(b, other_cq, mw, rkey, mr, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, foreign, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EBUSY);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), rkey), IBV_WC_SUCCESS);
}

TEST_F(VerbsKeys, WindowIsBoundWithinItsDomainOnly) {  // 10.6.7.2.2
  ibv_mw* own = make_window(IBV_MW_TYPE_2, pd);
  ibv_mw* other = make_window(IBV_MW_TYPE_2, foreign);
  ASSERT_NE(other, nullptr);
  make_pair();  // a queue pair of this domain, a window of another one
  EXPECT_EQ(bind(b, other_cq, other, ibv_inc_rkey(other->rkey), theirs, IBV_ACCESS_REMOTE_WRITE), IBV_WC_MW_BIND_ERR);
  make_pair();  // a window of this domain, a region of another one
  EXPECT_EQ(bind(b, other_cq, own, ibv_inc_rkey(own->rkey), theirs, IBV_ACCESS_REMOTE_WRITE), IBV_WC_MW_BIND_ERR);
  make_pair();
  EXPECT_EQ(bind(b, other_cq, own, ibv_inc_rkey(own->rkey), mr, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
}

TEST_F(VerbsKeys, WindowBeyondItsRegion_IsRefused) {  // 10.6.7.2.2
  ibv_mw* mw = make_window(IBV_MW_TYPE_2, pd);
  ASSERT_NE(mw, nullptr);
  ibv_mr* middle = reg(memory + 4096, 4096);
  ASSERT_NE(middle, nullptr);
  const uint32_t rkey = ibv_inc_rkey(mw->rkey);
  for (const size_t wrong : {size_t{4096 - 8}, size_t{8192 - 63}, size_t{8192 + 1}}) {
    make_pair();
    EXPECT_EQ(bind(b, other_cq, mw, rkey, middle, IBV_ACCESS_REMOTE_WRITE, wrong), IBV_WC_MW_BIND_ERR) << wrong;
  }
  make_pair();
  EXPECT_EQ(bind(b, other_cq, mw, rkey, middle, IBV_ACCESS_REMOTE_WRITE, 8192 - 64), IBV_WC_SUCCESS);
}

TEST_F(VerbsKeys, KeyOfAnotherDomain_UsedAgain_IsRefused) {
  make_pair(IBV_QPT_UC);  // refused writes of this service stop nobody
  std::memset(memory, 'x', 8);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), theirs->rkey), IBV_WC_SUCCESS);
    catch_up();
    EXPECT_EQ(memory[4096], 0);
  }
}

TEST_F(VerbsKeys, WritableWindow_RegionWithoutLocalWrite_IsRefused) {  // 10.6.7.2.2
  ibv_mr* constant = reg(memory, sizeof memory, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND);
  ASSERT_NE(constant, nullptr);
  ibv_mw* mw = make_window(IBV_MW_TYPE_2, pd);
  ASSERT_NE(mw, nullptr);
  const uint32_t rkey = ibv_inc_rkey(mw->rkey);
  for (const unsigned int right : {unsigned{IBV_ACCESS_REMOTE_WRITE}, unsigned{IBV_ACCESS_REMOTE_ATOMIC}}) {
    make_pair();
    EXPECT_EQ(bind(b, other_cq, mw, rkey, constant, right), IBV_WC_MW_BIND_ERR);
  }
  make_pair();
  EXPECT_EQ(bind(b, other_cq, mw, rkey, constant, IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
}

TEST_F(VerbsKeys, WindowOfTypeTwo_KeyOfAnotherEntry_IsRefused) {  // 10.6.7.2.2: the consumer owns the low byte alone
  ibv_mw* mw = make_window(IBV_MW_TYPE_2, pd);
  ASSERT_NE(mw, nullptr);
  make_pair();
  EXPECT_EQ(bind(b, other_cq, mw, mw->rkey + 256, mr, IBV_ACCESS_REMOTE_WRITE), IBV_WC_MW_BIND_ERR);
  make_pair();
  EXPECT_EQ(bind(b, other_cq, mw, (mw->rkey & ~0xffu) | 0x5a, mr, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
}

TEST_F(VerbsKeys, WindowIsInvalidatedByItsOwnQueuePairOnly) {  // 10.6.7.2.4, type 2B
  ibv_mw* mw = make_window(IBV_MW_TYPE_2, pd);
  ASSERT_NE(mw, nullptr);
  make_pair();
  ibv_qp* const sender = a;
  ibv_qp* const binder = b;
  const uint32_t rkey = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(bind(binder, other_cq, mw, rkey, mr, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
  make_pair();  // another connection of the same domain
  ibv_send_wr local = request(IBV_WR_LOCAL_INV, 5, nullptr);
  local.invalidate_rkey = rkey;
  ASSERT_EQ(post(b, local), 0);
  EXPECT_EQ(next(other_cq).status, IBV_WC_MW_BIND_ERR);
  make_pair();
  ASSERT_EQ(receive(b, 7, 8192, 64), 0);
  ibv_sge sge = span(0, 8);
  ibv_send_wr by_send = request(IBV_WR_SEND_WITH_INV, 6, &sge);
  by_send.invalidate_rkey = rkey;
  ASSERT_EQ(post(a, by_send), 0);
  EXPECT_NE(next().status, IBV_WC_SUCCESS);
  EXPECT_NE(next(other_cq).status, IBV_WC_SUCCESS);
  a = sender;
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), rkey), IBV_WC_SUCCESS);
}

TEST_F(VerbsKeys, InvalidatedWindow_RegionCanBeDeregistered) {
  ibv_mr* under = ibv_reg_mr(pd, memory, sizeof memory, kWholeAccess);
  ASSERT_NE(under, nullptr);
  ibv_mw* mw = make_window(IBV_MW_TYPE_2, pd);
  ASSERT_NE(mw, nullptr);
  make_pair();
  const uint32_t rkey = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(bind(b, other_cq, mw, rkey, under, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(under), EBUSY);
  ASSERT_EQ(receive(b, 7, 8192, 64), 0);
  ibv_sge sge = span(0, 8);
  ibv_send_wr by_send = request(IBV_WR_SEND_WITH_INV, 6, &sge);
  by_send.invalidate_rkey = rkey;
  ASSERT_EQ(post(a, by_send), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(under), 0);
}

TEST_F(VerbsKeys, QueuePairRights_ChangedWhileConnected_AreApplied) {  // 11.2.5.2, RTS to RTS
  make_pair();
  ASSERT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), mr->rkey), IBV_WC_SUCCESS);
  ibv_qp_attr attr{};
  attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  ASSERT_EQ(ibv_modify_qp(b, &attr, IBV_QP_ACCESS_FLAGS), 0);
  EXPECT_EQ(run(IBV_WR_RDMA_READ, address(4096), mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(4096), mr->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsKeys, ReadOnlyMemory_RightsThatWriteNothing_IsRegistered) {  // manual ibv_reg_mr
  constexpr size_t kPage = 4096;
  void* const page = mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  make_pair();
  for (const int more : {0, +IBV_ACCESS_ZERO_BASED, +IBV_ACCESS_ON_DEMAND, +IBV_ACCESS_HUGETLB}) {
    ibv_mr* const readable = ibv_reg_mr(pd, page, kPage, IBV_ACCESS_REMOTE_READ | more);
    ASSERT_NE(readable, nullptr) << more << ": " << std::strerror(errno);
    std::memset(memory, 'x', 8);
    const uint64_t begin = more == IBV_ACCESS_ZERO_BASED ? 0 : reinterpret_cast<uint64_t>(page);
    EXPECT_EQ(run(IBV_WR_RDMA_READ, begin, readable->rkey), IBV_WC_SUCCESS) << more;
    EXPECT_EQ(memory[0], 0) << more;
    EXPECT_EQ(ibv_dereg_mr(readable), 0);
  }
  for (const int more : {+IBV_ACCESS_LOCAL_WRITE, +IBV_ACCESS_MW_BIND}) {
    EXPECT_EQ(ibv_reg_mr(pd, page, kPage, IBV_ACCESS_REMOTE_READ | more), nullptr) << more;
    EXPECT_EQ(errno, EFAULT);
  }
  munmap(page, kPage);
}

TEST_F(VerbsKeys, MemoryOfAnyProtection_IsRegisteredAsTheKernelDoes) {  // ib_umem_get(), ib_access_writable()
  constexpr size_t kPage = 4096;
  constexpr int kWrites =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
  for (const int protection : {PROT_NONE, PROT_READ, PROT_WRITE, PROT_READ | PROT_WRITE}) {
    void* const page = mmap(nullptr, kPage, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    for (const int access : {0, +IBV_ACCESS_REMOTE_READ, +IBV_ACCESS_LOCAL_WRITE, +IBV_ACCESS_MW_BIND,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ}) {
      const bool expected = (protection & ((access & kWrites) != 0 ? PROT_WRITE : PROT_READ)) != 0;
      ibv_mr* const made = ibv_reg_mr(pd, page, kPage, access);
      EXPECT_EQ(made != nullptr, expected) << "protection " << protection << ", access " << access;
      if (made == nullptr) {
        EXPECT_EQ(errno, EFAULT);
      } else {
        EXPECT_EQ(ibv_dereg_mr(made), 0);
      }
      // With on-demand paging it may be mapped later.
      ibv_mr* const later = ibv_reg_mr(pd, page, kPage, access | IBV_ACCESS_ON_DEMAND);
      ASSERT_NE(later, nullptr) << "protection " << protection << ", access " << access;
      EXPECT_EQ(ibv_dereg_mr(later), 0);
    }
    munmap(page, kPage);
  }
}

TEST_F(VerbsKeys, WriteOnlyMemory_IsWrittenAndRead) {
  constexpr size_t kPage = 4096;
  void* const page = mmap(nullptr, kPage, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  make_pair();
  ibv_mr* const target = ibv_reg_mr(pd, page, kPage, kWholeAccess);
  ASSERT_NE(target, nullptr) << std::strerror(errno);
  std::memset(memory, 'x', 8);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, reinterpret_cast<uint64_t>(page), target->rkey), IBV_WC_SUCCESS);
  std::memset(memory, 0, 8);
  EXPECT_EQ(run(IBV_WR_RDMA_READ, reinterpret_cast<uint64_t>(page), target->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(memory[0], 'x');
  EXPECT_EQ(ibv_dereg_mr(target), 0);
  ASSERT_EQ(mprotect(page, kPage, PROT_READ), 0);
  EXPECT_EQ(*static_cast<const char*>(page), 'x');
  munmap(page, kPage);
}

TEST_F(VerbsKeys, OnDemandRegion_MappedAfterItsRegistration_IsReached) {
  constexpr size_t kPage = 4096;
  void* const page = mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  ibv_mr* const target = ibv_reg_mr(pd, page, kPage, kWholeAccess | IBV_ACCESS_ON_DEMAND);
  ASSERT_NE(target, nullptr) << std::strerror(errno);
  ASSERT_EQ(mprotect(page, kPage, PROT_READ | PROT_WRITE), 0);
  make_pair();
  std::memset(memory, 'x', 8);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, reinterpret_cast<uint64_t>(page), target->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(*static_cast<const char*>(page), 'x');
  EXPECT_EQ(ibv_dereg_mr(target), 0);
  munmap(page, kPage);
}

TEST_F(VerbsKeys, ReregisteredRegion_ZeroBased_BeginsAtZero) {  // manual ibv_rereg_mr
  ibv_mr* moved = reg(memory + 4096, 64, kWholeAccess | IBV_ACCESS_ZERO_BASED);
  ASSERT_NE(moved, nullptr);
  make_pair();
  ASSERT_EQ(ibv_rereg_mr(moved, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, memory + 8192, 32, 0), 0);
  std::strcpy(memory, "moved");
  ASSERT_EQ(run(IBV_WR_RDMA_WRITE, 8, moved->rkey), IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 8192 + 8, "moved");
  ASSERT_EQ(ibv_rereg_mr(moved, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kWholeAccess), 0);
  std::strcpy(memory, "by address");
  ASSERT_EQ(run(IBV_WR_RDMA_WRITE, address(8192), moved->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(memory + 8192, "by addre", 8), 0);
  ASSERT_EQ(ibv_rereg_mr(moved, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kWholeAccess | IBV_ACCESS_ZERO_BASED),
            0);
  std::strcpy(memory, "again");
  ASSERT_EQ(run(IBV_WR_RDMA_WRITE, 0, moved->rkey), IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 8192, "again");
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, address(8192), moved->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsKeys, ReregisteredRights_OfARegionWithAnAddressOfItsOwn_LeaveTheAddress) {  // manual ibv_reg_mr_iova
  constexpr uint64_t kAddress = 0x10000;
  ibv_mr* changed = ibv_reg_mr_iova(pd, memory + 4096, 64, kAddress, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_NE(changed, nullptr);
  mrs.push_back(changed);
  make_pair();
  ASSERT_EQ(ibv_rereg_mr(changed, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kWholeAccess), 0);
  std::strcpy(memory, "there");
  ASSERT_EQ(run(IBV_WR_RDMA_WRITE, kAddress, changed->rkey), IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 4096, "there");
}

}  // namespace
}  // namespace nupa::test
