// SPDX-License-Identifier: Apache-2.0
/// Atomic operations are one step (IBTA 9.4.5), which threads that happen to meet would show by chance only: here the
/// word changes at the very moment at which the operation touches it.
#include <signal.h>
#include <sys/mman.h>

#include "shm_fixture.h"

namespace nupa::core {
namespace {

constexpr size_t kPage = 4096;

class ShmAtomics : public ShmTest {
 protected:
  void SetUp() override {
    ShmTest::SetUp();
    const int file = memfd_create("word", MFD_CLOEXEC);
    ASSERT_GE(file, 0);
    ASSERT_EQ(ftruncate(file, kPage), 0);
    for (uint64_t** place : {&word, &alias}) {
      void* mapped = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      ASSERT_NE(mapped, MAP_FAILED);
      *place = static_cast<uint64_t*>(mapped);
    }
    ::close(file);
    remote = std::move(*handle->reg_mr(*pd, word, kPage, reinterpret_cast<uint64_t>(word), kEveryRight));
    qp = make_qp();
    ASSERT_EQ(connect(*qp, qp->number()), 0);
    struct sigaction wanted {};
    wanted.sa_sigaction = on_fault;
    wanted.sa_flags = SA_SIGINFO;
    ASSERT_EQ(sigaction(SIGSEGV, &wanted, &before), 0);
  }
  void TearDown() override {
    sigaction(SIGSEGV, &before, nullptr);
    remote.reset();
    ShmTest::TearDown();
    munmap(word, kPage);
    munmap(alias, kPage);
  }

  /// The first store to the word finds it changed to `value` just then. A processor's own atomic operation begins anew;
  /// one that had read the word before has missed the change.
  void change_on_touch(uint64_t value) {
    next_value = value;
    touched = 0;
    ASSERT_EQ(mprotect(word, kPage, PROT_READ), 0);
  }
  WcStatus run(Opcode opcode, uint64_t compare_add, uint64_t swap) {
    const Sge sge = span(0, 8);
    SendWr wr{.sg_list = &sge, .num_sge = 1, .opcode = opcode};
    wr.flags = send_flag::kSignaled;
    wr.rkey = remote->rkey();
    wr.remote_addr = reinterpret_cast<uint64_t>(word);
    wr.compare_add = compare_add;
    wr.swap = swap;
    return qp->post_send(wr) == 0 ? next().status : WcStatus::kGeneralErr;
  }
  uint64_t found() const {
    uint64_t value;
    std::memcpy(&value, memory, 8);
    return value;
  }

  static void on_fault(int, siginfo_t* info, void*) {
    if (info->si_addr != word || touched != 0) _exit(77);
    touched = 1;
    *alias = next_value;
    mprotect(word, kPage, PROT_READ | PROT_WRITE);
  }

  static inline uint64_t* word = nullptr;
  static inline uint64_t* alias = nullptr;  ///< the same memory
  static inline uint64_t next_value = 0;
  static inline volatile sig_atomic_t touched = 0;
  struct sigaction before {};
  std::unique_ptr<MemoryRegion> remote;
  Qp* qp = nullptr;
};

TEST_F(ShmAtomics, FetchAdd_WordChangesMeanwhile_AddsToTheNewValue) {
  *alias = 5;
  change_on_touch(100);
  ASSERT_EQ(run(Opcode::kFetchAdd, 1, 0), WcStatus::kSuccess);
  EXPECT_EQ(touched, 1);
  EXPECT_EQ(found(), 100u);
  EXPECT_EQ(*alias, 101u);
}

TEST_F(ShmAtomics, CompareSwap_WordChangesMeanwhile_ComparesTheNewValue) {
  *alias = 5;
  change_on_touch(100);
  ASSERT_EQ(run(Opcode::kCompareSwap, 5, 7), WcStatus::kSuccess);
  EXPECT_EQ(touched, 1);
  EXPECT_EQ(found(), 100u);
  EXPECT_EQ(*alias, 100u);
  change_on_touch(200);
  ASSERT_EQ(run(Opcode::kCompareSwap, 200, 7), WcStatus::kSuccess);
  EXPECT_EQ(found(), 200u);
  EXPECT_EQ(*alias, 7u);
}

TEST_F(ShmAtomics, AtomicWrite_WordChangesMeanwhile_IsOneStore) {
  *alias = 5;
  change_on_touch(100);
  ASSERT_EQ(run(Opcode::kAtomicWrite, 0, 0), WcStatus::kSuccess);
  EXPECT_EQ(touched, 1);
  EXPECT_EQ(*alias, 0u);
}

}  // namespace
}  // namespace nupa::core
