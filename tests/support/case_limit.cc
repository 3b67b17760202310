// SPDX-License-Identifier: Apache-2.0
#include "case_limit.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "sanitizers.h"

namespace nupa::test {
namespace {

constexpr const char* kLimitVariable = "NUPA_TEST_CASE_SECONDS";
/// Descriptor of the memory that parent and child share; set for the child only.
constexpr const char* kChildVariable = "NUPA_TEST_PROGRESS_FD";

const int kDefaultSeconds = kThreadSanitizer ? 400 : kAddressSanitizer ? 300 : 180;
/// Where NUPA_TEST_ALL asks for every case, cases take longer.
constexpr int kTimesOfAll = 10;
/// Simulations of more seeds have no limit by default: they take hours.
constexpr int kMostLimitedRuns = 20'000;
/// Then something is wrong with all of them: the rest is reported as failed without being run.
constexpr int kMostCutOff = 10;
constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr int kLookMs = 500;

enum class State : uint8_t {
  kLeftOut,
  kAwaited,
  kRunning,
  kDone,
  kCutOff,  ///< the parent has found that it runs for too long: if it ends now, the child stands still until it is
            ///< killed
};

/// What the child tells its parent, in memory that both have mapped. An array of states, one for each case, follows.
struct Progress {
  std::atomic<int64_t> last_event_ns;  ///< when a case or a group of cases last began or ended
  std::atomic<bool> finished;          ///< all that was asked for has run
  std::atomic<uint32_t> cases;         ///< how many states there are: both processes must have the same cases
};
static_assert(std::atomic<State>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerSecond + now.tv_nsec;
}

/// All cases of the program in the order in which they were registered.
std::vector<const ::testing::TestInfo*> all_cases() {
  std::vector<const ::testing::TestInfo*> cases;
  const auto& program = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const auto& suite = *program.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) cases.push_back(suite.GetTestInfo(k));
  }
  return cases;
}

std::string name_of(const ::testing::TestInfo& info) { return std::string(info.test_suite_name()) + "." + info.name(); }

/// The shared memory, in either process.
class Board {
 public:
  Board(int fd, size_t cases) : bytes_(sizeof(Progress) + cases * sizeof(std::atomic<State>)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
      std::perror("case limit: cannot map the memory shared with the watching process");
      std::_Exit(EXIT_FAILURE);
    }
    progress_ = static_cast<Progress*>(memory);
    states_ = reinterpret_cast<std::atomic<State>*>(progress_ + 1);
  }
  ~Board() { munmap(progress_, bytes_); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  Progress& progress() { return *progress_; }
  std::atomic<State>& state(size_t i) { return states_[i]; }
  void touch() { progress_->last_event_ns.store(now_ns()); }

 private:
  const size_t bytes_;
  Progress* progress_;
  std::atomic<State>* states_;
};

// ---- The child ----

class Reporter final : public ::testing::EmptyTestEventListener {
 public:
  explicit Reporter(Board* board) : board_(board), cases_(all_cases()) {
    for (size_t i = 0; i < cases_.size(); ++i) index_[cases_[i]] = i;
  }
  void OnTestIterationStart(const ::testing::UnitTest&, int) override {
    for (size_t i = 0; i < cases_.size(); ++i) {
      board_->state(i).store(cases_[i]->should_run() ? State::kAwaited : State::kLeftOut);
    }
    board_->touch();
  }
  void OnTestSuiteStart(const ::testing::TestSuite&) override { board_->touch(); }
  void OnTestSuiteEnd(const ::testing::TestSuite&) override { board_->touch(); }
  void OnTestStart(const ::testing::TestInfo& info) override { enter(info, State::kRunning); }
  void OnTestEnd(const ::testing::TestInfo& info) override {
    if (enter(info, State::kDone) != State::kCutOff) return;
    for (;;) pause();  // else the next case would be killed for this one
  }

 private:
  /// Gives what it was before.
  State enter(const ::testing::TestInfo& info, State state) {
    board_->touch();
    return board_->state(index_.at(&info)).exchange(state);
  }

