// SPDX-License-Identifier: Apache-2.0
/// Rules of requests and their completions on one connection (IBTA 10.8).
#include <fcntl.h>

#include <string>

#include "fixture.h"

extern "C" int nupa_verbs_post_inline(ibv_qp* qp, const ibv_send_wr* wr);  // src/verbs/private.h

namespace nupa::test {
namespace {

class VerbsRequests : public VerbsPair {
 protected:
  /// One event of the queue and one of the queue pair, in either order, and no more.
  void expect_overrun(ibv_cq* full, ibv_qp* failed) {
    int of_queue = 0, of_pair = 0;
    for (int i = 0; i < 2; ++i) {
      const ibv_async_event event = next_event();
      of_queue += event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == full;
      of_pair += event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == failed;
    }
    EXPECT_EQ(of_queue, 1);
    EXPECT_EQ(of_pair, 1);
    EXPECT_EQ(next_event(20).event_type, kNoEvent);
  }
};

TEST_F(VerbsRequests, FencedWrite_AfterARead_SendsTheReadData) {  // 10.8.3.3
  make_pair();
  std::strcpy(memory + 4096, "from there");
  ibv_sge sge = span(0, 16);
  ibv_send_wr read = remote(IBV_WR_RDMA_READ, 1, &sge, 4096);
  ibv_send_wr write = remote(IBV_WR_RDMA_WRITE, 2, &sge, 8192);
  write.send_flags |= IBV_SEND_FENCE;
  read.next = &write;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a, &read, &bad), 0);
  EXPECT_EQ(next().wr_id, 1u);
  EXPECT_EQ(next().wr_id, 2u);
  EXPECT_STREQ(memory + 8192, "from there");
}

TEST_F(VerbsRequests,
       UnsignaledRequests_RetireWithTheNextSignaledOne) {  // 10.8.6: a completion frees what was before it
  ibv_qp_init_attr attr = init();
  attr.cap.max_send_wr = 4;
  a = keep(ibv_create_qp(pd, &attr));
  connect(a, a);
  const uint32_t room = attr.cap.max_send_wr;
  ibv_sge sge = span(0, 8);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < room; ++i) {
      ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, i, &sge, 4096);
      if (i + 1 < room) wr.send_flags = 0;
      ASSERT_EQ(post(a, wr), 0) << round << " " << i;
    }
    // All of it is done, but the program has not been told: the entries are its own until then.
    EXPECT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 99, &sge, 4096)), ENOMEM);
    EXPECT_EQ(next().wr_id, room - 1);
    EXPECT_TRUE(stays_empty(cq));
  }
}

TEST_F(VerbsRequests, SqSigAll_EachRequest_IsSignaled) {
  ibv_qp_init_attr attr = init();
  attr.sq_sig_all = 1;
  a = keep(ibv_create_qp(pd, &attr));
  connect(a, a);
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 5, &sge, 4096);
  wr.send_flags = 0;
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().wr_id, 5u);
}

TEST_F(VerbsRequests, UnsignaledRequest_Fails_IsReported) {  // 10.7.3.1: errors complete always
  make_pair();
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 5, &sge, 4096);
  wr.send_flags = 0;
  wr.wr.rdma.rkey ^= 1;
  ASSERT_EQ(post(a, wr), 0);
  const ibv_wc wc = next();
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsRequests, InlineData_LongerThanTheLimitInAPostThatExecutes_IsSent) {  // nupa_verbs_post_inline()
  constexpr uint32_t kBytes = 4000;
  make_pair();
  std::vector<char> own(kBytes, 'x');  // no key names it
  ibv_sge sge{reinterpret_cast<uint64_t>(own.data()), kBytes, 0};
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 1, &sge, 8192);
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  EXPECT_EQ(post(a, wr), EINVAL);
  if (!copies_in_post()) {
    EXPECT_EQ(nupa_verbs_post_inline(a, &wr), EINVAL);
    return;
  }
  ASSERT_EQ(nupa_verbs_post_inline(a, &wr), 0);
  std::fill(own.begin(), own.end(), 'y');
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::string(memory + 8192, kBytes), std::string(kBytes, 'x'));
}

TEST_F(VerbsRequests, InlineBuffer_OverwrittenAfterThePost_DoesNotChangeTheMessage) {  // manual ibv_post_send
  make_pair();
  char text[] = "first";  // not registered
  ibv_sge sge{reinterpret_cast<uint64_t>(text), sizeof text, 0};
  ibv_send_wr wr = request(IBV_WR_SEND, 1, &sge);
  wr.send_flags |= IBV_SEND_INLINE;
  ASSERT_EQ(post(a, wr), 0);  // no receive is posted: it waits
  std::strcpy(text, "again");
  wr.wr_id = 2;
  ASSERT_EQ(post(a, wr), 0);
  std::strcpy(text, "wrong");
  ASSERT_EQ(receive(b, 7, 4096, 64), 0);
  ASSERT_EQ(receive(b, 8, 8192, 64), 0);
  EXPECT_EQ(next(other_cq).wr_id, 7u);
  EXPECT_EQ(next(other_cq).wr_id, 8u);
  EXPECT_STREQ(memory + 4096, "first");
  EXPECT_STREQ(memory + 8192, "again");
  EXPECT_EQ(next().wr_id, 1u);
  EXPECT_EQ(next().wr_id, 2u);
}

