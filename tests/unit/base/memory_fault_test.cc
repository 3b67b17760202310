// SPDX-License-Identifier: Apache-2.0
/// Guarded accesses to memory that may be unmapped, and signal handlers of the program, which must stay in effect.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "../../support/sanitizers.h"
#include "base/memory_fault.h"
#include "base/unique_fd.h"
#include "progress/thread.h"

namespace nupa::base {
namespace {

constexpr size_t kPage = 4096;

std::byte* pages(size_t count, int fd = -1) {
  void* found =
      mmap(nullptr, count * kPage, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
  return static_cast<std::byte*>(found);
}

/// As munmap(), but the address range stays reserved.
void unmap(std::byte* from, size_t length) {
  ASSERT_NE(mmap(from, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), MAP_FAILED);
}

bool write_to(std::byte* to, size_t length) {
  return try_access(to, length, [&] { std::memset(to, 7, length); });
}

TEST(MemoryFault, Access_MappedMemory_Succeeds) {
  ASSERT_EQ(watch_memory_faults(), 0);
  std::byte* const memory = pages(1);
  EXPECT_TRUE(write_to(memory, kPage));
  EXPECT_EQ(t_guarded_access, nullptr) << "it is over";
  EXPECT_EQ(memory[kPage - 1], std::byte{7});
  munmap(memory, kPage);
}

TEST(MemoryFault, Access_UnmappedMemory_FailsEachTime) {
  ASSERT_EQ(watch_memory_faults(), 0);
  std::byte* const memory = pages(2);
  unmap(memory + kPage, kPage);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(write_to(memory, 2 * kPage));
    EXPECT_EQ(t_guarded_access, nullptr) << "it is over";
    EXPECT_TRUE(write_to(memory, kPage));
  }
  munmap(memory, 2 * kPage);
}

TEST(MemoryFault, Access_ThatFails_LeavesTheSignalMask) {
  ASSERT_EQ(watch_memory_faults(), 0);
  std::byte* const memory = pages(1);
  unmap(memory, kPage);
  for (const int blocked : {SIGUSR1, SIGALRM}) {
    sigset_t before;
    sigemptyset(&before);
    sigaddset(&before, blocked);
    ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
    EXPECT_FALSE(write_to(memory, kPage));
    sigset_t after;
    ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &after), 0);
    for (int signal = 1; signal < SIGRTMIN; ++signal)
      EXPECT_EQ(sigismember(&after, signal), signal == blocked ? 1 : 0) << signal;
  }
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  munmap(memory, kPage);
}

TEST(MemoryFault, Access_BeyondTheEndOfAFile_Fails) {
  ASSERT_EQ(watch_memory_faults(), 0);
  const UniqueFd file(memfd_create("short", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 2 * kPage), 0);
  std::byte* const memory = pages(2, file.get());
  EXPECT_TRUE(write_to(memory, 2 * kPage));
  ASSERT_EQ(ftruncate(file.get(), kPage), 0);
  EXPECT_FALSE(write_to(memory, 2 * kPage));
  munmap(memory, 2 * kPage);
}

TEST(MemoryFault, ZeroedMemory_OfAFileThatBecameShorter_HasZerosAndKeepsTheRest) {
  const UniqueFd file(memfd_create("short", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 4 * kPage), 0);
  std::byte* const memory = pages(4, file.get());
  std::memset(memory, 7, 4 * kPage);
  ASSERT_EQ(zero_after_fault(memory, 4 * kPage), 0);
  ASSERT_EQ(ftruncate(file.get(), kPage), 0);
  EXPECT_FALSE(has_zeros_after_fault(memory));
  errno = 77;
  EXPECT_EQ(memory[2 * kPage + 5], std::byte{0});
  EXPECT_EQ(errno, 77);
  EXPECT_TRUE(has_zeros_after_fault(memory));
  EXPECT_EQ(memory[0], std::byte{7}) << "this page is still in the file";
  memory[3 * kPage] = std::byte{1};
  EXPECT_EQ(memory[kPage], std::byte{0}) << "a page before the first fault";
  forget_zero_after_fault(memory);
  EXPECT_FALSE(has_zeros_after_fault(memory));
  munmap(memory, 4 * kPage);
}

TEST(MemoryFault, ZeroedMemory_MoreRangesThanThereArePlaces_Fails) {
  std::byte* const memory = pages(kMaxZeroedRanges + 1);
  size_t ranges = 0;
  while (ranges <= kMaxZeroedRanges && zero_after_fault(memory + ranges * kPage, kPage) == 0) ++ranges;
  EXPECT_EQ(ranges, kMaxZeroedRanges);
  EXPECT_EQ(zero_after_fault(memory + ranges * kPage, kPage), ENOSPC);
  for (size_t i = 0; i < ranges; ++i) forget_zero_after_fault(memory + i * kPage);
  EXPECT_EQ(zero_after_fault(memory, kPage), 0);
  forget_zero_after_fault(memory);
  munmap(memory, (kMaxZeroedRanges + 1) * kPage);
}