  Board* board_;
  std::vector<const ::testing::TestInfo*> cases_;
  std::map<const ::testing::TestInfo*, size_t> index_;
};

int run_here(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

int run_watched(int fd, int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  static Board* const board = new Board(fd, all_cases().size());  // never destroyed: exit() runs watched, too
  close(fd);
  if (board->progress().cases.load() != all_cases().size()) {
    std::fprintf(stderr, "case limit: the watching process has other cases than this one\n");
    return EXIT_FAILURE;
  }
  ::testing::UnitTest::GetInstance()->listeners().Append(new Reporter(board));
  const int status = RUN_ALL_TESTS();
  board->touch();
  board->progress().finished.store(true);
  return status;
}

// ---- The watching process ----

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The numbers of a folder of /proc.
std::vector<pid_t> numbers_in(const std::string& folder) {
  std::vector<pid_t> numbers;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      numbers.push_back(std::atoi(name.c_str()));
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

/// A field of /proc/PID/stat behind the name, which may hold anything: 0 is the state, 1 the parent.
std::string stat_field(const std::string& process, int number) {
  const std::string line = first_line(process + "/stat");
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int i = 0; i <= number; ++i) fields >> field;
  return field;
}

std::string process_path(pid_t pid) { return "/proc/" + std::to_string(pid); }

/// A process and all that it and its children have started, parents first.
std::vector<pid_t> family_of(pid_t pid) {
  std::vector<pid_t> family{pid};
  const std::vector<pid_t> all = numbers_in("/proc");
  for (size_t i = 0; i < family.size(); ++i) {
    for (const pid_t other : all) {
      if (stat_field(process_path(other), 1) == std::to_string(family[i])) family.push_back(other);
    }
  }
  return family;
}

const char* call_name(long number) {
  switch (number) {
    case SYS_futex:
      return "futex (a lock, a condition, a join)";
    case SYS_ppoll:
      return "ppoll";
    case SYS_epoll_pwait:
      return "epoll_pwait";
    case SYS_epoll_pwait2:
      return "epoll_pwait2";
    case SYS_pselect6:
      return "pselect6";
    case SYS_read:
      return "read";
    case SYS_recvfrom:
      return "recvfrom";
    case SYS_recvmsg:
      return "recvmsg";
    case SYS_accept4:
      return "accept4";
    case SYS_wait4:
      return "wait4 (the end of a process)";
    case SYS_waitid:
      return "waitid (the end of a process)";
    case SYS_clock_nanosleep:
      return "clock_nanosleep";
#ifdef SYS_poll
    case SYS_poll:
      return "poll";
    case SYS_epoll_wait:
      return "epoll_wait";
    case SYS_select:
      return "select";
#endif
    default:
      return nullptr;
  }
}

std::string awaited_call(const std::string& task) {
  const std::string call = first_line(task + "/syscall");
  if (call.empty()) return "unknown";
  if (call[0] < '0' || call[0] > '9') return "no system call: it runs";
  const long number = std::atol(call.c_str());
  const char* name = call_name(number);
  return name != nullptr ? name : "system call " + std::to_string(number);
}

/// Prints what each thread of each process waits for, and where it is if gdb is installed.
void describe(pid_t root) {
  for (const pid_t pid : family_of(root)) {
    std::printf("process %d %s:\n", pid, first_line(process_path(pid) + "/comm").c_str());
    for (const pid_t thread : numbers_in(process_path(pid) + "/task")) {
      const std::string task = process_path(pid) + "/task/" + std::to_string(thread);
      std::printf("  thread %d %s: %s, %s\n", thread, first_line(task + "/comm").c_str(), stat_field(task, 0).c_str(),
                  awaited_call(task).c_str());
    }
    std::fflush(stdout);
    const std::string gdb = "command -v gdb >/dev/null && timeout -k 2 30 gdb -batch -nx -p " + std::to_string(pid) +
                            " -ex 'thread apply all backtrace 16' 2>/dev/null </dev/null | grep -E '^(Thread|#)'";
    if (std::system(gdb.c_str()) != 0) std::printf("  (no stacks: gdb is not installed or may not trace it)\n");
  }
}

void kill_family(pid_t root) {
  for (const pid_t pid : family_of(root)) kill(pid, SIGKILL);
}

pid_t spawn(int fd, const std::vector<std::string>& arguments) {
  std::vector<char*> list;
  for (const std::string& argument : arguments) list.push_back(const_cast<char*>(argument.c_str()));
  list.push_back(nullptr);
  setenv(kChildVariable, std::to_string(fd).c_str(), 1);
  std::fflush(stdout);
  const pid_t watcher = getpid();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != watcher) _exit(EXIT_FAILURE);
    execv(std::filesystem::read_symlink("/proc/self/exe").c_str(), list.data());
    std::perror("case limit: cannot start the tests");
    _exit(EXIT_FAILURE);
  }
  unsetenv(kChildVariable);
  return child;
}