TEST_F(VerbsRequests, InlineList_HasToWait_ArrivesWhole) {  // manual ibv_post_send
  make_pair();
  char first[] = "one ", second[] = "two";
  ibv_sge list[] = {{reinterpret_cast<uint64_t>(first), 4, 0}, {reinterpret_cast<uint64_t>(second), 4, 0}};
  ibv_send_wr wr = request(IBV_WR_SEND, 1, list);
  wr.num_sge = 2;
  wr.send_flags |= IBV_SEND_INLINE;
  ASSERT_EQ(post(a, wr), 0);  // no receive is posted: it waits
  std::strcpy(first, "xxx");
  ASSERT_EQ(receive(b, 7, 4096, 64), 0);
  EXPECT_EQ(next(other_cq).byte_len, 8u);
  EXPECT_STREQ(memory + 4096, "one two");
}

TEST_F(VerbsRequests, Lists_AreGatheredAndScattered) {
  make_pair();
  std::strcpy(memory, "abcdefghijklmno");
  ibv_sge from[] = {span(0, 3), span(3, 0), span(3, 6), span(9, 7)};
  ibv_sge to[] = {span(4096, 5), span(5000, 1), span(6000, 64)};
  ibv_recv_wr recv{}, *bad_recv = nullptr;
  recv.sg_list = to;
  recv.num_sge = 3;
  ASSERT_EQ(ibv_post_recv(b, &recv, &bad_recv), 0);
  ibv_send_wr wr = request(IBV_WR_SEND, 1, from);
  wr.num_sge = 4;
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next(other_cq).byte_len, 16u);
  EXPECT_EQ(std::string(memory + 4096, 5) + std::string(memory + 5000, 1) + (memory + 6000), "abcdefghijklmno");
}

TEST_F(VerbsRequests, ReadsAndWrites_AboutAWordLong_CopyTheirBytesOnly) {
  make_pair();
  const std::string text = "0123456789abcdefghijklmn";
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE})
    for (const uint32_t length : {1u, 4u, 7u, 8u, 9u, 15u, 16u, 17u})
      for (const size_t skew : {0u, 3u, 4u}) {
        char* const from = memory + (opcode == IBV_WR_RDMA_READ ? 4096 : 0);
        char* const to = memory + (opcode == IBV_WR_RDMA_READ ? 0 : 4096) + skew;
        std::memcpy(from, text.data(), text.size());
        std::memset(to, '.', text.size());
        ibv_sge sge = span(static_cast<size_t>((opcode == IBV_WR_RDMA_READ ? to : from) - memory), length);
        const size_t far = static_cast<size_t>((opcode == IBV_WR_RDMA_READ ? from : to) - memory);
        ASSERT_EQ(post(a, remote(opcode, 1, &sge, far)), 0);
        EXPECT_EQ(next().status, IBV_WC_SUCCESS);
        EXPECT_EQ(std::string(to, text.size()), text.substr(0, length) + std::string(text.size() - length, '.'))
            << opcode << " " << length << " " << skew;
      }
}

TEST_F(VerbsRequests, EmptyMessages_WithoutMemory_Succeed) {
  make_pair();
  ASSERT_EQ(post_recv(b, 7, nullptr, 0, 0), 0);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, nullptr)), 0);
  const ibv_wc wc = next(other_cq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 0u);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 2, nullptr);  // 9.7.4.2: the key of an empty access is not looked at
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

TEST_F(VerbsRequests, AtomicWrite_OtherThanEightBytes_IsRefused) {
  make_pair();
  std::strcpy(memory, "8 bytes");
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, remote(IBV_WR_ATOMIC_WRITE, 1, &sge, 4096)), 0);
  const ibv_wc wc = next();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_ATOMIC_WRITE);
  EXPECT_STREQ(memory + 4096, "8 bytes");
  for (const uint32_t length : {0u, 4u, 16u}) {
    sge.length = length;
    EXPECT_EQ(post(a, remote(IBV_WR_ATOMIC_WRITE, 2, &sge, 4096)), EINVAL) << length;
  }
  EXPECT_EQ(post(a, remote(IBV_WR_ATOMIC_WRITE, 2, nullptr, 4096)), EINVAL);
  EXPECT_STREQ(memory + 4096, "8 bytes");
}

