// SPDX-License-Identifier: Apache-2.0
/// The smaller objects: parent domains, imports, windows, device memory, XRC, and queries.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fixture.h"

namespace nupa::test {
namespace {

TEST_F(Verbs, DeviceAndContext_FieldsOfTheAbi_AreSet) {
  ibv_device* device = context->device;
  EXPECT_STREQ(ibv_get_device_name(device), runs_over("pool") ? "nupa_pool0" : "nupa0");
  EXPECT_EQ(ibv_get_device_index(device), 0);
  EXPECT_NE(ibv_get_device_guid(device), 0u);
  EXPECT_EQ(std::string(device->ibdev_path).rfind("/sys/class/infiniband", 0), 0u);
  EXPECT_EQ(std::string(device->dev_path).rfind("/sys/class/infiniband", 0), 0u);
  EXPECT_NE(verbs_get_ctx(context), nullptr);
  EXPECT_GE(fcntl(context->async_fd, F_GETFL), 0);
  EXPECT_GE(fcntl(context->cmd_fd, F_GETFL), 0);
  pollfd ready{context->async_fd, POLLIN, 0};
  EXPECT_EQ(poll(&ready, 1, 0), 0);
  // Providers' libraries look just behind ibv_device.
  const char* behind = reinterpret_cast<const char*>(device + 1);
  for (int i = 0; i < 256; ++i) ASSERT_EQ(behind[i], 0);
}

TEST_F(Verbs, QueryDeviceEx_SmallerStruct_WritesNoFurther) {
  ibv_device_attr_ex full{};
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &full), 0);
  EXPECT_EQ(full.phys_port_cnt_ex, 1u);
  EXPECT_EQ(full.comp_mask, 0u);
  EXPECT_NE(full.hca_core_clock, 0u);
  // A program built against newer headers: what is not known stays zero, nothing behind is touched.
  struct {
    ibv_device_attr_ex attr;
    char newer[64];
    char canary[8];
  } more;
  std::memset(&more, 0x5a, sizeof more);
  ibv_query_device_ex_input input{};
  verbs_context* verbs = verbs_get_ctx(context);
  ASSERT_EQ(verbs->query_device_ex(context, &input, &more.attr, sizeof more.attr + sizeof more.newer), 0);
  for (const char byte : more.newer) ASSERT_EQ(byte, 0);
  for (const char byte : more.canary) ASSERT_EQ(byte, 0x5a);
  // An older one.
  std::memset(&more, 0x5a, sizeof more);
  ASSERT_EQ(verbs->query_device_ex(context, &input, &more.attr, offsetof(ibv_device_attr_ex, odp_caps)), 0);
  EXPECT_EQ(more.attr.orig_attr.max_qp, full.orig_attr.max_qp);
  EXPECT_EQ(reinterpret_cast<const char*>(&more.attr.odp_caps)[0], 0x5a);
  EXPECT_EQ(verbs->query_device_ex(context, &input, &more.attr, 8), EINVAL);
  input.comp_mask = 1;
  EXPECT_EQ(ibv_query_device_ex(context, &input, &full), EINVAL);
}