TEST(MemoryFault, Access_UnmappedMemoryOnALibraryThread_Fails) {
  ASSERT_EQ(watch_memory_faults(), 0);
  std::byte* memory = pages(1);
  unmap(memory, kPage);
  progress::Thread thread;
  bool written = true;
  ASSERT_TRUE(thread.start("nupa-test", [&] { written = write_to(memory, kPage); }));
  thread.join();
  EXPECT_FALSE(written);
  munmap(memory, kPage);
}

/// A fault that is the program's own.
volatile int* volatile g_nothing = nullptr;
void fault() { *g_nothing = 1; }

/// For a handler of one fault: a second time is an error, and not an endless one.
void report_once() {
  static int calls = 0;
  if (++calls > 1) std::_Exit(98);
  if (write(STDERR_FILENO, "called once\n", 12) != 12) std::_Exit(97);
}

/// Each call needs room on the stack.
int overflow(int depth) {
  volatile char room[4096];
  room[0] = static_cast<char>(depth);
  return depth == 0 ? 0 : overflow(depth + 1) + room[0];
}

struct Handler {
  void (*plain)(int) = nullptr;
  void (*siginfo)(int, siginfo_t*, void*) = nullptr;
  int flags = 0;
};

/// The process as it is before the library comes: with the program's handler, if any.
void as_a_program(const Handler& handler) {
  struct sigaction action = {};
  if (handler.siginfo != nullptr)
    action.sa_sigaction = handler.siginfo;
  else
    action.sa_handler = handler.plain == nullptr ? SIG_DFL : handler.plain;
  action.sa_flags = handler.flags | (handler.siginfo != nullptr ? SA_SIGINFO : 0);
  for (const int signal : {SIGSEGV, SIGBUS}) sigaction(signal, &action, nullptr);
  if (watch_memory_faults() != 0) std::_Exit(99);
}

// Each runs in its own process, where watch_memory_faults() has not been called yet.
class MemoryFaultDeath : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::kSanitized)
      GTEST_SKIP() << "sanitizers have handlers of their own, which end the process in their own way";
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  }
};

