// SPDX-License-Identifier: Apache-2.0
/// The operations of each service, the fields of their completions, and exact limits.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "fixture.h"

namespace nupa::test {
namespace {

class VerbsOperations : public VerbsPair {
 protected:
  void TearDown() override {
    if (ah != nullptr) {
      EXPECT_EQ(ibv_destroy_ah(ah), 0);
    }
    VerbsPair::TearDown();
  }
  /// Two datagram queue pairs, and the way to `b`.
  void make_datagram_pair() {
    a = make_qp(IBV_QPT_UD);
    ibv_qp_init_attr attr = init(IBV_QPT_UD);
    attr.send_cq = attr.recv_cq = other_cq;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 12;
    b = keep(ibv_create_qp(pd, &attr));
    connect(a, b);
    ibv_ah_attr way = path();
    way.sl = 3;
    ah = ibv_create_ah(pd, &way);
    ASSERT_NE(ah, nullptr);
  }
  ibv_send_wr datagram(ibv_qp* to, uint64_t wr_id, ibv_sge* list, int entries) {
    ibv_send_wr wr = request(IBV_WR_SEND, wr_id, list);
    wr.num_sge = entries;
    wr.wr.ud = {ah, to->qp_num, kQkey};
    return wr;
  }

  ibv_ah* ah = nullptr;
};

TEST_F(VerbsOperations, UnreliableConnection_ReadsAndAtomics_AreRefused) {  // IBTA table 89
  make_pair(IBV_QPT_UC);
  ibv_sge sge = span(0, 8);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_WRITE})
    EXPECT_EQ(post(a, remote(opcode, 1, &sge, 4096)), EINVAL) << opcode;
  for (const ibv_wr_opcode opcode : {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP}) {
    ibv_send_wr wr = request(opcode, 1, &sge);
    wr.wr.atomic = {address(4096), 1, 1, mr->rkey};
    EXPECT_EQ(post(a, wr), EINVAL) << opcode;
  }
  EXPECT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

TEST_F(VerbsOperations, Datagram_WithoutAnAddressHandle_IsRefused) {
  make_datagram_pair();
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = datagram(b, 1, &sge, 1);
  wr.wr.ud.ah = nullptr;
  EXPECT_EQ(post(a, wr), EINVAL);
  EXPECT_TRUE(stays_empty(cq));
}

TEST_F(VerbsOperations, BindMw_WithoutARegion_IsRefused) {
  make_pair();
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  ASSERT_NE(mw, nullptr);
  ibv_send_wr wr = request(IBV_WR_BIND_MW, 1, nullptr);
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
  wr.bind_mw.bind_info = {nullptr, address(0), 64, IBV_ACCESS_REMOTE_WRITE};
  EXPECT_EQ(post(a, wr), EINVAL);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

TEST_F(VerbsOperations, Completions_HaveTheirOperation) {  // 11.4.2.1
  make_pair();
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(receive(b, 10 + i, 8192, 64), 0);
  ibv_sge sge = span(0, 8);
  const struct {
    ibv_wr_opcode opcode;
    ibv_wc_opcode there;
  } operations[] = {{IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE},
                    {IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE},
                    {IBV_WR_SEND, IBV_WC_SEND},
                    {IBV_WR_SEND_WITH_IMM, IBV_WC_SEND},
                    {IBV_WR_RDMA_READ, IBV_WC_RDMA_READ},
                    {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_COMP_SWAP},
                    {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD},
                    {IBV_WR_ATOMIC_WRITE, IBV_WC_ATOMIC_WRITE}};
  for (uint64_t i = 0; const auto& each : operations) {
    ibv_send_wr wr = remote(each.opcode, ++i, &sge, 4096);
    if (each.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || each.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      wr.wr.atomic = {address(4096), 0, 0, mr->rkey};
    ASSERT_EQ(post(a, wr), 0);
    const ibv_wc wc = next();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << each.opcode;
    EXPECT_EQ(wc.opcode, each.there) << each.opcode;
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(wc.qp_num, a->qp_num);
  }
  for (const ibv_wc_opcode opcode : {IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_RECV, IBV_WC_RECV}) {
    const ibv_wc wc = next(other_cq);
    EXPECT_EQ(wc.opcode, opcode);
    EXPECT_EQ(wc.qp_num, b->qp_num);
  }
}

TEST_F(VerbsOperations, CompletionOfADatagram_HasSenderAndFlags) {  // 11.4.2.1
  make_datagram_pair();
  ASSERT_EQ(receive(b, 7, 4096, 128), 0);
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = datagram(b, 1, &sge, 1);
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.imm_data = htobe32(0x1234);
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  const ibv_wc wc = next(other_cq);
  EXPECT_EQ(wc.src_qp, a->qp_num);
  EXPECT_EQ(wc.qp_num, b->qp_num);
  EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_GRH | IBV_WC_WITH_IMM));
  EXPECT_EQ(wc.imm_data, htobe32(0x1234));
  EXPECT_EQ(wc.byte_len, 48u);
  if (!sends_packets()) {
    EXPECT_EQ(wc.sl, 3);  // packets of RoCE carry none
  }
}

TEST_F(VerbsOperations, DatagramOfManyEntries_ArrivesWhole) {
  make_datagram_pair();
  for (int i = 0; i < 64; ++i) memory[i] = static_cast<char>('a' + i % 26);
  for (const int entries : {1, 7, 8, 9, 12}) {
    ASSERT_EQ(receive(a, 7, 4096, 128), 0);
    std::vector<ibv_sge> list;
    for (int i = 0; i < entries; ++i) list.push_back(span(static_cast<size_t>(i) * 2, 2));
    ASSERT_EQ(post(b, datagram(a, 1, list.data(), entries)), 0);
    EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS) << entries;
    EXPECT_EQ(next().byte_len, 40u + static_cast<uint32_t>(entries) * 2);
    EXPECT_EQ(std::memcmp(memory + 4096 + 40, memory, static_cast<size_t>(entries) * 2), 0) << entries;
  }
}