TEST_F(Verbs, QueryPort_SmallerStruct_WritesNoFurther) {
  ibv_port_attr attr;
  ASSERT_EQ(ibv_query_port(context, 1, &attr), 0);
  EXPECT_EQ(attr.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(attr.link_layer, IBV_LINK_LAYER_ETHERNET);
  std::memset(&attr, 0x5a, sizeof attr);
  ASSERT_EQ((ibv_query_port)(context, 1, reinterpret_cast<_compat_ibv_port_attr*>(&attr)), 0);
  EXPECT_EQ(attr.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(reinterpret_cast<const char*>(&attr)[offsetof(ibv_port_attr, port_cap_flags2)], 0x5a);
  EXPECT_EQ(ibv_query_port(context, 2, &attr), EINVAL);
}

TEST_F(Verbs, QueryPort_OfALaterHeader_ZeroesTheFieldsThatThisVersionDoesNotKnow) {
  struct {
    ibv_port_attr known;
    char newer[64];
    char canary[8];
  } later;
  std::memset(&later, 0x5a, sizeof later);
  ASSERT_EQ(verbs_get_ctx(context)->query_port(context, 1, &later.known, sizeof later.known + sizeof later.newer), 0);
  EXPECT_EQ(later.known.state, IBV_PORT_ACTIVE);
  for (const char byte : later.newer) ASSERT_EQ(byte, 0);
  for (const char byte : later.canary) ASSERT_EQ(byte, 0x5a);
}

TEST_F(Verbs, QueryGidTable_EntriesEqualThoseOfQueryGidEx) {
  std::vector<ibv_gid_entry> table(256);
  const ssize_t count = ibv_query_gid_table(context, table.data(), table.size(), 0);
  ASSERT_GT(count, 0);
  for (ssize_t i = 0; i < count; ++i) {
    ibv_gid_entry one{};
    const ibv_gid_entry& entry = table[static_cast<size_t>(i)];
    ASSERT_EQ(ibv_query_gid_ex(context, 1, entry.gid_index, &one, 0), 0);
    EXPECT_EQ(std::memcmp(&one.gid, &entry.gid, 16), 0);
    EXPECT_EQ(one.gid_type, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V2));
    ibv_gid plain;
    ASSERT_EQ(ibv_query_gid(context, 1, static_cast<int>(entry.gid_index), &plain), 0);
    EXPECT_EQ(std::memcmp(&plain, &entry.gid, 16), 0);
  }
  ibv_gid_entry none{};
  EXPECT_EQ(ibv_query_gid_ex(context, 1, static_cast<uint32_t>(count), &none, 0), ENODATA);
  EXPECT_EQ(ibv_query_gid_ex(context, 1, 0, &none, 1), EINVAL);
  if (count > 1) {
    EXPECT_EQ(ibv_query_gid_table(context, table.data(), 1, 0), -EINVAL);
  }
  EXPECT_EQ(ibv_get_pkey_index(context, 1, htobe16(0xffff)), 0);
  EXPECT_LT(ibv_get_pkey_index(context, 1, htobe16(0x1234)), 0);
}

/// ibv_gid_entry of a header that is newer than the library.
struct LaterEntry {
  ibv_gid_entry known;
  char newer[24];
};
constexpr char kUntouched = 0x5a;

TEST_F(VerbsOfNetworks, QueryGidEx_OfALaterHeader_ZeroesTheFieldsThatThisVersionDoesNotKnow) {
  struct {
    LaterEntry entry;
    char canary[8];
  } later;
  std::memset(&later, kUntouched, sizeof later);
  ASSERT_EQ(_ibv_query_gid_ex(context, 1, 1, &later.entry.known, 0, sizeof later.entry), 0);
  EXPECT_EQ(later.entry.known.gid_index, 1u);
  for (const char byte : later.entry.newer) ASSERT_EQ(byte, 0);
  for (const char byte : later.canary) ASSERT_EQ(byte, kUntouched);
}

TEST_F(VerbsOfNetworks, GidTable_OfALaterHeader_HasItsEntrySizeAndZeroesItsNewFields) {
  std::vector<LaterEntry> table(256);
  std::memset(table.data(), kUntouched, table.size() * sizeof(LaterEntry));
  const ssize_t count = _ibv_query_gid_table(context, &table[0].known, table.size(), 0, sizeof(LaterEntry));
  ASSERT_GE(count, 2);
  for (uint32_t i = 0; i < static_cast<uint32_t>(count); ++i) {
    ibv_gid_entry one{};
    ASSERT_EQ(ibv_query_gid_ex(context, 1, i, &one, 0), 0);
    EXPECT_EQ(std::memcmp(&table[i].known, &one, sizeof one), 0) << i;
    for (const char byte : table[i].newer) ASSERT_EQ(byte, 0) << i;
  }
  for (size_t i = static_cast<size_t>(count); i < table.size(); ++i) ASSERT_EQ(table[i].newer[0], kUntouched) << i;
}

TEST_F(VerbsOfNetworks, GidTable_OfAShorterEntry_WritesNoByteBeyondIt) {
  constexpr size_t kShort = offsetof(ibv_gid_entry, gid_type);
  std::vector<char> table(256 * kShort, kUntouched);
  const ssize_t count = _ibv_query_gid_table(context, reinterpret_cast<ibv_gid_entry*>(table.data()), 256, 0, kShort);
  ASSERT_GE(count, 2);
  for (uint32_t i = 0; i < static_cast<uint32_t>(count); ++i) {
    ibv_gid_entry one{};
    ASSERT_EQ(ibv_query_gid_ex(context, 1, i, &one, 0), 0);
    EXPECT_EQ(std::memcmp(&table[i * kShort], &one, kShort), 0) << i;
  }
  for (size_t at = static_cast<size_t>(count) * kShort; at < table.size(); ++at) ASSERT_EQ(table[at], kUntouched) << at;
  EXPECT_EQ(_ibv_query_gid_table(context, reinterpret_cast<ibv_gid_entry*>(table.data()), 256, 0, 0), -EINVAL);
}

TEST_F(Verbs, ParentDomain_ItsParts_AreNotDestroyed) {
  ibv_td_init_attr td_attr{};
  ibv_td* td = ibv_alloc_td(context, &td_attr);
  ASSERT_NE(td, nullptr);
  ibv_parent_domain_init_attr attr{};
  attr.pd = ibv_alloc_pd(context);
  attr.td = td;
  ibv_pd* parent = ibv_alloc_parent_domain(context, &attr);
  ASSERT_NE(parent, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(attr.pd), EBUSY);
  EXPECT_EQ(ibv_dealloc_td(td), EBUSY);
  alignas(4096) static char memory[4096];
  ibv_mr* mr = ibv_reg_mr(parent, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  ASSERT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, nullptr, 0, 0), 0);  // leaves it
  ibv_qp_init_attr qp_attr = init();
  ibv_qp* qp = ibv_create_qp(parent, &qp_attr);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  ibv_ah_attr ah_attr = path();
  ibv_ah* ah = ibv_create_ah(parent, &ah_attr);
  ASSERT_NE(ah, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {4, 1, 0};
  ibv_srq* srq = ibv_create_srq(parent, &srq_attr);
  ASSERT_NE(srq, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  ibv_mw* mw = ibv_alloc_mw(parent, IBV_MW_TYPE_1);
  ASSERT_NE(mw, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_dealloc_pd(parent), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_td(td), 0);
  EXPECT_EQ(ibv_dealloc_pd(attr.pd), 0);
  attr.comp_mask = 1u << 20;
  attr.pd = pd;
  attr.td = nullptr;
  EXPECT_EQ(ibv_alloc_parent_domain(context, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Verbs, ParentDomainOfAParentDomain_BaseDomain_IsNotDestroyed) {
  ibv_pd* below = ibv_alloc_pd(context);
  ASSERT_NE(below, nullptr);
  ibv_parent_domain_init_attr attr{};
  attr.pd = below;
  ibv_pd* between = ibv_alloc_parent_domain(context, &attr);
  ASSERT_NE(between, nullptr);
  attr.pd = between;
  ibv_pd* above = ibv_alloc_parent_domain(context, &attr);
  ASSERT_NE(above, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(below), EBUSY);
  ASSERT_EQ(ibv_dealloc_pd(between), 0);
  ASSERT_EQ(ibv_dealloc_pd(below), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(above), 0);
  EXPECT_EQ(ibv_dealloc_pd(below), 0);
}

TEST_F(Verbs, Imports_ShareTheObjects) {
  const int fd = dup(context->cmd_fd);
  ibv_context* imported = ibv_import_device(fd);
  ASSERT_NE(imported, nullptr) << std::strerror(errno);
  ibv_pd* imported_pd = ibv_import_pd(imported, pd->handle);
  ASSERT_NE(imported_pd, nullptr);
  alignas(4096) static char memory[4096];
  ibv_mr* mr = reg(memory, sizeof memory);
  ASSERT_NE(mr, nullptr);
  ibv_mr* imported_mr = ibv_import_mr(imported_pd, mr->handle);
  ASSERT_NE(imported_mr, nullptr);
  EXPECT_EQ(imported_mr->lkey, mr->lkey);
  EXPECT_EQ(imported_mr->length, mr->length);
  EXPECT_EQ(imported_mr->addr, nullptr);  // manual: not applicable
  EXPECT_EQ(imported_mr->context, imported);
  ibv_alloc_dm_attr dm_attr{};
  dm_attr.length = 64;
  ibv_dm* dm = ibv_alloc_dm(context, &dm_attr);
  ASSERT_NE(dm, nullptr);
  ibv_dm* imported_dm = ibv_import_dm(imported, dm->handle);
  ASSERT_NE(imported_dm, nullptr);
  uint32_t word = 7;
  EXPECT_EQ(ibv_memcpy_to_dm(imported_dm, 8, &word, sizeof word), 0);
  word = 0;
  EXPECT_EQ(ibv_memcpy_from_dm(&word, dm, 8, sizeof word), 0);
  EXPECT_EQ(word, 7u);
  EXPECT_EQ(ibv_import_pd(imported, 0xdeadbeef), nullptr);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(ibv_import_mr(imported_pd, 0xdeadbeef), nullptr);
  EXPECT_EQ(ibv_import_dm(imported, 0xdeadbeef), nullptr);
  ibv_unimport_dm(imported_dm);
  const uint32_t freed = dm->handle;
  EXPECT_EQ(ibv_free_dm(dm), 0);
  EXPECT_EQ(ibv_import_dm(imported, freed), nullptr);
  EXPECT_EQ(errno, ENOENT);
  ibv_unimport_mr(imported_mr);
  ibv_unimport_pd(imported_pd);
  ibv_unimport_pd(pd);  // not an imported one: stays
  EXPECT_EQ(ibv_close_device(imported), 0);
  EXPECT_EQ(fcntl(fd, F_GETFL), -1);  // given with the import
}

TEST_F(Verbs, ImportDevice_AnotherDescriptor_IsRefused) {
  EXPECT_EQ(ibv_import_device(-1), nullptr);
  EXPECT_EQ(errno, EBADF);
  const int other = memfd_create("other", MFD_CLOEXEC);
  EXPECT_EQ(ibv_import_device(other), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  close(other);
}

TEST_F(Verbs, BindMw_OfTypeOne_ChangesTheKey) {
  alignas(4096) static char memory[4096];
  ibv_mr* mr = reg(memory, sizeof memory);
  ibv_qp* qp = make_qp();
  connect(qp, qp);
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  ASSERT_NE(mw, nullptr);
  const uint32_t before = mw->rkey;
  ibv_mw_bind bind{};
  bind.wr_id = 3;
  bind.send_flags = IBV_SEND_SIGNALED;
  bind.bind_info = {mr, reinterpret_cast<uint64_t>(memory), 64, IBV_ACCESS_REMOTE_WRITE};
  ASSERT_EQ(ibv_bind_mw(qp, mw, &bind), 0);
  EXPECT_NE(mw->rkey, before);
  const ibv_wc wc = next();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_BIND_MW);
  EXPECT_EQ(ibv_dereg_mr(mr), EBUSY);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

TEST_F(Verbs, XrcObjects_AreMadeOpenedAndDestroyed) {
  ibv_xrcd_init_attr attr{};
  attr.comp_mask = IBV_XRCD_INIT_ATTR_FD;
  EXPECT_EQ(ibv_open_xrcd(context, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  attr.comp_mask |= IBV_XRCD_INIT_ATTR_OFLAGS;
  attr.fd = -1;
  attr.oflags = O_CREAT;
  ibv_xrcd* xrcd = ibv_open_xrcd(context, &attr);
  ASSERT_NE(xrcd, nullptr);
  ibv_srq_init_attr_ex srq_attr{};
  srq_attr.attr = {16, 1, 0};
  srq_attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  srq_attr.srq_type = IBV_SRQT_XRC;
  srq_attr.pd = pd;
  srq_attr.cq = cq;
  EXPECT_EQ(ibv_create_srq_ex(context, &srq_attr), nullptr);  // no domain
  EXPECT_EQ(errno, EINVAL);
  srq_attr.xrcd = xrcd;
  ibv_srq* srq = ibv_create_srq_ex(context, &srq_attr);
  ASSERT_NE(srq, nullptr);
  uint32_t number = 0;
  EXPECT_EQ(ibv_get_srq_num(srq, &number), 0);
  EXPECT_EQ(ibv_close_xrcd(xrcd), EBUSY);
  ibv_qp_init_attr_ex qp_attr{};
  qp_attr.qp_type = IBV_QPT_XRC_RECV;
  qp_attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  qp_attr.xrcd = xrcd;
  ibv_qp* qp = ibv_create_qp_ex(context, &qp_attr);
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(to_init(qp), 0);
  ibv_qp_open_attr open_attr{};
  open_attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  open_attr.qp_num = qp->qp_num;
  open_attr.xrcd = xrcd;
  open_attr.qp_type = IBV_QPT_XRC_RECV;
  ibv_qp* opened = ibv_open_qp(context, &open_attr);
  ASSERT_NE(opened, nullptr);
  EXPECT_EQ(opened->qp_num, qp->qp_num);
  EXPECT_EQ(opened->state, IBV_QPS_INIT);
  open_attr.qp_num = 0xffffff;
  EXPECT_EQ(ibv_open_qp(context, &open_attr), nullptr);
  EXPECT_EQ(ibv_destroy_qp(opened), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  for (const unsigned int unknown : {unsigned{IBV_SRQT_TM}, IBV_SRQT_TM + 1u, ~0u}) {
    std::memcpy(&srq_attr.srq_type, &unknown, sizeof unknown);
    errno = 0;
    EXPECT_EQ(ibv_create_srq_ex(context, &srq_attr), nullptr) << unknown;
    EXPECT_EQ(errno, EOPNOTSUPP);
  }
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_close_xrcd(xrcd), 0);
}

TEST_F(Verbs, QueryQp_ReturnsTheCreationAttributes) {
  ibv_qp_init_attr attr = init();
  attr.cap = {5, 7, 1, 2, 100};
  attr.sq_sig_all = 1;
  ibv_qp* qp = keep(ibv_create_qp(pd, &attr));
  ASSERT_NE(qp, nullptr);
  EXPECT_GE(attr.cap.max_send_wr, 5u);
  EXPECT_GE(attr.cap.max_recv_wr, 7u);
  EXPECT_GE(attr.cap.max_inline_data, 100u);
  EXPECT_EQ(qp->state, IBV_QPS_RESET);
  ASSERT_EQ(to_init(qp), 0);
  EXPECT_EQ(qp->state, IBV_QPS_INIT);
  ASSERT_EQ(to_rts(qp, qp->qp_num), 0);
  EXPECT_EQ(qp->state, IBV_QPS_RTS);
  ibv_qp_attr now{};
  ibv_qp_init_attr made{};
  ASSERT_EQ(ibv_query_qp(qp, &now, IBV_QP_STATE, &made), 0);
  EXPECT_EQ(now.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(now.dest_qp_num, qp->qp_num);
  EXPECT_EQ(made.qp_context, this);
  EXPECT_EQ(made.send_cq, cq);
  EXPECT_EQ(made.recv_cq, cq);
  EXPECT_EQ(made.cap.max_send_wr, attr.cap.max_send_wr);
  EXPECT_EQ(made.sq_sig_all, 1);
  EXPECT_EQ(made.qp_type, IBV_QPT_RC);
  // What was refused changes nothing.
  now.qp_state = IBV_QPS_INIT;
  EXPECT_EQ(ibv_modify_qp(qp, &now, IBV_QP_STATE), EINVAL);
  EXPECT_EQ(qp->state, IBV_QPS_RTS);
  ibv_ece ece{1, 2, 0};
  EXPECT_EQ(ibv_query_ece(qp, &ece), EOPNOTSUPP);
  EXPECT_EQ(ece.options, 0u);
  EXPECT_EQ(ibv_set_ece(qp, &ece), 0);
  ece.vendor_id = 0x15b3;
  EXPECT_EQ(ibv_set_ece(qp, &ece), EOPNOTSUPP);
}

TEST_F(Verbs, AddressHandleFromACompletion_ReachesTheSender) {
  ibv_qp* qp = make_qp(IBV_QPT_UD);
  connect(qp, qp);
  alignas(64) char memory[256] = {};
  ibv_mr* mr = reg(memory, sizeof memory);
  ibv_ah_attr attr = path();
  ibv_ah* ah = ibv_create_ah(pd, &attr);
  ASSERT_NE(ah, nullptr);
  ASSERT_EQ(post_recv(qp, 1, memory, 128, mr->lkey), 0);
  ibv_sge sge{reinterpret_cast<uint64_t>(memory) + 128, 8, mr->lkey};
  ibv_send_wr wr{}, *bad;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.wr.ud = {ah, qp->qp_num, kQkey};
  ASSERT_EQ(ibv_post_send(qp, &wr, &bad), 0);
  ibv_wc wc = next();
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  ASSERT_NE(wc.wc_flags & IBV_WC_GRH, 0u);
  ibv_ah_attr back{};
  ASSERT_EQ(ibv_init_ah_from_wc(context, 1, &wc, reinterpret_cast<ibv_grh*>(memory), &back), 0);
  EXPECT_EQ(back.is_global, 1);
  EXPECT_EQ(std::memcmp(&back.grh.dgid, &attr.grh.dgid, 16), 0);
  EXPECT_EQ(back.grh.sgid_index, attr.grh.sgid_index);
  ibv_ah* answer = ibv_create_ah_from_wc(pd, &wc, reinterpret_cast<ibv_grh*>(memory), 1);
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(ibv_destroy_ah(answer), 0);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_F(VerbsOfNetworks,
       AddressHandleFromAnIpv4Header_HasItsTrafficClass) {  // annex A17: the header is the last 20 bytes
  constexpr uint8_t kIpv4 = 0x45, kTrafficClass = 0xa2;
  ibv_gid own{}, sender{};
  ASSERT_EQ(ibv_query_gid(context, 1, 1, &own), 0);
  sender.raw[10] = sender.raw[11] = 0xff;
  const uint8_t sender_address[] = {192, 0, 2, 9};
  std::memcpy(&sender.raw[12], sender_address, 4);
  alignas(ibv_grh) uint8_t header[40] = {};
  header[20] = kIpv4;
  header[21] = kTrafficClass;
  std::memcpy(&header[32], sender_address, 4);
  std::memcpy(&header[36], &own.raw[12], 4);
  ibv_wc wc{};
  wc.wc_flags = IBV_WC_GRH;
  ibv_ah_attr back{};
  ASSERT_EQ(ibv_init_ah_from_wc(context, 1, &wc, reinterpret_cast<ibv_grh*>(header), &back), 0);
  EXPECT_EQ(back.grh.traffic_class, kTrafficClass);
  EXPECT_EQ(std::memcmp(&back.grh.dgid, &sender, sizeof sender), 0);
  EXPECT_EQ(back.grh.sgid_index, 1);
}

TEST_F(Verbs, UnsupportedObjects_FailWithEopnotsupp) {
  ibv_wq_init_attr wq{};
  EXPECT_EQ(ibv_create_wq(context, &wq), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_rwq_ind_table_init_attr table{};
  EXPECT_EQ(ibv_create_rwq_ind_table(context, &table), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_counters_init_attr counters{};
  EXPECT_EQ(ibv_create_counters(context, &counters), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_flow_action_esp_attr esp{};
  EXPECT_EQ(ibv_create_flow_action_esp(context, &esp), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_qp* qp = make_qp();
  ibv_flow_attr flow{};
  EXPECT_EQ(ibv_create_flow(qp, &flow), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_qp_rate_limit_attr limit{};
  EXPECT_EQ(ibv_modify_qp_rate_limit(qp, &limit), EOPNOTSUPP);
  ibv_qp_init_attr attr = init(IBV_QPT_RAW_PACKET);
  EXPECT_EQ(ibv_create_qp(pd, &attr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_qp_init_attr_ex ex{};
  const ibv_qp_init_attr plain = init();
  std::memcpy(&ex, &plain, offsetof(ibv_qp_init_attr, sq_sig_all));
  ex.pd = pd;
  for (const uint32_t bit : {uint32_t{IBV_QP_INIT_ATTR_MAX_TSO_HEADER}, uint32_t{IBV_QP_INIT_ATTR_IND_TABLE},
                             uint32_t{IBV_QP_INIT_ATTR_RX_HASH}, 1u << 30}) {
    ex.comp_mask = IBV_QP_INIT_ATTR_PD | bit;
    EXPECT_EQ(ibv_create_qp_ex(context, &ex), nullptr) << bit;
    EXPECT_EQ(errno, EOPNOTSUPP) << bit;
  }
  ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  ex.create_flags = IBV_QP_CREATE_SCATTER_FCS;
  EXPECT_EQ(ibv_create_qp_ex(context, &ex), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
}  // namespace nupa::test
