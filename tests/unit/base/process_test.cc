// SPDX-License-Identifier: Apache-2.0
// The library around fork(): descriptors, shared files, signals, the log and times.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/boot_id.h"
#include "base/clock.h"
#include "base/gid.h"
#include "base/log.h"
#include "base/lowest_descriptor.h"
#include "base/reason.h"
#include "base/settings.h"
#include "base/shared_file.h"
#include "base/time_code.h"
#include "base/unique_fd.h"
#include "progress/lifecycle.h"

namespace nupa::base {
namespace {

using progress::close_in_children;
using progress::ParentOnly;

constexpr int kSoonMs = 20'000;

int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const int result = body();
    _exit(::testing::Test::HasFailure() ? 99 : result);  // the parent does not see an EXPECT that fails in the child
  }
  int status = 0;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/// True if no process has the writing end open of the pipe whose reading end is `read`.
bool hung_up(int read, int timeout_ms) {
  pollfd one{read, POLLIN, 0};
  return ::poll(&one, 1, timeout_ms) == 1 && (one.revents & POLLHUP) != 0;
}

struct Pipe {
  UniqueFd read, write;
  Pipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(0, pipe2(ends, O_CLOEXEC));
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
};

// fork().

TEST(ParentOnly, Fork_Child_HasNoCopy) {
  Pipe pipe, go;
  const ParentOnly kept(pipe.write.get());
  const pid_t child = fork();
  if (child == 0) {
    go.write.reset();
    char nothing;
    _exit(fcntl(pipe.write.get(), F_GETFD) == -1 && read(go.read.get(), &nothing, 1) == 0 ? 0 : 1);
  }
  pipe.write.reset();
  EXPECT_TRUE(hung_up(pipe.read.get(), kSoonMs)) << "the child lives, and does not hold it";
  go.write.reset();
  int status = -1;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
}

TEST(ParentOnly, Fork_Parent_KeepsTheDescriptorAndTheLockIsFree) {
  const Pipe pipe;
  const ParentOnly kept(pipe.write.get());
  EXPECT_EQ(0, in_child([] { return 0; }));
  EXPECT_NE(-1, fcntl(pipe.write.get(), F_GETFD));
  // And the lock is free in both.
  EXPECT_EQ(0, in_child([&pipe] {
              close_in_children(pipe.read.get());
              return in_child([&pipe] { return fcntl(pipe.read.get(), F_GETFD) == -1 ? 0 : 1; });
            }));
}

TEST(ParentOnly, Fork_DescriptorNoLongerRegistered_StaysOpenInTheChild) {
  const Pipe pipe;
  { const ParentOnly kept(pipe.write.get()); }
  EXPECT_EQ(0, in_child([&pipe] { return fcntl(pipe.write.get(), F_GETFD) == -1 ? 1 : 0; }));
}

TEST(ParentOnly, Fork_ChildsOwnDescriptorWithTheSameNumber_StaysOpen) {
  const Pipe pipe;
  const ParentOnly kept(pipe.write.get());
  EXPECT_EQ(0, in_child([&pipe] {
              if (dup2(pipe.read.get(), pipe.write.get()) != pipe.write.get()) return 1;
              return in_child([&pipe] { return fcntl(pipe.write.get(), F_GETFD) == -1 ? 2 : 0; });
            }));
}

// Shared files.

TEST(SharedFile, MakeSharedFile_MayGrowButNotShrink) {
  auto file = make_shared_file("nupa-test");
  ASSERT_TRUE(file);
  EXPECT_EQ(F_SEAL_SHRINK | F_SEAL_SEAL, fcntl(file->get(), F_GET_SEALS));
  EXPECT_NE(0, fcntl(file->get(), F_GETFD) & FD_CLOEXEC);
  ASSERT_TRUE(grow_shared_file(file->get(), 8192));
  struct stat status;
  ASSERT_EQ(0, fstat(file->get(), &status));
  EXPECT_EQ(8192, status.st_size);
  EXPECT_EQ(-1, ftruncate(file->get(), 4096));
  EXPECT_EQ(-1, fcntl(file->get(), F_ADD_SEALS, F_SEAL_GROW)) << "no peer adds a seal";
  EXPECT_TRUE(cannot_shrink(file->get()));
}

TEST(SharedFile, CannotShrink_OnlyWithTheShrinkSeal_IsTrue) {
  const UniqueFd plain(memfd_create("plain", MFD_CLOEXEC));
  EXPECT_FALSE(cannot_shrink(plain.get())) << "it has the seal against seals only";
  const UniqueFd other(memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_FALSE(cannot_shrink(other.get()));
  ASSERT_EQ(0, fcntl(other.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_WRITE));
  EXPECT_FALSE(cannot_shrink(other.get()));
  ASSERT_EQ(0, fcntl(other.get(), F_ADD_SEALS, F_SEAL_SHRINK));
  EXPECT_TRUE(cannot_shrink(other.get()));
  const Pipe pipe;
  EXPECT_FALSE(cannot_shrink(pipe.read.get()));
  EXPECT_FALSE(cannot_shrink(-1));
}

TEST(SharedFile, PunchSharedFile_PunchedPages_ReadAsZeros) {
  auto file = make_shared_file("nupa-test");
  ASSERT_TRUE(file && grow_shared_file(file->get(), 3 * 4096));
  const std::vector<char> ones(3 * 4096, 1);
  ASSERT_EQ(3 * 4096, pwrite(file->get(), ones.data(), ones.size(), 0));
  punch_shared_file(file->get(), 4096, 4096);
  std::vector<char> now(3 * 4096);
  ASSERT_EQ(3 * 4096, pread(file->get(), now.data(), now.size(), 0));
  for (size_t i = 0; i < now.size(); ++i) ASSERT_EQ(i / 4096 == 1 ? 0 : 1, now[i]) << i;
}

TEST(SharedFile, GrowSharedFile_BeyondTheFileSizeLimit_FailsWithoutASignal) {
  EXPECT_EQ(0, in_child([] {
              signal(SIGXFSZ, SIG_DFL);
              auto file = make_shared_file("nupa-test");
              const rlimit limit{8192, RLIM_INFINITY};
              if (!file || setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              if (!grow_shared_file(file->get(), 8192)) return 2;
              const auto beyond = grow_shared_file(file->get(), 8193);
              if (beyond || beyond.error().code() != EFBIG) return 3;
              sigset_t blocked;
              pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
              return sigismember(&blocked, SIGXFSZ) == 0 ? 0 : 4;
            }));
}

// Descriptors.

TEST(UniqueFd, MoveReleaseAndReset_CloseTheDescriptorOnce) {
  Pipe pipe;
  UniqueFd owner(dup(pipe.write.get()));
  UniqueFd other(std::move(owner));
  EXPECT_FALSE(owner);
  pipe.write.reset();
  EXPECT_FALSE(hung_up(pipe.read.get(), 0));
  UniqueFd& same = other;
  other = std::move(same);
  EXPECT_FALSE(hung_up(pipe.read.get(), 0)) << "moved to itself";
  const int number = other.release();
  other.reset();
  EXPECT_FALSE(hung_up(pipe.read.get(), 0)) << "it owns it no more";
  other.reset(number);
  other = UniqueFd();
  EXPECT_TRUE(hung_up(pipe.read.get(), 0));
}

TEST(LowestDescriptor, OutOfTheWay_BelowTheLowest_IsMovedAndClosedOnExec) {
  struct Reset {
    ~Reset() { set_lowest_descriptor(0); }
  } reset;
  UniqueFd first(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = first.get();
  first = out_of_the_way(std::move(first));
  EXPECT_EQ(number, first.get()) << "any number will do";
  set_lowest_descriptor(200);
  first = out_of_the_way(std::move(first));
  EXPECT_GE(first.get(), 200);
  EXPECT_NE(0, fcntl(first.get(), F_GETFD) & FD_CLOEXEC);
  EXPECT_EQ(-1, fcntl(number, F_GETFD)) << "it has moved";
  const int moved = first.get();
  set_lowest_descriptor(moved);
  first = out_of_the_way(std::move(first));
  EXPECT_EQ(moved, first.get());
  set_lowest_descriptor(1 << 30);
  errno = EDOM;
  first = out_of_the_way(std::move(first));
  EXPECT_EQ(moved, first.get()) << "there is none so high";
  EXPECT_EQ(EDOM, errno);
  EXPECT_FALSE(out_of_the_way(UniqueFd()));
}

// Settings and the log.

/// Runs a disabled test of this program with these variables beside those that say nothing of the settings tested.
int run_again(const char* test, std::vector<const char*> variables) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto is = [text](std::string_view name) { return text.starts_with(name); };
    if (!is("NUPA_LOG=") && !is("LD_PRELOAD=") && !is("XDG_RUNTIME_DIR=") && !is("OTHER=")) variables.push_back(*entry);
  }
  const std::string filter = std::string("--gtest_filter=") + test;
  return in_child([&] {
    variables.push_back(nullptr);
    const int nothing = open("/dev/null", O_WRONLY);
    dup2(nothing, STDOUT_FILENO);
    dup2(nothing, STDERR_FILENO);
    const char* arguments[] = {"unit_tests", filter.c_str(), "--gtest_also_run_disabled_tests", nullptr};
    execve("/proc/self/exe", const_cast<char**>(arguments), const_cast<char**>(variables.data()));
    return 99;
  });
}

TEST(Settings, DISABLED_VariablesUnsetByTheProgram_AreRemembered) {
  unsetenv("NUPA_TEST_ONE");
  setenv("NUPA_TEST_TWO", "now", 1);
  unsetenv("XDG_RUNTIME_DIR");
  unsetenv("OTHER");
  const auto is = [](const char* name, const char* wanted) {
    const char* found = setting(Variable(Setting{.name = name}));
    return found == nullptr ? wanted == nullptr : wanted != nullptr && std::string(found) == wanted;
  };
  EXPECT_TRUE(is("NUPA_TEST_ONE", "first"));
  EXPECT_TRUE(is("NUPA_TEST_TWO", "now"));
  EXPECT_TRUE(is("XDG_RUNTIME_DIR", "/somewhere"));
  EXPECT_TRUE(is("NUPA_TEST", nullptr));
  EXPECT_TRUE(is("NUPA_TEST_ONE_MORE", nullptr));
  EXPECT_TRUE(is("OTHER", nullptr));
}
TEST(Settings, DISABLED_VariablesUnsetByTheProgram_AreUnset) {
  unsetenv("NUPA_TEST_ONE");
  EXPECT_EQ(nullptr, setting(Variable(Setting{.name = "NUPA_TEST_ONE"})));
}

TEST(Settings, UnsetVariables_OnlyWithThePreloadedLibrary_AreRemembered) {
  const std::vector<const char*> variables = {"NUPA_TEST_ONE=first", "NUPA_TEST_TWO=then", "XDG_RUNTIME_DIR=/somewhere",
                                              "OTHER=value", "LD_PRELOAD=/nowhere/libnupa_sockets.so"};
  EXPECT_EQ(0, run_again("Settings.DISABLED_VariablesUnsetByTheProgram_AreRemembered", variables));
  // A program linked with the library may unset a variable on purpose.
  EXPECT_EQ(0, run_again("Settings.DISABLED_VariablesUnsetByTheProgram_AreUnset", {"NUPA_TEST_ONE=first"}));
  EXPECT_EQ(0, run_again("Settings.DISABLED_VariablesUnsetByTheProgram_AreUnset",
                         {"NUPA_TEST_ONE=first", "LD_PRELOAD=/nowhere/other.so"}));
}

TEST(Log, DISABLED_Print_LongText_IsOneLineAndKeepsErrno) {
  Pipe pipe;
  const UniqueFd before(dup(STDERR_FILENO));
  ASSERT_EQ(STDERR_FILENO, dup2(pipe.write.get(), STDERR_FILENO));
  errno = EDOM;
  NUPA_INFO("number %d", 17);
  EXPECT_EQ(EDOM, errno);
  NUPA_DEBUG("not wanted");
  NUPA_WARN("%s", std::string(2000, 'x').c_str());
  // Its own end for reading takes no line: the write fails.
  ASSERT_EQ(STDERR_FILENO, dup2(pipe.read.get(), STDERR_FILENO));
  errno = EDOM;
  NUPA_WARN("nobody can read this");
  const int error = errno;
  dup2(before.get(), STDERR_FILENO);
  EXPECT_EQ(EDOM, error);
  const std::string start = "nupa[" + std::to_string(getpid()) + "] ";
  char text[4096];
  const std::string info = start + "info: number 17\n";
  const ssize_t got = read(pipe.read.get(), text, sizeof text);
  ASSERT_GT(got, 0);
  const std::string all(text, static_cast<size_t>(got));
  EXPECT_EQ(info, all.substr(0, info.size()));
  const std::string rest = all.substr(info.size());
  EXPECT_EQ(start + "warn: ", rest.substr(0, start.size() + 6));
  EXPECT_EQ(rest.find('\n'), rest.size() - 1) << "one line, though it is cut";
  EXPECT_EQ(rest.find('\0'), std::string::npos);
  EXPECT_LE(rest.size(), 512u);
  EXPECT_GE(rest.size(), 500u);
}
TEST(Log, DISABLED_DefaultLevel_PrintsWarningsButNoInfo) {
  EXPECT_TRUE(log_enabled(LogLevel::kError));
  EXPECT_TRUE(log_enabled(LogLevel::kWarn));
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
}
TEST(Log, DISABLED_UnknownLevel_IsReportedOnce) {
  Pipe pipe;
  const UniqueFd before(dup(STDERR_FILENO));
  ASSERT_EQ(STDERR_FILENO, dup2(pipe.write.get(), STDERR_FILENO));
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));  // once
  dup2(before.get(), STDERR_FILENO);
  char text[4096];
  const ssize_t got = read(pipe.read.get(), text, sizeof text);
  ASSERT_GT(got, 0);
  EXPECT_EQ(std::string(text, static_cast<size_t>(got)),
            "nupa[" + std::to_string(getpid()) +
                "] warn: NUPA_LOG=nonsense: expected error, warn, info or debug; using warn\n");
}
TEST(Log, DISABLED_LevelError_TurnsWarningsOff) {
  EXPECT_TRUE(log_enabled(LogLevel::kError));
  EXPECT_FALSE(log_enabled(LogLevel::kWarn));
}

