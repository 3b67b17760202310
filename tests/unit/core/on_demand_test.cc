// SPDX-License-Identifier: Apache-2.0
/// Tests of the key for all memory of the process (on-demand paging). It allows to send any memory, but to write none.
#include <gtest/gtest.h>
#include <nupa/connect.h>
#include <nupa/device.h>
#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

namespace nupa {
namespace {

constexpr size_t kBytes = 3 * 4096;

/// Two queue pairs of one process that are connected; by each transport.
class OnDemand : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv("NUPA_TRANSPORT", GetParam(), 1);
    auto opened = open_device("nupa0");
    ASSERT_TRUE(opened) << opened.error().what();
    device = std::move(*opened);
    pd = std::move(*device->alloc_pd());
    cq = std::move(*device->create_cq({.entries = 16}));
    there.assign(kBytes, 0);
    region = std::move(*device->reg_mr(*pd, there.data(), kBytes, reinterpret_cast<uint64_t>(there.data()),
                                       access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead));
    for (auto* qp : {&one, &other})
      *qp = std::move(*device->create_qp(pd.get(), {.send_cq = cq.get(), .recv_cq = cq.get(), .cap = {4, 4, 1, 1, 0}}));
    const Gid gid = device->query_gid(1, 1)->gid;
    const uint32_t rights = access::kRemoteWrite | access::kRemoteRead;
    ASSERT_EQ(connect(*one, {.dgid = gid, .dest_qp_num = other->number(), .access_flags = rights}), 0);
    ASSERT_EQ(connect(*other, {.dgid = gid, .dest_qp_num = one->number(), .access_flags = rights}), 0);
    auto all = device->reg_mr(*pd, nullptr, SIZE_MAX, 0, access::kOnDemand);
    ASSERT_TRUE(all) << all.error().what();
    everything = std::move(*all);
  }
  void TearDown() override {
    one.reset();
    other.reset();
    everything.reset();
    region.reset();
    cq.reset();
    pd.reset();
    device.reset();
    unsetenv("NUPA_TRANSPORT");
  }

  WcStatus run(Opcode opcode, const void* from, size_t bytes) {
    const Sge sge{reinterpret_cast<uint64_t>(from), static_cast<uint32_t>(bytes), everything->lkey()};
    SendWr wr{.sg_list = &sge, .num_sge = 1, .opcode = opcode};
    wr.flags = send_flag::kSignaled;
    wr.rkey = region->rkey();
    wr.remote_addr = reinterpret_cast<uint64_t>(there.data());
    EXPECT_EQ(one->post_send(wr), 0);
    return next();
  }
  WcStatus next() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    WorkCompletion completion;
    while (cq->poll(&completion, 1) == 0)
      if (std::chrono::steady_clock::now() > until) {
        ADD_FAILURE() << "no completion";
        return WcStatus::kGeneralErr;
      }
    return completion.status;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<ProtectionDomain> pd;
  std::unique_ptr<CompletionQueue> cq;
  std::unique_ptr<MemoryRegion> region;
  std::unique_ptr<MemoryRegion> everything;
  std::unique_ptr<QueuePair> one;
  std::unique_ptr<QueuePair> other;
  std::string there;
};

TEST_P(OnDemand, RdmaWrite_MemoryMappedAfterTheRegistration_IsSent) {
  const std::string text = "on the heap, where no region is";
  EXPECT_EQ(run(Opcode::kRdmaWrite, text.data(), text.size()), WcStatus::kSuccess);
  EXPECT_EQ(there.substr(0, text.size()), text);
  // Mapped after the key was made, and unmapped before it goes.
  void* const later = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(later, MAP_FAILED);
  std::memset(later, 7, kBytes);
  EXPECT_EQ(run(Opcode::kRdmaWrite, later, kBytes), WcStatus::kSuccess);
  EXPECT_EQ(there, std::string(kBytes, 7));
  EXPECT_EQ(munmap(later, kBytes), 0);
}

TEST_P(OnDemand, RdmaRead_IntoOnDemandMemory_IsAProtectionError) {
  std::string here(64, 'h');
  EXPECT_EQ(run(Opcode::kRdmaRead, here.data(), here.size()), WcStatus::kLocProtErr);
  EXPECT_EQ(here, std::string(64, 'h'));
}

/// Between processes over shm it is the program's own copy, which ends it as its own code would.
using OnDemandByPackets = OnDemand;

TEST_P(OnDemandByPackets, RdmaWrite_MemoryNotAccessible_Fails) {
  void* const nothing = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(nothing, MAP_FAILED);
  EXPECT_NE(run(Opcode::kRdmaWrite, nothing, kBytes), WcStatus::kSuccess);
  EXPECT_EQ(there, std::string(kBytes, 0));
  munmap(nothing, kBytes);
}

TEST_P(OnDemand, RegMr_OnDemandWithOtherRights_FailsWithEfault) {
  for (const uint32_t right : {access::kLocalWrite, access::kRemoteRead, access::kLocalWrite | access::kRemoteWrite})
    EXPECT_EQ(device->reg_mr(*pd, nullptr, SIZE_MAX, 0, access::kOnDemand | right).error().code(), EFAULT) << right;
  EXPECT_EQ(device->reg_mr(*pd, nullptr, SIZE_MAX, 0, 0).error().code(), EFAULT);
}

INSTANTIATE_TEST_SUITE_P(By, OnDemand, ::testing::Values("shm", "roce"),
                         [](const auto& way) { return std::string(way.param); });

INSTANTIATE_TEST_SUITE_P(By, OnDemandByPackets, ::testing::Values("roce"),
                         [](const auto& way) { return std::string(way.param); });

}  // namespace
}  // namespace nupa