TEST_F(VerbsOperations,
       AddressHandleOfAWaitingDatagram_Destroyed_DatagramIsSent) {  // 10.3.1.5; the handle is read by the post alone
  make_datagram_pair();
  ASSERT_EQ(receive(b, 7, 4096, 128), 0);
  ASSERT_EQ(move(a, IBV_QPS_SQD), 0);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, datagram(b, 1, &sge, 1)), 0);
  if (!sends_packets()) {
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
    ah = nullptr;
  }
  ASSERT_EQ(move(a, IBV_QPS_RTS), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next(other_cq).wr_id, 7u);
}

TEST_F(VerbsOperations, ReceiveLists_OfAnyLength_AreSeparate) {
  ibv_device_attr limits{};
  ASSERT_EQ(ibv_query_device(context, &limits), 0);
  for (uint32_t entries = 1; entries <= std::min<uint32_t>(12, static_cast<uint32_t>(limits.max_sge)); ++entries) {
    ibv_qp_init_attr attr = init();
    attr.send_cq = attr.recv_cq = other_cq;
    attr.cap.max_recv_sge = entries;
    b = keep(ibv_create_qp(pd, &attr));
    ASSERT_NE(b, nullptr);
    a = make_qp();
    connect(a, b);
    std::memset(memory + 4096, 0, 4096);
    for (uint32_t i = 0; i < entries; ++i) memory[i] = static_cast<char>('a' + i);
    for (size_t each = 0; each < 3; ++each) {
      std::vector<ibv_sge> list;
      for (uint32_t i = 0; i < entries; ++i) list.push_back(span(4096 + each * 256 + i * 8, 1));
      ibv_recv_wr recv{}, *bad = nullptr;
      recv.wr_id = each;
      recv.sg_list = list.data();
      recv.num_sge = static_cast<int>(entries);
      ASSERT_EQ(ibv_post_recv(b, &recv, &bad), 0);
    }
    for (size_t each = 0; each < 3; ++each) {
      ibv_sge sge = span(0, entries);
      ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
      EXPECT_EQ(next().status, IBV_WC_SUCCESS);
      const ibv_wc wc = next(other_cq);
      EXPECT_EQ(wc.wr_id, each);
      for (uint32_t i = 0; i < entries; ++i)
        EXPECT_EQ(memory[4096 + each * 256 + i * 8], static_cast<char>('a' + i)) << entries << " " << each << " " << i;
    }
  }
}