TEST(Log, NupaLog_EachLevel_PrintsWhatItSelects) {
  EXPECT_EQ(0, run_again("Log.DISABLED_Print_LongText_IsOneLineAndKeepsErrno", {"NUPA_LOG=info"}));
  EXPECT_EQ(0, run_again("Log.DISABLED_DefaultLevel_PrintsWarningsButNoInfo", {}));
  EXPECT_EQ(0, run_again("Log.DISABLED_DefaultLevel_PrintsWarningsButNoInfo", {"NUPA_LOG=nonsense"}));
  EXPECT_EQ(0, run_again("Log.DISABLED_UnknownLevel_IsReportedOnce", {"NUPA_LOG=nonsense"}));
  EXPECT_EQ(0, run_again("Log.DISABLED_LevelError_TurnsWarningsOff", {"NUPA_LOG=error"}));
}

// Reasons of errors.

TEST(Reason, DISABLED_TakeReason_OfThisErrorAlone_IsReturnedOnce) {
  ASSERT_TRUE(explains());
  EXPECT_EQ(EINVAL, reject(EINVAL, "value ", 7, std::string(" (at most 6)")));
  EXPECT_STREQ("value 7 (at most 6)", take_reason(EINVAL));
  EXPECT_EQ(nullptr, take_reason(EINVAL)) << "once";
  reject(EINVAL, "of an earlier call");
  EXPECT_EQ(nullptr, take_reason(EBUSY));
  EXPECT_EQ(nullptr, take_reason(EINVAL)) << "it is of an earlier call";
  reject(EINVAL, std::string(1000, 'a'), "b");
  EXPECT_EQ(std::string(240, 'a'), take_reason(EINVAL)) << "the rest is cut off";
}
TEST(Reason, DISABLED_Explain_PrintsOneLineASecondAndKeepsErrno) {
  Pipe pipe;
  const UniqueFd before(dup(STDERR_FILENO));
  ASSERT_EQ(STDERR_FILENO, dup2(pipe.write.get(), STDERR_FILENO));
  reject(EINVAL, "it was noted");
  const char* const call = "ibv_one";
  errno = EDOM;
  explain(call, EINVAL, nullptr);
  EXPECT_EQ(EDOM, errno);
  explain(call, EINVAL, "it was noted");
  explain(call, EBUSY, "another error");
  explain("ibv_two", EBUSY, nullptr);
  dup2(before.get(), STDERR_FILENO);
  char text[4096];
  const ssize_t got = read(pipe.read.get(), text, sizeof text);
  ASSERT_GT(got, 0);
  const std::string head = "nupa[" + std::to_string(getpid()) + "] info: ";
  EXPECT_EQ(std::string(text, static_cast<size_t>(got)), head + "ibv_one: Invalid argument: it was noted\n" + head +
                                                             "ibv_one: Device or resource busy: another error\n" +
                                                             head + "ibv_two: Device or resource busy\n");
}
TEST(Reason, DISABLED_Reject_WhereNobodyWantsReasons_NotesNone) {
  ASSERT_FALSE(explains());
  EXPECT_EQ(EINVAL, reject(EINVAL, "value ", 7));
  EXPECT_EQ(nullptr, take_reason(EINVAL));
}