class Watcher {
 public:
  Watcher(int fd, int seconds)
      : fd_(fd), limit_ns_(seconds * kNsPerSecond), cases_(all_cases()), board_(fd, cases_.size()) {
    board_.progress().cases.store(static_cast<uint32_t>(cases_.size()));
  }

  int run(std::vector<std::string> arguments) {
    bool failed = false;
    for (int cut_off = 0;; ++cut_off) {
      board_.progress().finished.store(false);
      board_.touch();
      const pid_t child = spawn(fd_, arguments);
      if (child < 0) {
        std::perror("case limit: cannot start the tests");
        return EXIT_FAILURE;
      }
      const int status = await(child);
      if (board_.progress().finished.load() && WIFEXITED(status)) return failed ? EXIT_FAILURE : exit_status(status);
      failed = true;
      report_cut_off(status);
      const std::vector<size_t> rest = awaited();
      if (rest.empty()) return EXIT_FAILURE;
      if (cut_off == kMostCutOff) {
        for (const size_t i : rest) report_failure(i, "not run: too many cases before it hung or ended the process", 0);
        return EXIT_FAILURE;
      }
      arguments = continue_with(rest, arguments);
    }
  }

 private:
  /// The child's wait status. Kills the child when a case takes too long.
  int await(pid_t child) {
    hung_ = false;
    for (;;) {
      int status;
      const pid_t ended = waitpid(child, &status, WNOHANG);
      if (ended == child || (ended < 0 && errno != EINTR)) return ended == child ? status : -1;
      if (!hung_ && elapsed_ns() > limit_ns_ && cut_off()) {
        hung_ = true;
        const size_t i = cut_off_;
        std::printf("\n%s hangs: still running after %lld s (%s). It waits for:\n",
                    i < cases_.size() ? name_of(*cases_[i]).c_str() : "The program, outside of any case,",
                    static_cast<long long>(limit_ns_ / kNsPerSecond), kLimitVariable);
        std::fflush(stdout);
        describe(child);
        kill_family(child);
      }
      pause(child);
    }
  }

  /// Takes note of the case that runs, which cannot end from now on. False: it has ended just now.
  bool cut_off() {
    cut_off_ = running();
    State expected = State::kRunning;
    return cut_off_ == cases_.size() || board_.state(cut_off_).compare_exchange_strong(expected, State::kCutOff);
  }

  /// Until the child has ended, but not for longer than until the next look.
  static void pause(pid_t child) {
    const auto fd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
    pollfd entry{fd, POLLIN, 0};
    poll(&entry, fd < 0 ? 0 : 1, fd < 0 ? kLookMs / 10 : kLookMs);
    if (fd >= 0) close(fd);
  }

  int64_t elapsed_ns() { return now_ns() - board_.progress().last_event_ns.load(); }

  /// Number of the case that runs; number of cases: none.
  size_t running() {
    size_t i = 0;
    while (i < cases_.size() && board_.state(i).load() != State::kRunning) ++i;
    return i;
  }

  std::vector<size_t> awaited() {
    std::vector<size_t> rest;
    for (size_t i = 0; i < cases_.size(); ++i) {
      if (board_.state(i).load() == State::kAwaited) rest.push_back(i);
    }
    return rest;
  }

