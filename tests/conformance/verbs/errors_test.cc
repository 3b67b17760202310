// SPDX-License-Identifier: Apache-2.0
/// Errors at both sides of a connection: completion statuses, states, events (IBTA 9.9, 11.6).
#include "fixture.h"

namespace nupa::test {
namespace {

class VerbsErrors : public VerbsPair {
 protected:
  /// `a` was refused with `status`; both queue pairs have stopped; `b` was told `event`.
  void expect_refused(ibv_wc_status status, ibv_event_type event) {
    const ibv_wc wc = next();
    EXPECT_EQ(wc.status, status) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(wc.wr_id, 1u);
    EXPECT_EQ(state_of(a), IBV_QPS_ERR);
    EXPECT_TRUE(reaches(b, IBV_QPS_ERR));
    const ibv_async_event told = next_event();
    EXPECT_EQ(told.event_type, event);
    EXPECT_EQ(told.element.qp, b);
  }
};

TEST_F(VerbsErrors, ReceiveTooSmall_FailsBothSides) {  // 9.9.3.1, length errors; 11.6.2
  make_pair();
  ASSERT_EQ(receive(b, 7, 4096, 16), 0);
  ASSERT_EQ(receive(b, 8, 8192, 64), 0);
  std::memset(memory, 'x', 64);
  ibv_sge sge = span(0, 17);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_EQ(next().status, IBV_WC_REM_INV_REQ_ERR);
  ibv_wc wc = next(other_cq);
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
  wc = next(other_cq);  // the one behind it is flushed
  EXPECT_EQ(wc.wr_id, 8u);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(state_of(a), IBV_QPS_ERR);
  EXPECT_TRUE(reaches(b, IBV_QPS_ERR));
  EXPECT_EQ(memory[4096 + 16], 0);  // nothing behind the buffer was touched
}

TEST_F(VerbsErrors, ReceiveWithAWrongKey_FailsBothSides) {  // 9.9.3.1: the responder's own buffer is at fault
  make_pair();
  ASSERT_EQ(post_recv(b, 7, memory + 4096, 64, mr->lkey + 1), 0);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_EQ(next().status, IBV_WC_REM_OP_ERR);
  const ibv_wc wc = next(other_cq);
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(state_of(a), IBV_QPS_ERR);
  EXPECT_TRUE(reaches(b, IBV_QPS_ERR));
}

TEST_F(VerbsErrors, NoReceive_RnrRetryOfZero_FailsAtOnce) {  // 9.7.5.2.8: a count of 0 is no retry at all
  rnr_retry = 0;
  make_pair();
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
  const ibv_wc wc = next();
  EXPECT_EQ(wc.status, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(state_of(a), IBV_QPS_ERR);
  EXPECT_EQ(state_of(b), IBV_QPS_RTS);  // a receiver that was not ready has done nothing wrong
  EXPECT_EQ(next_event(20).event_type, kNoEvent);
}

TEST_F(VerbsErrors, NoReceive_RnrRetryOfTwo_FailsAfterTwoRetries) {
  rnr_retry = 2;
  min_rnr_timer = 20;  // 10.24 ms
  make_pair();
  ibv_sge sge = span(0, 8);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_EQ(next().status, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::microseconds(2 * 10240));
}

TEST_F(VerbsErrors, NoReceive_PostedBeforeTheLastRetry_Succeeds) {
  rnr_retry = 6;
  min_rnr_timer = 20;
  make_pair();
  std::strcpy(memory, "late");
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_TRUE(stays_empty(cq));
  ASSERT_EQ(receive(b, 7, 4096, 64), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next(other_cq).wr_id, 7u);
  EXPECT_STREQ(memory + 4096, "late");
}

TEST_F(VerbsErrors, WrongRemoteKey_IsARemoteAccessError) {  // 10.6.3.3, 9.7.5.2.4
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    make_pair();
    ibv_sge sge = span(0, 8);
    ibv_send_wr wr = remote(opcode, 1, &sge, 4096);
    wr.wr.rdma.rkey ^= 1;
    ASSERT_EQ(post(a, wr), 0);
    expect_refused(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  }
}

TEST_F(VerbsErrors, WriteBeyondTheRegion_IsARemoteAccessError) {
  make_pair();
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &sge, sizeof memory - 7)), 0);
  expect_refused(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_F(VerbsErrors, WriteToTheLastBytesOfTheRegion_Succeeds) {
  make_pair();
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &sge, sizeof memory - 8)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

TEST_F(VerbsErrors, RegionWithoutTheRight_IsARemoteAccessError) {
  ibv_mr* read_only = reg(memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  ASSERT_NE(read_only, nullptr);
  make_pair();
  ibv_sge sge = span(4096, 8);
  ibv_send_wr wr = remote(IBV_WR_RDMA_READ, 2, &sge, 0);
  wr.wr.rdma.rkey = read_only->rkey;
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  wr.wr_id = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  ASSERT_EQ(post(a, wr), 0);
  expect_refused(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_F(VerbsErrors, QueuePairWithoutTheRight_IsRefused) {  // 11.2.5.2: the queue pair's own rights count too
  qp_access = IBV_ACCESS_REMOTE_READ;
  make_pair();
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096)), 0);
  expect_refused(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_F(VerbsErrors, RegionOfAnotherDomain_IsARemoteAccessError) {  // 10.6.3.3
  make_pair();
  ibv_pd* foreign = ibv_alloc_pd(context);
  ASSERT_NE(foreign, nullptr);
  ibv_mr* theirs = ibv_reg_mr(foreign, memory, 4096, kWholeAccess);
  ASSERT_NE(theirs, nullptr);
  ibv_sge sge = span(4096, 8);
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 1, &sge, 0);
  wr.wr.rdma.rkey = theirs->rkey;
  ASSERT_EQ(post(a, wr), 0);
  expect_refused(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(theirs), 0);
  EXPECT_EQ(ibv_dealloc_pd(foreign), 0);
}

TEST_F(VerbsErrors, AtomicOnAnUnalignedAddress_IsRefused) {  // 9.4.5: addresses are multiples of eight
  make_pair();
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge);
  wr.wr.atomic = {address(4096 + 4), 1, 0, mr->rkey};
  ASSERT_EQ(post(a, wr), 0);
  expect_refused(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  for (size_t i = 4096; i < 4096 + 16; ++i) EXPECT_EQ(memory[i], 0);
}

TEST_F(VerbsErrors, WrongLocalKey_StopsTheSenderOnly) {  // 9.9.2.3, 10.3.1.4
  make_pair();
  ibv_sge sge{address(0), 8, mr->lkey + 1};
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096)), 0);
  EXPECT_EQ(next().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(state_of(a), IBV_QPS_ERR);
  EXPECT_EQ(state_of(b), IBV_QPS_RTS);
  // A read into memory that must not be written.
  ibv_mr* constant = reg(memory, 4096, IBV_ACCESS_REMOTE_READ);
  make_pair();
  sge = {address(0), 8, constant->lkey};
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_READ, 1, &sge, 4096)), 0);
  EXPECT_EQ(next().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(state_of(b), IBV_QPS_RTS);
}

