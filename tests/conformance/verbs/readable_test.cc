// SPDX-License-Identifier: Apache-2.0
/// A program reads all of its memory while memory is registered, as crash handlers, garbage collectors and
/// checkpointers do.
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "fixture.h"

namespace nupa::test {
namespace {

/// A byte of each page is read.
constexpr uintptr_t kReadStep = 4096;

thread_local sigjmp_buf t_leave;
thread_local volatile bool t_reads = false;

/// A mapping may be removed after it was listed, and a file may end within its mapping.
void leave_page(int) {
  if (t_reads) siglongjmp(t_leave, 1);
  signal(SIGSEGV, SIG_DFL);
  signal(SIGBUS, SIG_DFL);
}

/// Reads a byte, where there is one.
__attribute__((noinline, no_sanitize("address", "thread", "undefined"))) void read_byte(uintptr_t at) {
  if (sigsetjmp(t_leave, 1) == 0) {
    t_reads = true;
    [[maybe_unused]] const char byte = *reinterpret_cast<const volatile char*>(at);
  }
  t_reads = false;
}

/// Reads every readable mapping of this process and returns how many these are.
size_t read_all_memory() {
  FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return 0;
  // Larger ones are sanitizers' tables and reserved address space.
  constexpr uintptr_t kLargest = uintptr_t{1} << 30;
  size_t count = 0;
  char line[1024];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long begin, end;
    char rights[5] = "";
    if (std::sscanf(line, "%lx-%lx %4s", &begin, &end, rights) != 3) continue;
    const std::string text = line;
    if (rights[0] != 'r' || end - begin > kLargest || text.find("[vvar") != text.npos ||
        text.find("[vsyscall") != text.npos)
      continue;
    for (uintptr_t at = begin; at < end; at += kReadStep) read_byte(at);
    ++count;
  }
  std::fclose(maps);
  return count;
}

class VerbsReadable : public Verbs {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    struct sigaction leaves {};
    leaves.sa_handler = leave_page;
    ASSERT_EQ(sigaction(SIGSEGV, &leaves, &segv_), 0);
    ASSERT_EQ(sigaction(SIGBUS, &leaves, &bus_), 0);
  }
  void TearDown() override {
    sigaction(SIGSEGV, &segv_, nullptr);
    sigaction(SIGBUS, &bus_, nullptr);
    Verbs::TearDown();
  }

 private:
  struct sigaction segv_ {
  }, bus_{};
};

TEST_F(VerbsReadable, AllMemoryIsRead_WhileMemoryIsRegistered_NoLoadHangs) {
  constexpr size_t kLength = 5 * size_t{1} << 20;  // moves in several steps
  constexpr int kRounds = 40;
  void* const memory = mmap(nullptr, kLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::atomic<int> scans{0};
  std::atomic<bool> over{false};
  std::atomic<size_t> mappings{0};
  std::thread reader([&] {
    while (!over) {
      mappings = read_all_memory();
      ++scans;
    }
  });
  // Each registration is followed by a whole scan at least, and most have one beside them.
  for (int round = 0; round < kRounds; ++round) {
    std::memset(memory, round, kLength / 2);  // the rest is absent
    ibv_mr* const mr = ibv_reg_mr(pd, memory, kLength, kWholeAccess);
    ASSERT_NE(mr, nullptr);
    for (const int before = scans; scans < before + 1;) std::this_thread::yield();
    EXPECT_EQ(static_cast<const unsigned char*>(memory)[kLength / 2 - 1], round);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
  over = true;
  reader.join();
  EXPECT_GT(mappings, 10u);
  munmap(memory, kLength);
}

}  // namespace
}  // namespace nupa::test