TEST_F(MemoryFaultDeath, FaultOfTheProgram_DefaultAction_EndsTheProcess) {
  EXPECT_EXIT(
      {
        as_a_program({});
        fault();
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(MemoryFaultDeath, SentSignal_DefaultAction_EndsTheProcess) {
  EXPECT_EXIT(
      {
        as_a_program({});
        kill(getpid(), SIGSEGV);
        pause();
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(MemoryFaultDeath, ProgramsHandler_IsCalled) {
  EXPECT_EXIT(
      {
        as_a_program({[](int signal) { std::_Exit(signal); }, nullptr, 0});
        fault();
      },
      ::testing::ExitedWithCode(SIGSEGV), "");
}

TEST_F(MemoryFaultDeath, SiginfoHandlerOfTheProgram_GetsTheAddress) {
  EXPECT_EXIT(
      {
        as_a_program({nullptr, [](int, siginfo_t* info, void*) { std::_Exit(info->si_addr == nullptr ? 17 : 18); }, 0});
        fault();
      },
      ::testing::ExitedWithCode(17), "");
}

TEST_F(MemoryFaultDeath, OneShotHandler_IsCalledOnce) {
  EXPECT_EXIT(
      {
        as_a_program({[](int) { report_once(); }, nullptr, static_cast<int>(SA_RESETHAND)});
        fault();
      },
      ::testing::KilledBySignal(SIGSEGV), "^called once\n$");
}

TEST_F(MemoryFaultDeath, OneShotSiginfoHandler_IsCalledOnce) {
  EXPECT_EXIT(
      {
        as_a_program({nullptr, [](int, siginfo_t*, void*) { report_once(); }, static_cast<int>(SA_RESETHAND)});
        fault();
      },
      ::testing::KilledBySignal(SIGSEGV), "^called once\n$");
}

// What the kernel does around a handler.

/// What is blocked in the handler, of the signals that the tests look at.
int blocked_now() {
  sigset_t blocked;
  sigemptyset(&blocked);
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  int found = 0;
  for (const int signal : {SIGSEGV, SIGBUS, SIGUSR1, SIGUSR2}) found = found * 2 + sigismember(&blocked, signal);
  return found;
}
constexpr int kSegvBlocked = 8, kUsr1Blocked = 2;

/// SIGSEGV's handler exits with what is blocked in it. SIGUSR1 is in its mask if `masks`.
void exit_with_what_is_blocked(int flags, bool masks) {
  struct sigaction action = {};
  action.sa_handler = [](int) { std::_Exit(blocked_now()); };
  action.sa_flags = flags;
  if (masks) sigaddset(&action.sa_mask, SIGUSR1);
  sigaction(SIGSEGV, &action, nullptr);
  if (watch_memory_faults() != 0) std::_Exit(99);
  fault();
}

TEST_F(MemoryFaultDeath, Handler_RunsWithItsSignalBlocked) {
  EXPECT_EXIT(exit_with_what_is_blocked(0, false), ::testing::ExitedWithCode(kSegvBlocked), "");
}

TEST_F(MemoryFaultDeath, HandlerWithNodefer_RunsWithItsSignalUnblocked) {
  EXPECT_EXIT(exit_with_what_is_blocked(SA_NODEFER, false), ::testing::ExitedWithCode(0), "");
}

TEST_F(MemoryFaultDeath, HandlerWithAMask_RunsWithThoseSignalsBlocked) {
  EXPECT_EXIT(exit_with_what_is_blocked(0, true), ::testing::ExitedWithCode(kSegvBlocked | kUsr1Blocked), "");
  EXPECT_EXIT(exit_with_what_is_blocked(SA_NODEFER, true), ::testing::ExitedWithCode(kUsr1Blocked), "");
}

std::byte* g_page = nullptr;

TEST_F(MemoryFaultDeath, Handler_Returns_RestoresErrnoAndTheSignalMask) {
  EXPECT_EXIT(
      {
        g_page = pages(1);
        unmap(g_page, kPage);
        struct sigaction action = {};
        action.sa_handler = [](int) {
          mprotect(g_page, kPage, PROT_READ | PROT_WRITE);
          errno = EDOM;
        };
        sigaddset(&action.sa_mask, SIGUSR1);
        sigaction(SIGSEGV, &action, nullptr);
        if (watch_memory_faults() != 0) std::_Exit(99);
        errno = ERANGE;
        *g_page = std::byte{5};
        const bool same = errno == ERANGE;
        std::_Exit(*g_page == std::byte{5} && same ? blocked_now() : 77);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(MemoryFaultDeath, SegvAndBusHandlers_AreCalledForTheirOwnSignal) {
  const auto by_signal = [](bool beyond_the_file) {
    struct sigaction action = {};
    action.sa_handler = [](int) { std::_Exit(31); };
    sigaction(SIGSEGV, &action, nullptr);
    action.sa_handler = [](int) { std::_Exit(32); };
    sigaction(SIGBUS, &action, nullptr);
    if (watch_memory_faults() != 0) std::_Exit(99);
    if (!beyond_the_file) fault();
    const int file = memfd_create("empty", MFD_CLOEXEC);
    *pages(1, file) = std::byte{1};
  };
  EXPECT_EXIT(by_signal(false), ::testing::ExitedWithCode(31), "");
  EXPECT_EXIT(by_signal(true), ::testing::ExitedWithCode(32), "");
}

TEST_F(MemoryFaultDeath, SentSignal_Ignored_StaysIgnored) {
  EXPECT_EXIT(
      {
        as_a_program({SIG_IGN, nullptr, 0});
        kill(getpid(), SIGSEGV);
        raise(SIGSEGV);
        std::_Exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

TEST_F(MemoryFaultDeath, FaultOfTheProgram_SignalIgnored_EndsTheProcess) {
  EXPECT_EXIT(
      {
        as_a_program({SIG_IGN, nullptr, 0});
        fault();
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(MemoryFaultDeath, HandlerOnAnAlternateStack_IsCalledForAStackOverflow) {
  EXPECT_EXIT(
      {
        stack_t stack = {};
        stack.ss_size = size_t{64} << 10;
        stack.ss_sp = std::malloc(stack.ss_size);
        sigaltstack(&stack, nullptr);
        as_a_program({[](int) { std::_Exit(9); }, nullptr, SA_ONSTACK});
        overflow(1);
      },
      ::testing::ExitedWithCode(9), "");
}

TEST_F(MemoryFaultDeath, WatchMemoryFaults_CalledTwice_KeepsTheProgramsHandler) {
  EXPECT_EXIT(
      {
        as_a_program({[](int) { std::_Exit(11); }, nullptr, 0});
        if (watch_memory_faults() != 0) std::_Exit(99);
        fault();
      },
      ::testing::ExitedWithCode(11), "");
}

// Which faults are an access's.

/// Exits with 21 when a fault is the program's.
void as_a_program_that_exits() {
  as_a_program({[](int) { std::_Exit(21); }, nullptr, 0});
}

TEST_F(MemoryFaultDeath, FaultBesideTheRange_GoesToTheProgramsHandler) {
  EXPECT_EXIT(
      {
        as_a_program_that_exits();
        std::byte* const memory = pages(3);
        unmap(memory + 2 * kPage, kPage);
        try_access(memory + kPage, kPage, [memory] { memory[2 * kPage] = std::byte{1}; });
        std::_Exit(22);
      },
      ::testing::ExitedWithCode(21), "");
  EXPECT_EXIT(
      {
        as_a_program_that_exits();
        std::byte* const memory = pages(3);
        unmap(memory, kPage);
        try_access(memory + kPage, kPage, [memory] { memory[kPage - 1] = std::byte{1}; });
        std::_Exit(22);
      },
      ::testing::ExitedWithCode(21), "");
}

TEST(MemoryFault, FaultAtEitherEndOfTheRange_FailsTheAccess) {
  ASSERT_EQ(watch_memory_faults(), 0);
  std::byte* const memory = pages(1);
  unmap(memory, kPage);
  EXPECT_FALSE(try_access(memory, kPage, [memory] { memory[0] = std::byte{1}; }));
  EXPECT_FALSE(try_access(memory, kPage, [memory] { memory[kPage - 1] = std::byte{1}; }));
  munmap(memory, kPage);
}

TEST_F(MemoryFaultDeath, FaultAfterTheAccess_GoesToTheProgramsHandler) {
  EXPECT_EXIT(
      {
        as_a_program_that_exits();
        std::byte* const memory = pages(1);
        if (!write_to(memory, kPage)) std::_Exit(1);
        unmap(memory, kPage);
        *memory = std::byte{1};
      },
      ::testing::ExitedWithCode(21), "");
  EXPECT_EXIT(
      {
        as_a_program_that_exits();
        std::byte* const memory = pages(1);
        unmap(memory, kPage);
        if (write_to(memory, kPage)) std::_Exit(1);
        *memory = std::byte{1};
      },
      ::testing::ExitedWithCode(21), "");
}

TEST_F(MemoryFaultDeath, SentSignal_DuringAnAccess_GoesToTheProgramsHandler) {
  EXPECT_EXIT(
      {
        as_a_program_that_exits();
        try_access(nullptr, SIZE_MAX, [] { kill(getpid(), SIGSEGV); });
        std::_Exit(22);
      },
      ::testing::ExitedWithCode(21), "");
}

TEST_F(MemoryFaultDeath, FaultOnAnotherThread_GoesToTheProgramsHandler) {
  EXPECT_EXIT(
      {
        as_a_program_that_exits();
        std::byte* const memory = pages(1);
        unmap(memory, kPage);
        try_access(memory, kPage, [memory] { std::thread([memory] { *memory = std::byte{1}; }).join(); });
        std::_Exit(22);
      },
      ::testing::ExitedWithCode(21), "");
}

sigjmp_buf g_back;

TEST_F(MemoryFaultDeath, HandlerThatUsesSiglongjmp_IsCalledAgainForTheNextFault) {
  EXPECT_EXIT(
      {
        as_a_program({[](int) { siglongjmp(g_back, 1); }, nullptr, 0});
        volatile int faults = 0;
        if (sigsetjmp(g_back, 1) != 0) faults = faults + 1;
        if (faults < 3) fault();
        std::_Exit(faults);
      },
      ::testing::ExitedWithCode(3), "");
}

TEST_F(MemoryFaultDeath, ZeroedMemory_FaultAfterItIsForgotten_GoesToTheProgramsHandler) {
  EXPECT_EXIT(
      {
        as_a_program_that_exits();
        const UniqueFd file(memfd_create("short", MFD_CLOEXEC));
        if (ftruncate(file.get(), kPage) != 0) std::_Exit(1);
        std::byte* const memory = pages(1, file.get());
        if (zero_after_fault(memory, kPage) != 0) std::_Exit(1);
        forget_zero_after_fault(memory);
        if (ftruncate(file.get(), 0) != 0) std::_Exit(1);
        *memory = std::byte{1};
        std::_Exit(22);
      },
      ::testing::ExitedWithCode(21), "");
}

TEST_F(MemoryFaultDeath, FaultElsewhereDuringAnAccess_EndsTheProcess) {
  EXPECT_EXIT(
      {
        as_a_program({});
        std::byte* const memory = pages(1);
        try_access(memory, kPage, [] { fault(); });
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace nupa::base