TEST_F(VerbsRequests, WriteWithImmediate_ConsumesAReceiveWithoutItsBuffer) {  // 9.4.1.1
  make_pair();
  ASSERT_EQ(receive(b, 7, 8192, 64), 0);
  std::strcpy(memory, "written");
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE_WITH_IMM, 1, &sge, 4096);
  wr.imm_data = htobe32(77);
  ASSERT_EQ(post(a, wr), 0);
  const ibv_wc wc = next(other_cq);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(wc.imm_data, htobe32(77));
  EXPECT_EQ(wc.byte_len, 8u);
  EXPECT_STREQ(memory + 4096, "written");
  EXPECT_EQ(memory[8192], 0);
}

TEST_F(VerbsRequests, FailedCompletionCountsAsSolicited) {  // 11.4.2.2
  ibv_comp_channel* channel = ibv_create_comp_channel(context);
  ASSERT_NE(channel, nullptr);
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK), 0);
  ibv_cq* watched = ibv_create_cq(context, 16, nullptr, channel, 0);
  ASSERT_NE(watched, nullptr);
  ASSERT_EQ(ibv_req_notify_cq(watched, 1), 0);
  ibv_qp_init_attr attr = init();
  attr.send_cq = attr.recv_cq = watched;
  ibv_qp* qp = ibv_create_qp(pd, &attr);
  connect(qp, qp);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(qp, remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096)), 0);
  EXPECT_EQ(next(watched).wr_id, 1u);
  ibv_cq* from = nullptr;
  void* tag = nullptr;
  EXPECT_EQ(ibv_get_cq_event(channel, &from, &tag), -1);
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 2, &sge, 4096);
  wr.wr.rdma.rkey ^= 1;
  ASSERT_EQ(post(qp, wr), 0);
  EXPECT_TRUE(becomes_readable(channel));
  EXPECT_EQ(ibv_get_cq_event(channel, &from, &tag), 0);
  ibv_ack_cq_events(watched, 1);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(watched), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST_F(VerbsRequests,
       Queues_BeyondTheirLength_FailWithEnomem) {  // 10.8.2: ENOMEM beyond (manuals ibv_post_recv, ibv_post_send)
  for (const uint32_t wanted : {1u, 5u, 8u, 16u}) {
    ibv_srq_init_attr srq_attr{};
    srq_attr.attr = {wanted, 1, 0};
    ibv_srq* shared = ibv_create_srq(pd, &srq_attr);
    ASSERT_NE(shared, nullptr);
    ibv_qp_init_attr attr = init();
    attr.cap.max_recv_wr = attr.cap.max_send_wr = wanted;
    ibv_qp* qp = ibv_create_qp(pd, &attr);
    connect(qp, qp);
    ibv_recv_wr recv{}, *bad = nullptr;
    for (uint32_t i = 0; i < srq_attr.attr.max_wr; ++i) EXPECT_EQ(ibv_post_srq_recv(shared, &recv, &bad), 0);
    EXPECT_EQ(ibv_post_srq_recv(shared, &recv, &bad), ENOMEM) << wanted;
    for (uint32_t round = 0; round < 3; ++round) {
      for (uint32_t i = 0; i < attr.cap.max_recv_wr; ++i) EXPECT_EQ(ibv_post_recv(qp, &recv, &bad), 0);
      EXPECT_EQ(ibv_post_recv(qp, &recv, &bad), ENOMEM) << wanted;
      for (uint32_t i = 0; i < attr.cap.max_recv_wr; ++i) {
        ASSERT_EQ(post(qp, request(IBV_WR_SEND, 1, nullptr)), 0);
        EXPECT_EQ(next().status, IBV_WC_SUCCESS);
        EXPECT_EQ(next().status, IBV_WC_SUCCESS);
      }
    }
    for (uint32_t i = 0; i < attr.cap.max_send_wr; ++i) EXPECT_EQ(post(qp, request(IBV_WR_SEND, 1, nullptr)), 0);
    EXPECT_EQ(post(qp, request(IBV_WR_SEND, 1, nullptr)), ENOMEM) << wanted;
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_srq(shared), 0);
  }
}