  void report_cut_off(int status) {
    size_t i = hung_ ? cut_off_ : running();
    // Before a case began: its suite's or the program's preparations are at fault.
    if (i == cases_.size() && !awaited().empty()) i = awaited().front();
    std::string reason = "hung";
    if (!hung_ && WIFSIGNALED(status)) reason = std::string("ended the process: ") + strsignal(WTERMSIG(status));
    if (!hung_ && !WIFSIGNALED(status))
      reason = "ended the process: exit status " + std::to_string(exit_status(status));
    if (i == cases_.size()) {
      std::printf("\n[  FAILED  ] the program, outside of any case: %s\n", reason.c_str());
      std::fflush(stdout);
      return;
    }
    report_failure(i, reason, elapsed_ns() / 1'000'000);
    board_.state(i).store(State::kDone);
  }

  /// As GoogleTest prints a case that failed.
  void report_failure(size_t i, const std::string& reason, int64_t ms) {
    const std::string name = name_of(*cases_[i]);
    std::printf("\n%s:%d: Failure\n%s %s\n[  FAILED  ] %s (%lld ms)\n", cases_[i]->file(), cases_[i]->line(),
                name.c_str(), reason.c_str(), name.c_str(), static_cast<long long>(ms));
    std::fflush(stdout);
  }

  std::vector<std::string> continue_with(const std::vector<size_t>& rest, std::vector<std::string> arguments) {
    std::string filter = "--gtest_filter=";
    for (const size_t i : rest) filter += name_of(*cases_[i]) + ":";
    std::printf("\n%zu cases remain of this run of the program:\n", rest.size());
    arguments.push_back(filter);
    arguments.push_back("--gtest_repeat=1");
    unsetenv("GTEST_TOTAL_SHARDS");  // they were chosen by it
    unsetenv("GTEST_SHARD_INDEX");
    return arguments;
  }

  static int exit_status(int status) {
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    constexpr int kShellsOffset = 128;
    return WIFSIGNALED(status) ? kShellsOffset + WTERMSIG(status) : EXIT_FAILURE;
  }

  const int fd_;
  const int64_t limit_ns_;
  const std::vector<const ::testing::TestInfo*> cases_;
  Board board_;
  bool hung_ = false;
  size_t cut_off_ = 0;  ///< the case that hung; number of cases: outside of any
};

int number_in(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

int limit_seconds() {
  if (number_in("NUPA_SIM_RUNS", 0) > kMostLimitedRuns) return number_in(kLimitVariable, 0);
  const bool all = number_in("NUPA_TEST_ALL", 0) != 0;
  return number_in(kLimitVariable, all ? kDefaultSeconds * kTimesOfAll : kDefaultSeconds);
}

/// Whether the cases belong into this very process: a debugger's, or one that only lists cases or plays a part in one.
bool has_to_run_here(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    for (const char* flag : {"--gtest_list_tests", "--gtest_internal_run_death_test", "--help", "--gtest_help"}) {
      if (std::strncmp(argv[i], flag, std::strlen(flag)) == 0) return true;
    }
  }
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("TracerPid:", 0) == 0) return std::atoi(line.c_str() + std::strlen("TracerPid:")) != 0;
  }
  return false;
}

}  // namespace

int run_all_tests(int argc, char** argv) {
  if (const char* fd = std::getenv(kChildVariable)) {
    const int number = std::atoi(fd);
    unsetenv(kChildVariable);
    return run_watched(number, argc, argv);
  }
  const int seconds = limit_seconds();
  if (seconds <= 0 || has_to_run_here(argc, argv)) return run_here(argc, argv);
  const std::vector<std::string> arguments(argv, argv + argc);
  ::testing::InitGoogleTest(&argc, argv);  // so that the cases with parameters are there
  const int fd = memfd_create("nupa-test-progress", 0);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(sizeof(Progress) + all_cases().size())) != 0) {
    std::perror("case limit: cannot make the memory shared with the tests");
    return EXIT_FAILURE;
  }
  const int status = Watcher(fd, seconds).run(arguments);
  std::fflush(stdout);
  _exit(status);  // nothing of the libraries was used here
}

}  // namespace nupa::test
