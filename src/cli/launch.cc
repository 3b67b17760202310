// SPDX-License-Identifier: Apache-2.0
/// `nupa launch`: the ranks of a job on this host.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "ccl/bootstrap/rendezvous.h"
#include "cli/commands.h"
#include "progress/clock.h"
#include "progress/descriptors.h"

namespace nupa::cli {
namespace {

/// Signals that are passed to all ranks. Those of kEnding end a job.
constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr int kPassedOn[] = {SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH};
using progress::kNsPerSecond;
/// A longer line is shown in parts.
constexpr size_t kLongestLine = 64 << 10;
/// The time that ranks of one rendezvous may arrive after the first one.
constexpr int64_t kRendezvousNs = 300 * kNsPerSecond;

/// A stream of a rank. It is shown line by line, with the rank's number in front.
class Output {
 public:
  Output(base::UniqueFd from, int to, std::string label) : from_(std::move(from)), to_(to), label_(std::move(label)) {}

  int fd() const { return from_.get(); }
  /// Takes what is there. Calls finish() at the end of the stream.
  void take() {
    char buffer[16384];
    while (from_) {
      const ssize_t got = read(from_.get(), buffer, sizeof buffer);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) break;
      if (got <= 0) return finish();
      text_.append(buffer, static_cast<size_t>(got));
    }
    show(false);
  }
  void finish() {
    from_.reset();
    show(true);
  }
  /// Returns the errno of the first write that failed, or 0.
  int error() const { return error_; }

 private:
  void show(bool all) {
    std::string shown;
    size_t at = 0;
    while (at < text_.size()) {
      size_t end = text_.find('\n', at);
      if (end == std::string::npos && !all && text_.size() - at < kLongestLine) break;
      end = std::min(end, text_.size());
      shown += label_;
      shown.append(text_, at, end - at);
      shown += '\n';
      at = std::min(end + 1, text_.size());
    }
    text_.erase(0, at);
    for (size_t said = 0; said < shown.size();) {
      const ssize_t sent = write(to_, shown.data() + said, shown.size() - said);
      if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (sent <= 0) {
        if (error_ == 0) error_ = sent < 0 ? errno : EIO;
        break;
      }
      said += static_cast<size_t>(sent);
    }
  }

  base::UniqueFd from_;
  int to_;
  std::string label_;
  std::string text_;
  int error_ = 0;
};

struct Rank {
  pid_t pid = 0;  ///< also its process group
  bool ended = false;
  std::vector<Output> outputs;
};

struct Pipe {
  base::UniqueFd out;
  base::UniqueFd in;
};

bool make_pipe(Pipe* made) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return false;
  made->out.reset(fds[0]);
  made->in.reset(fds[1]);
  return true;
}

void set_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

class Job {
 public:
  explicit Job(const LaunchOptions& options) : options_(options) {}
  int run();

 private:
  bool take_signals();
  bool start(uint32_t number, const std::string& root);
  [[noreturn]] void become(uint32_t number, const std::string& root, Pipe& input, Pipe& output, Pipe& error);
  void serve();
  void on_signal(const signalfd_siginfo& signal);
  void collect();
  void judge(const Rank& rank, uint32_t number, int status);
  void pass_on(int signal);
  void end_others();
  void feed();
  bool is_over() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
  }

  const LaunchOptions& options_;
  std::vector<Rank> ranks_;
  sigset_t before_{};
  base::UniqueFd signals_;
  base::UniqueFd to_first_;  ///< rank 0's input
  std::string input_;        ///< bytes that rank 0 has not taken yet
  bool input_ends_ = false;
  int status_ = 0;
  bool ending_ = false;
  int64_t kill_at_ns_ = INT64_MAX;
};

bool Job::take_signals() {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGCHLD);
  sigaddset(&wanted, SIGTSTP);
  for (const int signal : kEnding) sigaddset(&wanted, signal);
  for (const int signal : kPassedOn) sigaddset(&wanted, signal);
  sigprocmask(SIG_BLOCK, &wanted, &before_);
  signal(SIGPIPE, SIG_IGN);
  signals_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  return static_cast<bool>(signals_);
}