TEST_F(VerbsErrors, LocalFault_IsReportedInPostingOrder) {  // 10.8.5: completions come in the order of the requests
  ibv_mr* null = ibv_alloc_null_mr(pd);
  ASSERT_NE(null, nullptr);
  mrs.push_back(null);
  ibv_mr* constant = reg(memory, 4096, IBV_ACCESS_REMOTE_READ);
  ibv_sge wrong_key{address(0), 8, mr->lkey + 1};
  ibv_sge not_writable{address(0), 8, constant->lkey};
  ibv_sge too_long{0, 0x80000001u, null->lkey};  // 9.3.2: 2 GiB are the longest message
  const struct {
    ibv_wr_opcode opcode;
    ibv_sge* list;
    ibv_wc_status status;
  } faults[] = {{IBV_WR_RDMA_WRITE, &wrong_key, IBV_WC_LOC_PROT_ERR},
                {IBV_WR_RDMA_READ, &not_writable, IBV_WC_LOC_PROT_ERR},
                {IBV_WR_RDMA_WRITE, &too_long, IBV_WC_LOC_LEN_ERR}};
  for (const auto& fault : faults) {
    make_pair();
    ibv_sge whole = span(0, 4096);
    ibv_sge few = span(8192, 8);
    for (uint64_t i = 1; i <= 8; ++i)
      ASSERT_EQ(post(a, remote(i % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, i, i % 2 == 0 ? &whole : &few, 4096)),
                0);
    ASSERT_EQ(post(a, remote(fault.opcode, 9, fault.list, 4096)), 0);
    ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 10, &few, 12288)), 0);
    for (uint64_t i = 1; i <= 10; ++i) {
      const ibv_wc wc = next();
      EXPECT_EQ(wc.wr_id, i);
      EXPECT_EQ(wc.status, i < 9 ? IBV_WC_SUCCESS : i == 9 ? fault.status : IBV_WC_WR_FLUSH_ERR) << i;
    }
    EXPECT_EQ(state_of(a), IBV_QPS_ERR);
    EXPECT_EQ(state_of(b), IBV_QPS_RTS);
  }
}

