// SPDX-License-Identifier: Apache-2.0
/// The functions that rdma-core has since releases later than Debian 12's, as a program of such a release calls them.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "../../support/later_symbol.h"
#include "fixture.h"

namespace nupa::test {
namespace {

/// As in rdma-core's later headers.
struct MrInitAttr {
  size_t length;
  int access;
  uint64_t comp_mask;
  uint64_t iova;
  void* addr;
  int fd;
  uint64_t fd_offset;
  void* dmah;
  void* buf;
};
constexpr uint64_t kIova = 1, kAddr = 2, kFd = 4, kFdOffset = 8, kDmah = 16, kBuf = 32, kUnknown = 64;

/// A function in its version. Null: the library has none, and the test fails.
template <class Function>
Function* find(const char* name, const char* version) {
  return later_symbol<Function>(&ibv_get_device_list, name, version);
}

class VerbsLater : public Verbs {
 protected:
  static constexpr uint64_t kBase = uint64_t{1} << 40;

  ibv_mr* reg(MrInitAttr attr) {
    errno = 0;
    attr.access = kWholeAccess;
    ibv_mr* const mr = reg_mr_ex_(pd, &attr);
    if (mr != nullptr) mrs.push_back(mr);
    return mr;
  }
  void expect_refused(const MrInitAttr& attr, int error) {
    EXPECT_EQ(reg(attr), nullptr) << attr.comp_mask;
    EXPECT_EQ(errno, error) << attr.comp_mask;
  }
  /// Writes from `from` to the remote address, from this device to itself.
  ibv_wc_status write(ibv_mr* from, uint64_t to, uint32_t rkey, uint32_t length) {
    if (qps.empty()) {
      ibv_qp* const qp = make_qp();
      connect(qp, qp);
    }
    ibv_sge sge{reinterpret_cast<uint64_t>(from->addr), length, from->lkey};
    ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 1, &sge);
    wr.wr.rdma = {to, rkey};
    EXPECT_EQ(post(qps.front(), wr), 0);
    return next().status;
  }

  using RegMrEx = ibv_mr*(ibv_pd*, MrInitAttr*);
  using AllocBuf = void*(ibv_pd*, size_t, void**);
  using FreeBuf = void(void*);
  using RegBufMr = ibv_mr*(ibv_pd*, void*, void*, size_t, int);
  RegMrEx* const reg_mr_ex_ = find<RegMrEx>("ibv_reg_mr_ex", "IBVERBS_1.15");
  AllocBuf* const alloc_buf_ = find<AllocBuf>("ibv_alloc_buf", "IBVERBS_1.17");
  FreeBuf* const free_buf_ = find<FreeBuf>("ibv_free_buf", "IBVERBS_1.17");
  RegBufMr* const reg_buf_mr_ = find<RegBufMr>("ibv_reg_buf_mr", "IBVERBS_1.17");
  char memory_[4096] = "by its own address";
};

TEST_F(VerbsLater, RegMrEx_OfMemory_IsReachedAtItsAddressOrAtIova) {
  char target[64] = {};
  ibv_mr* const from = Verbs::reg(memory_, sizeof memory_);
  MrInitAttr attr{};
  attr.length = sizeof target;
  attr.addr = target;
  attr.comp_mask = kAddr;
  ibv_mr* const plain = reg(attr);
  ASSERT_NE(plain, nullptr) << std::strerror(errno);
  EXPECT_EQ(plain->length, sizeof target);
  EXPECT_EQ(write(from, reinterpret_cast<uint64_t>(target), plain->rkey, sizeof target), IBV_WC_SUCCESS);
  EXPECT_STREQ(target, memory_);
  std::strcpy(memory_, "by iova");
  attr.comp_mask = kAddr | kIova;
  attr.iova = kBase;
  ibv_mr* const moved = reg(attr);
  ASSERT_NE(moved, nullptr) << std::strerror(errno);
  EXPECT_EQ(write(from, kBase, moved->rkey, sizeof target), IBV_WC_SUCCESS);
  EXPECT_STREQ(target, memory_);
}

TEST_F(VerbsLater, RegMrEx_OfADescriptor_ReachesItsPages) {
  const int file = memfd_create("pages", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, 2 * 4096), 0);
  ibv_mr* const from = Verbs::reg(memory_, sizeof memory_);
  MrInitAttr attr{};
  attr.length = 4096;
  attr.fd = file;
  attr.fd_offset = 4096;
  attr.iova = kBase;
  attr.comp_mask = kFd | kFdOffset | kIova;
  ibv_mr* const pages = reg(attr);
  ASSERT_NE(pages, nullptr) << std::strerror(errno);
  EXPECT_EQ(write(from, kBase, pages->rkey, 64), IBV_WC_SUCCESS);
  char found[64] = {};
  ASSERT_EQ(pread(file, found, sizeof found, 4096), 64);
  EXPECT_STREQ(found, memory_);
  close(file);
}