TEST_F(VerbsOperations, CreateQp_UpToTheDevicesLimits_Succeeds) {
  ibv_device_attr limits{};
  ASSERT_EQ(ibv_query_device(context, &limits), 0);
  const auto wr = static_cast<uint32_t>(limits.max_qp_wr), sge = static_cast<uint32_t>(limits.max_sge);
  const struct {
    uint32_t ibv_qp_cap::*what;
    uint32_t limit;
  } caps[] = {{&ibv_qp_cap::max_send_wr, wr},
              {&ibv_qp_cap::max_recv_wr, wr},
              {&ibv_qp_cap::max_send_sge, sge},
              {&ibv_qp_cap::max_recv_sge, sge},
              {&ibv_qp_cap::max_inline_data, 4096}};
  for (const auto& cap : caps)
    for (const uint32_t beyond : {0u, 1u}) {
      ibv_qp_init_attr attr = init();
      attr.cap.*cap.what = cap.limit + beyond;
      ibv_qp* made = ibv_create_qp(pd, &attr);
      EXPECT_EQ(made != nullptr, beyond == 0) << cap.limit;
      if (made != nullptr) {
        EXPECT_GE(attr.cap.*cap.what, cap.limit);
        EXPECT_EQ(ibv_destroy_qp(made), 0);
      }
    }
  for (const uint32_t beyond : {0u, 1u}) {
    ibv_srq_init_attr attr{};
    attr.attr = {static_cast<uint32_t>(limits.max_srq_wr) + beyond, 1, 0};
    ibv_srq* made = ibv_create_srq(pd, &attr);
    EXPECT_EQ(made != nullptr, beyond == 0);
    if (made != nullptr) {
      EXPECT_EQ(ibv_destroy_srq(made), 0);
    }
    attr.attr = {1, static_cast<uint32_t>(limits.max_srq_sge) + beyond, 0};
    made = ibv_create_srq(pd, &attr);
    EXPECT_EQ(made != nullptr, beyond == 0);
    if (made != nullptr) {
      EXPECT_EQ(ibv_destroy_srq(made), 0);
    }
  }
}