TEST_F(VerbsErrors, UnreliableConnection_WrongLocalKey_StopsTheSendQueueOnly) {  // 10.3.1.6, send queue error state
  make_pair(IBV_QPT_UC);
  ibv_sge wrong{address(0), 8, mr->lkey + 1};
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &wrong, 4096)), 0);
  EXPECT_EQ(next().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(state_of(a), IBV_QPS_SQE);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 2, &sge, 4096)), 0);
  EXPECT_EQ(next().status, IBV_WC_WR_FLUSH_ERR);
  // Receiving goes on meanwhile.
  ASSERT_EQ(receive(a, 3, 8192, 64), 0);
  ASSERT_EQ(post(b, request(IBV_WR_SEND, 4, &sge)), 0);
  EXPECT_EQ(next().wr_id, 3u);
  EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
  ASSERT_EQ(move(a, IBV_QPS_RTS), 0);
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 5, &sge, 4096)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

TEST_F(VerbsErrors, UnreliableConnection_ReceiveWithAWrongKey_SenderSucceeds) {  // 9.8.2: nothing comes back
  make_pair(IBV_QPT_UC);
  ibv_sge wrong{address(8192), 64, mr->lkey + 1};
  ibv_recv_wr* bad = nullptr;
  ibv_recv_wr posted{3, nullptr, &wrong, 1};
  ASSERT_EQ(ibv_post_recv(b, &posted, &bad), 0);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 4, &sge)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(state_of(a), IBV_QPS_RTS);
  const ibv_wc received = next(other_cq);
  EXPECT_EQ(received.wr_id, 3u);
  EXPECT_EQ(received.status, IBV_WC_LOC_PROT_ERR);
}

TEST_F(
    VerbsErrors,
    UnreliableConnection_MessageLargerThanTheReceive_IsDropped) {  // 9.9.3.1, class D1: the receive waits for the next
  make_pair(IBV_QPT_UC);
  ASSERT_EQ(receive(b, 7, 4096, 16), 0);
  ibv_sge sge = span(0, 17);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(stays_empty(other_cq));
  sge.length = 16;
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 2, &sge)), 0);
  const ibv_wc wc = next(other_cq);
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(wc.byte_len, 16u);
}

TEST_F(VerbsErrors, UnreliableConnection_NoReceive_IsDropped) {  // 9.8.2.2
  make_pair(IBV_QPT_UC);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  catch_up();
  ASSERT_EQ(receive(b, 7, 4096, 64), 0);
  EXPECT_TRUE(stays_empty(other_cq));
  // A wrong remote key: dropped too, nobody stops.
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 2, &sge, 4096);
  wr.wr.rdma.rkey ^= 1;
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  catch_up();
  EXPECT_EQ(state_of(a), IBV_QPS_RTS);
  EXPECT_EQ(state_of(b), IBV_QPS_RTS);
}

}  // namespace
}  // namespace nupa::test