TEST_F(VerbsLater, RegMrEx_FieldsThatDoNotGoTogether_AreRefused) {
  MrInitAttr attr{};
  attr.length = sizeof memory_;
  attr.addr = memory_;
  for (const uint64_t mask : {uint64_t{0}, kIova, kAddr | kFdOffset, kFd, kFd | kFdOffset, kFd | kIova,
                              kFd | kFdOffset | kIova | kAddr, kFd | kFdOffset | kIova | kBuf, kBuf, kBuf | kAddr}) {
    attr.comp_mask = mask;
    expect_refused(attr, EINVAL);
  }
  for (const uint64_t mask : {kAddr | kDmah, kAddr | kUnknown}) {
    attr.comp_mask = mask;
    expect_refused(attr, EOPNOTSUPP);
  }
  errno = 0;
  EXPECT_EQ(reg_mr_ex_(nullptr, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  errno = 0;
  EXPECT_EQ(reg_mr_ex_(pd, nullptr), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(VerbsLater, Buffer_IsZeroedPages_AndIsRegisteredInParts) {
  void* buf = nullptr;
  auto* const memory = static_cast<char*>(alloc_buf_(pd, 10'000, &buf));
  ASSERT_NE(memory, nullptr);
  ASSERT_NE(buf, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 4096, 0u);
  EXPECT_TRUE(std::all_of(memory, memory + 10'000, [](char each) { return each == 0; }));
  ibv_mr* const from = Verbs::reg(memory_, sizeof memory_);
  ibv_mr* const part = reg_buf_mr_(pd, buf, memory + 5'000, 5'000, kWholeAccess);
  ASSERT_NE(part, nullptr) << std::strerror(errno);
  EXPECT_EQ(write(from, reinterpret_cast<uint64_t>(memory + 5'000), part->rkey, 64), IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 5'000, memory_);
  for (const auto& [first, length] : {std::pair{memory + 5'000, size_t{5'001}},
                                      {memory - 1, size_t{1}},
                                      {memory + 10'001, size_t{0}},
                                      {memory + 1, SIZE_MAX}}) {
    errno = 0;
    EXPECT_EQ(reg_buf_mr_(pd, buf, first, length, kWholeAccess), nullptr) << length;
    EXPECT_EQ(errno, EINVAL) << length;
  }
  ibv_pd* const other = ibv_alloc_pd(context);
  errno = 0;
  EXPECT_EQ(reg_buf_mr_(other, buf, memory, 4096, kWholeAccess), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
  EXPECT_EQ(ibv_dereg_mr(part), 0);
  const auto fd_of = find<int(void*)>("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
  errno = 0;
  EXPECT_EQ(fd_of(buf), -1);
  EXPECT_EQ(errno, ENODATA);
  free_buf_(buf);
  free_buf_(nullptr);
}

TEST_F(VerbsLater, Buffer_WrongArguments_AreRefused) {
  void* buf = nullptr;
  for (const size_t size : {size_t{0}, SIZE_MAX}) {
    errno = 0;
    EXPECT_EQ(alloc_buf_(pd, size, &buf), nullptr);
    EXPECT_EQ(errno, size == 0 ? EINVAL : ENOMEM);
  }
  errno = 0;
  EXPECT_EQ(alloc_buf_(nullptr, 1, &buf), nullptr);
  EXPECT_EQ(errno, EINVAL);
  errno = 0;
  EXPECT_EQ(alloc_buf_(pd, 1, nullptr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(buf, nullptr);
}

TEST_F(VerbsLater, PortSpeed_IsThatOfThePortsAttributes) {
  const auto speed_of = find<int(ibv_context*, uint32_t, uint64_t*)>("ibv_query_port_speed", "IBVERBS_1.16");
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  uint64_t speed = 0;
  ASSERT_EQ(speed_of(context, 1, &speed), 0);
  EXPECT_EQ(port.active_width, 2) << "four lanes";
  EXPECT_EQ(port.active_speed, 64) << "of 50 Gb/s";
  EXPECT_EQ(speed, 2000u);
  EXPECT_EQ(speed_of(context, 2, &speed), EINVAL);
  EXPECT_EQ(speed_of(context, 257, &speed), EINVAL);
  EXPECT_EQ(speed_of(context, 1, nullptr), EINVAL);
  EXPECT_EQ(speed_of(nullptr, 1, &speed), EINVAL);
}

TEST_F(VerbsLater, CountersAndHintsForCaches_FailWithEopnotsupp) {
  for (const char* name : {"ibv_create_comp_cntr", "ibv_alloc_dmah"}) {
    const auto make = find<void*(ibv_context*, void*)>(name, name[4] == 'a' ? "IBVERBS_1.15" : "IBVERBS_1.18");
    errno = 0;
    EXPECT_EQ(make(context, nullptr), nullptr) << name;
    EXPECT_EQ(errno, EOPNOTSUPP) << name;
  }
  for (const char* name : {"ibv_destroy_comp_cntr", "ibv_set_comp_cntr", "ibv_set_err_comp_cntr", "ibv_inc_comp_cntr",
                           "ibv_inc_err_comp_cntr", "ibv_read_comp_cntr", "ibv_read_err_comp_cntr",
                           "ibv_qp_attach_comp_cntr", "_ibv_query_comp_cntr_caps"}) {
    const auto use = find<int(void*, uint64_t, uint64_t)>(name, "IBVERBS_1.18");
    errno = 0;
    EXPECT_EQ(use(nullptr, 0, 0), EOPNOTSUPP) << name;
    EXPECT_EQ(errno, EOPNOTSUPP) << name;
  }
  EXPECT_EQ((find<int(void*)>("ibv_dealloc_dmah", "IBVERBS_1.15")(nullptr)), EOPNOTSUPP);
  errno = 0;
  EXPECT_EQ((find<int(void*)>("ibv_dm_export_dmabuf_fd", "IBVERBS_1.16")(nullptr)), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
}  // namespace nupa::test