TEST_F(VerbsOperations, Tables_IndexBeyondTheLength_IsRefused) {
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  ibv_gid_entry entry{};
  const auto length = static_cast<uint32_t>(port.gid_tbl_len);
  EXPECT_EQ(ibv_query_gid_ex(context, 1, length, &entry, 0), EINVAL);
  ibv_gid gid{};
  EXPECT_EQ(ibv_query_gid(context, 1, static_cast<int>(length) - 1, &gid), 0);
  EXPECT_LT(ibv_query_gid(context, 1, static_cast<int>(length), &gid), 0);
  __be16 pkey;
  EXPECT_EQ(ibv_query_pkey(context, 1, 0, &pkey), 0);
  EXPECT_LT(ibv_query_pkey(context, 1, 1, &pkey), 0);
  EXPECT_LT(ibv_query_pkey(context, 2, 0, &pkey), 0);
  EXPECT_EQ(ibv_query_port(context, 0, &port), EINVAL);
  ibv_alloc_dm_attr dm{};
  dm.length = 64;
  dm.log_align_req = 12;
  ibv_dm* page = ibv_alloc_dm(context, &dm);
  ASSERT_NE(page, nullptr);
  EXPECT_EQ(ibv_free_dm(page), 0);
  dm.log_align_req = 13;
  EXPECT_EQ(ibv_alloc_dm(context, &dm), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(VerbsOperations, DeallocPd_UsedByAnObject_IsRefused) {
  ibv_pd* domain = ibv_alloc_pd(context);
  ASSERT_NE(domain, nullptr);
  ibv_mr* region = ibv_reg_mr(domain, memory, 4096, kWholeAccess);
  EXPECT_EQ(ibv_dealloc_pd(domain), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  ibv_mw* window = ibv_alloc_mw(domain, IBV_MW_TYPE_1);
  EXPECT_EQ(ibv_dealloc_pd(domain), EBUSY);
  EXPECT_EQ(ibv_dealloc_mw(window), 0);
  ibv_ah_attr way = path();
  ibv_ah* handle = ibv_create_ah(domain, &way);
  EXPECT_EQ(ibv_dealloc_pd(domain), EBUSY);
  EXPECT_EQ(ibv_destroy_ah(handle), 0);
  ibv_srq_init_attr attr{};
  attr.attr = {4, 1, 0};
  ibv_srq* shared = ibv_create_srq(domain, &attr);
  EXPECT_EQ(ibv_dealloc_pd(domain), EBUSY);
  EXPECT_EQ(ibv_destroy_srq(shared), 0);
  ibv_qp_init_attr wanted = init();
  ibv_qp* qp = ibv_create_qp(domain, &wanted);
  EXPECT_EQ(ibv_dealloc_pd(domain), EBUSY);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
}

TEST_F(VerbsOperations, RegionWithAnIova_IsReachedByItsIova) {  // manual ibv_reg_mr_iova
  constexpr uint64_t kBase = 0x12345000;
  ibv_mr* named = ibv_reg_mr_iova(pd, memory + 4096, 4096, kBase, kWholeAccess);
  ASSERT_NE(named, nullptr);
  mrs.push_back(named);
  make_pair();
  std::strcpy(memory, "by name");
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 1, &sge);
  wr.wr.rdma = {kBase + 4096 - 8, named->rkey};
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 8192 - 8, "by name");
  ibv_sge local{kBase + 4096 - 8, 8, named->lkey};
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 2, &local, 12288)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 12288, "by name");
  wr.wr.rdma = {kBase - 8, named->rkey};
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsOperations, DmabufRegion_ReachesTheDescriptorsPages) {  // manual ibv_reg_dmabuf_mr
  constexpr uint64_t kPage = 4096, kFirst = uint64_t{1} << 40;
  const int file = memfd_create("pages", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, 4 * kPage), 0);
  make_pair();
  for (const auto& [offset, length] : {std::pair{kPage / 2, kPage}, std::pair{kPage, kPage / 2}}) {
    errno = 0;
    EXPECT_EQ(ibv_reg_dmabuf_mr(pd, offset, length, kFirst, file, kWholeAccess), nullptr);
    EXPECT_EQ(errno, EINVAL) << "no whole pages";
  }
  ibv_mr* pages = ibv_reg_dmabuf_mr(pd, kPage, 2 * kPage, kFirst, file, kWholeAccess);
  ASSERT_NE(pages, nullptr) << std::strerror(errno);
  mrs.push_back(pages);
  std::memset(memory, 'x', 3 * kPage);
  ibv_sge whole = span(0, 2 * kPage);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 1, &whole);
  wr.wr.rdma = {kFirst, pages->rkey};
  ASSERT_EQ(post(a, wr), 0);
  ASSERT_EQ(next().status, IBV_WC_SUCCESS);
  std::vector<char> found(4 * kPage);
  ASSERT_EQ(pread(file, found.data(), found.size(), 0), static_cast<ssize_t>(found.size()));
  EXPECT_EQ(std::count(found.begin(), found.end(), 'x'), static_cast<ptrdiff_t>(2 * kPage));
  EXPECT_EQ(found[kPage], 'x');
  EXPECT_EQ(found[3 * kPage - 1], 'x');
  wr.wr.rdma.remote_addr = kFirst + 1;
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_REM_ACCESS_ERR) << "beyond its end";
  close(file);
}

TEST_F(VerbsOperations, SharedReceiveQueue_ServiceWithoutReceives_IsRefused) {
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {4, 1, 0};
  srq = ibv_create_srq(pd, &srq_attr);
  ASSERT_NE(srq, nullptr);
  ibv_qp_init_attr attr = init(IBV_QPT_XRC_SEND);
  attr.srq = srq;
  EXPECT_EQ(ibv_create_qp(pd, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  attr.srq = nullptr;
  ibv_qp* sender = ibv_create_qp(pd, &attr);
  ASSERT_NE(sender, nullptr);
  ibv_recv_wr recv{}, *bad = nullptr;
  EXPECT_EQ(ibv_post_recv(sender, &recv, &bad), EINVAL);
  EXPECT_EQ(ibv_destroy_qp(sender), 0);
}

}  // namespace
}  // namespace nupa::test