TEST_F(VerbsRequests, CompletionQueueOverrun_IsReportedOnce) {  // 10.2.6.2, 11.6.3.1
  ibv_cq* small = ibv_create_cq(context, 1, nullptr, nullptr, 0);
  ASSERT_NE(small, nullptr);
  const int room = small->cqe + 1;  // what the ring holds
  ibv_qp_init_attr attr = init();
  attr.send_cq = attr.recv_cq = small;
  ibv_qp* qp = ibv_create_qp(pd, &attr);
  connect(qp, qp);
  ibv_sge sge = span(0, 8);
  for (int i = 0; i < room + 2; ++i) {
    ASSERT_EQ(post(qp, remote(IBV_WR_RDMA_WRITE, static_cast<uint64_t>(i), &sge, 4096)), 0);
  }
  expect_overrun(small, qp);
  EXPECT_EQ(state_of(qp), IBV_QPS_ERR);
  ibv_wc wc;
  for (int i = 0; i < room; ++i) EXPECT_EQ(ibv_poll_cq(small, 1, &wc), 1);
  EXPECT_LT(ibv_poll_cq(small, 1, &wc), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(small), 0);
}

TEST_F(VerbsRequests, CompletionQueueOverrun_OfAnExtendedQueue_FailsItsPolls) {  // manual ibv_create_cq_ex
  ibv_cq_init_attr_ex wanted{};
  wanted.cqe = 1;
  ibv_cq_ex* small = ibv_create_cq_ex(context, &wanted);
  ASSERT_NE(small, nullptr);
  const int room = small->cqe + 1;
  ibv_qp_init_attr attr = init();
  attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(small);
  ibv_qp* qp = ibv_create_qp(pd, &attr);
  connect(qp, qp);
  ibv_sge sge = span(0, 8);
  for (int i = 0; i < room + 2; ++i)
    ASSERT_EQ(post(qp, remote(IBV_WR_RDMA_WRITE, static_cast<uint64_t>(i), &sge, 4096)), 0);
  expect_overrun(attr.send_cq, qp);
  ibv_poll_cq_attr poll{};
  ASSERT_EQ(ibv_start_poll(small, &poll), 0);
  for (int i = 1; i < room; ++i) EXPECT_EQ(ibv_next_poll(small), 0);
  EXPECT_EQ(ibv_next_poll(small), EIO);
  ibv_end_poll(small);
  EXPECT_EQ(ibv_start_poll(small, &poll), EIO);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(attr.send_cq), 0);
}

TEST_F(VerbsRequests, CompletionQueueOverrun_ByAReceive_FailsItsQueuePair) {  // 11.6.3.1, 11.6.3.2
  ibv_cq* small = ibv_create_cq(context, 1, nullptr, nullptr, 0);
  ASSERT_NE(small, nullptr);
  const int room = small->cqe + 1;
  ibv_qp_init_attr attr = init();
  ibv_qp* sender = ibv_create_qp(pd, &attr);
  attr.recv_cq = small;
  ibv_qp* receiver = ibv_create_qp(pd, &attr);
  connect(sender, receiver);
  ibv_sge sge = span(0, 8);
  for (int i = 0; i <= room; ++i) {
    ibv_recv_wr recv{};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(receiver, &recv, &bad), 0);
    ASSERT_EQ(post(sender, request(IBV_WR_SEND, static_cast<uint64_t>(i), nullptr)), 0);
    EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  }
  expect_overrun(small, receiver);
  EXPECT_EQ(state_of(receiver), IBV_QPS_ERR);
  EXPECT_EQ(state_of(sender), IBV_QPS_RTS);
  ASSERT_EQ(post(sender, remote(IBV_WR_RDMA_WRITE, 99, &sge, 4096)), 0);
  EXPECT_EQ(next().status, IBV_WC_RETRY_EXC_ERR) << "the responder takes no more requests";
  EXPECT_EQ(ibv_destroy_qp(sender), 0);
  EXPECT_EQ(ibv_destroy_qp(receiver), 0);
  EXPECT_EQ(ibv_destroy_cq(small), 0);
}

TEST_F(VerbsRequests, CompletionQueueOverrun_IgnoreOverrunFlag_IsNotReported) {  // manual ibv_create_cq_ex
  ibv_cq_init_attr_ex wanted{};
  wanted.cqe = 1;
  wanted.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  wanted.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  ibv_cq_ex* small = ibv_create_cq_ex(context, &wanted);
  ASSERT_NE(small, nullptr);
  ibv_qp_init_attr attr = init();
  attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(small);
  ibv_qp* qp = ibv_create_qp(pd, &attr);
  connect(qp, qp);
  ibv_sge sge = span(0, 8);
  for (uint64_t i = 0; i < 8; ++i) ASSERT_EQ(post(qp, remote(IBV_WR_RDMA_WRITE, i, &sge, 4096)), 0);
  EXPECT_EQ(next_event(20).event_type, kNoEvent);
  ibv_wc wc;
  int found = 0;
  while (ibv_poll_cq(attr.send_cq, 1, &wc) == 1) ++found;
  EXPECT_GE(found, 1);
  EXPECT_EQ(ibv_poll_cq(attr.send_cq, 1, &wc), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(attr.send_cq), 0);
}

}  // namespace
}  // namespace nupa::test