TEST(Reason, NupaExplain_OrLogAtInfo_PrintsReasons) {
  for (const char* variable : {"NUPA_EXPLAIN=on", "NUPA_LOG=info"}) {
    EXPECT_EQ(0, run_again("Reason.DISABLED_TakeReason_OfThisErrorAlone_IsReturnedOnce", {variable}));
    EXPECT_EQ(0, run_again("Reason.DISABLED_Explain_PrintsOneLineASecondAndKeepsErrno", {variable}));
  }
  EXPECT_EQ(0, run_again("Reason.DISABLED_Reject_WhereNobodyWantsReasons_NotesNone", {}));
}

// Times.

TEST(Clock, NowNs_IsMonotonicTime) {
  const auto kernels = [] {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1'000'000'000) + time.tv_nsec;
  };
  const int64_t before = kernels(), now = now_ns(), after = kernels();
  EXPECT_LE(before, now);
  EXPECT_LE(now, after);
}

TEST(TimeCode, Ibta127_IsFourMicrosecondsTimesAPowerOfTwo_AMinuteAtMost) {
  EXPECT_EQ(4096, from_code(0));
  EXPECT_EQ(8192, from_code(1));
  EXPECT_EQ(INT64_C(4096) << 23, from_code(23));
  EXPECT_EQ(INT64_C(60'000'000'000), from_code(24));
  EXPECT_EQ(INT64_C(60'000'000'000), from_code(31));
  EXPECT_EQ(4096, from_code(32)) << "a code has five bits";
  EXPECT_EQ(8192, from_code(255 - 30));
}

TEST(TimeCode, SumOfCodes_IsTheNearestCode) {
  EXPECT_EQ(1, sum_of_codes(0, 0));
  EXPECT_EQ(18, sum_of_codes(17, 16)) << "half as long again counts";
  EXPECT_EQ(18, sum_of_codes(16, 17));
  EXPECT_EQ(17, sum_of_codes(15, 17)) << "a quarter does not";
  EXPECT_EQ(31, sum_of_codes(31, 31)) << "there is none longer";
}

TEST(BootId, Digits_EqualThoseOfTheKernel) {
  const UniqueFd file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[37] = "";
  if (read(file.get(), text, 36) != 36) GTEST_SKIP() << "it is not to be seen";
  std::string digits;
  for (const char c : std::string(text))
    if (c != '-') digits += c;
  std::string found;
  for (const uint8_t byte : boot_id()) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", byte);
    found += two;
  }
  EXPECT_EQ(digits, found);
}

TEST(GidOfIpv4, Ipv4Octets_BecomeTheMappedAddress) {
  const Gid mapped{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 77}};
  EXPECT_EQ(ipv4_gid(192, 0, 2, 77), mapped);
  EXPECT_EQ(ipv4_gid(in_addr{htonl(0xc000024d)}), mapped);
  const uint8_t packet[] = {192, 0, 2, 77, 1};
  EXPECT_EQ(ipv4_gid(packet), mapped);
}

TEST(GidUnspecified, IsUnspecified_AllZerosOfEitherFamily_IsTrue) {
  EXPECT_TRUE(is_unspecified(Gid{}));
  EXPECT_TRUE(is_unspecified(ipv4_gid(0, 0, 0, 0)));
  for (size_t i = 0; i < 16; ++i) {
    for (Gid other : {Gid{}, ipv4_gid(0, 0, 0, 0)}) {
      other.raw[i] ^= 1;
      EXPECT_FALSE(is_unspecified(other)) << i;
    }
  }
}

TEST(GidFamily, IsIpv4_MappedPrefixOnly_IsTrue) {
  Gid gid = ipv4_gid(0, 0, 0, 0);
  EXPECT_TRUE(is_ipv4(gid));
  for (size_t i = 0; i < 12; ++i) {
    Gid other = gid;
    other.raw[i] ^= 1;
    EXPECT_FALSE(is_ipv4(other)) << i;
  }
  gid.raw[15] = 77;
  EXPECT_TRUE(is_ipv4(gid));
}

}  // namespace
}  // namespace nupa::base