void Job::become(uint32_t number, const std::string& root, Pipe& input, Pipe& output, Pipe& error) {
  setpgid(0, 0);
  dup2(number == 0 ? input.out.get() : open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  if (output.in) dup2(output.in.get(), STDOUT_FILENO);
  if (error.in) dup2(error.in.get(), STDERR_FILENO);
  const std::string rank = std::to_string(number);
  const std::string ranks = std::to_string(options_.ranks);
  setenv("NUPA_RANK", rank.c_str(), 1);
  setenv("NUPA_WORLD_SIZE", ranks.c_str(), 1);
  setenv("NUPA_LOCAL_RANK", rank.c_str(), 1);
  setenv("NUPA_LOCAL_SIZE", ranks.c_str(), 1);
  setenv("NUPA_CCL_ROOT", root.c_str(), 1);
  signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
  _exit(cli::run(options_.run));
}

bool Job::start(uint32_t number, const std::string& root) {
  Pipe input;
  Pipe output;
  Pipe error;
  if (!make_pipe(&input)) return false;
  if (!options_.direct && (!make_pipe(&output) || !make_pipe(&error))) return false;
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid < 0) return false;
  if (pid == 0) {
    // The ranks end with the launcher, however it ends.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(1);
    become(number, root, input, output, error);
  }
  setpgid(pid, pid);
  Rank& rank = ranks_.emplace_back();
  rank.pid = pid;
  std::string label;
  if (options_.label) label.append("[").append(std::to_string(number)).append("] ");
  if (!options_.direct) {
    set_nonblocking(output.out.get());
    set_nonblocking(error.out.get());
    rank.outputs.emplace_back(std::move(output.out), STDOUT_FILENO, label);
    rank.outputs.emplace_back(std::move(error.out), STDERR_FILENO, label);
  }
  if (number == 0) {
    set_nonblocking(input.in.get());
    to_first_ = std::move(input.in);
  }
  return true;
}

void Job::pass_on(int signal) {
  for (const Rank& rank : ranks_)
    if (!rank.ended) kill(-rank.pid, signal);
}

void Job::end_others() {
  if (ending_) return;
  ending_ = true;
  kill_at_ns_ = base::now_ns() + static_cast<int64_t>(options_.grace_seconds * kNsPerSecond);
  pass_on(SIGTERM);
  pass_on(SIGCONT);
}

void Job::judge(const Rank& rank, uint32_t number, int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  const bool first = status_ == 0;
  if (first) status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  // The status of ranks that the launcher has ended is not printed.
  if (!first || ending_) return;
  char what[128];
  if (WIFEXITED(status))
    std::snprintf(what, sizeof what, "exited with status %d", WEXITSTATUS(status));
  else
    std::snprintf(what, sizeof what, "was killed by signal %d (%s)%s", WTERMSIG(status), strsignal(WTERMSIG(status)),
                  WCOREDUMP(status) ? ", core dumped" : "");
  std::fprintf(stderr, "nupa: launch: rank %u (process %d) %s%s\n", number, rank.pid, what,
               is_over() ? "" : "; ending the other ranks");
  end_others();
}

void Job::collect() {
  for (uint32_t number = 0; number < ranks_.size(); ++number) {
    Rank& rank = ranks_[number];
    int status = 0;
    if (rank.ended || waitpid(rank.pid, &status, WNOHANG) != rank.pid) continue;
    rank.ended = true;
    // The rank's output comes before the message about its end.
    for (Output& output : rank.outputs) output.take();
    if (number == 0) to_first_.reset();
    judge(rank, number, status);
    // The rank's own children belong to the job, too.
    kill(-rank.pid, SIGKILL);
  }
}

void Job::on_signal(const signalfd_siginfo& told) {
  const int signal = static_cast<int>(told.ssi_signo);
  if (signal == SIGCHLD) return collect();
  if (signal == SIGTSTP) {
    pass_on(SIGTSTP);
    raise(SIGSTOP);
    return pass_on(SIGCONT);
  }
  pass_on(signal);
  if (std::find(std::begin(kEnding), std::end(kEnding), signal) == std::end(kEnding)) return;
  if (status_ == 0) status_ = 128 + signal;
  if (!ending_) kill_at_ns_ = base::now_ns() + static_cast<int64_t>(options_.grace_seconds * kNsPerSecond);
  ending_ = true;
}

void Job::feed() {
  if (input_.empty() && !input_ends_) {
    char buffer[16384];
    const ssize_t got = read(STDIN_FILENO, buffer, sizeof buffer);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) input_ends_ = true;
    if (got > 0) input_.assign(buffer, static_cast<size_t>(got));
  }
  if (!input_.empty()) {
    const ssize_t sent = write(to_first_.get(), input_.data(), input_.size());
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (sent <= 0) return to_first_.reset();
    input_.erase(0, static_cast<size_t>(sent));
  }
  if (input_.empty() && input_ends_) to_first_.reset();
}

void Job::serve() {
  std::vector<pollfd> fds;
  while (!is_over()) {
    fds.assign(1, {signals_.get(), POLLIN, 0});
    for (const Rank& rank : ranks_)
      for (const Output& output : rank.outputs) fds.push_back({output.fd(), POLLIN, 0});
    // A background job of a terminal must not read from it.
    const bool may_read = isatty(STDIN_FILENO) == 0 || tcgetpgrp(STDIN_FILENO) == getpgrp();
    if (to_first_ && !input_.empty())
      fds.push_back({to_first_.get(), POLLOUT, 0});
    else if (to_first_ && may_read)
      fds.push_back({STDIN_FILENO, POLLIN, 0});
    if (!progress::wait_descriptors(fds, progress::Deadline::at(kill_at_ns_), progress::Signals::kIgnore)) break;
    size_t at = 1;
    for (Rank& rank : ranks_)
      for (Output& output : rank.outputs)
        if (fds[at++].revents != 0) output.take();
    if (at < fds.size() && fds[at].revents != 0) feed();
    signalfd_siginfo told;
    while (read(signals_.get(), &told, sizeof told) == sizeof told) on_signal(told);
    if (base::now_ns() >= kill_at_ns_) {
      pass_on(SIGKILL);
      kill_at_ns_ = INT64_MAX;
    }
  }
  for (Rank& rank : ranks_)
    for (Output& output : rank.outputs) {
      output.take();
      if (output.fd() >= 0) output.finish();  // a process that the rank has left behind holds it
    }
}

int Job::run() {
  auto root = ccl::RendezvousServer::start(kRendezvousNs);
  if (!root) {
    std::fprintf(stderr, "nupa: launch: %s\n", root.error().what());
    return 1;
  }
  if (!take_signals()) {
    std::fprintf(stderr, "nupa: launch: cannot create a descriptor for signals: %s\n", std::strerror(errno));
    return 1;
  }
  const std::string id = (*root)->id().text();
  for (uint32_t number = 0; number < options_.ranks; ++number) {
    if (start(number, id)) continue;
    std::fprintf(stderr, "nupa: launch: cannot start rank %u: %s\n", number, std::strerror(errno));
    status_ = 1;
    end_others();
    break;
  }
  serve();
  for (const Rank& rank : ranks_)
    for (const Output& output : rank.outputs) {
      if (output.error() == 0) continue;
      std::fprintf(stderr, "nupa: launch: cannot write the output of ranks: %s\n", std::strerror(output.error()));
      return status_ != 0 ? status_ : 1;
    }
  return status_;
}

}  // namespace

int launch(const LaunchOptions& options) { return Job(options).run(); }

}  // namespace nupa::cli
