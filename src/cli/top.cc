// SPDX-License-Identifier: Apache-2.0
/// `nupa top`: looks at all processes from time to time, and shows what has moved between two looks.
#include <fmt/core.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <system_error>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "cli/commands.h"
#include "cli/observe.h"
#include "cli/traffic.h"
#include "progress/deadline.h"
#include "progress/descriptors.h"

namespace nupa::cli {
namespace {

/// The first table comes so soon, whatever the interval is.
constexpr double kFirstSeconds = 0.3;
constexpr std::array kEndsTop{SIGINT, SIGTERM, SIGHUP};

int64_t ns_of(double seconds) { return static_cast<int64_t>(seconds * static_cast<double>(base::kNsPerSecond)); }

/// Keys one by one, without an echo. The destructor restores the terminal.
class Keys {
 public:
  Keys() {
    if (isatty(STDIN_FILENO) == 0 || tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios now = before_;
    now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    is_on_ = tcsetattr(STDIN_FILENO, TCSANOW, &now) == 0;
  }
  ~Keys() {
    if (is_on_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;
  /// The descriptor to wait for; -1: there are no keys.
  int fd() const { return is_on_ ? STDIN_FILENO : -1; }

 private:
  termios before_{};
  bool is_on_ = false;
};

/// Changes the options by a key. Returns false if it quits.
bool take_key(char key, TopOptions* options) {
  constexpr std::pair<char, const char*> kGroups[] = {{'p', "process"}, {'u', "qp"}, {'d', "device"}};
  constexpr std::pair<char, const char*> kSorts[] = {
      {'s', "sent"}, {'m', "messages"}, {'r', "received"}, {'e', "errors"}, {'n', "name"}};
  for (const auto& [name, value] : kGroups)
    if (key == name) options->by = value;
  for (const auto& [name, value] : kSorts)
    if (key == name) options->sort = value;
  return key != 'q';
}

void show(const TrafficTable& table, const TopOptions& options, size_t silent, bool is_screen) {
  if (options.json) {
    fmt::print("{}\n", json_of(table).dump());
    return;
  }
  winsize size{};
  if (is_screen && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) size = {};
  const size_t lines = size.ws_row > 2 ? size.ws_row - 2u : 0;
  std::string text = text_of(table, options.by, lines, size.ws_col);
  if (silent != 0) text += fmt::format("{} processes do not answer (they may be stopped)\n", silent);
  if (is_screen)
    fmt::print("\x1b[H\x1b[J{}by {}, sorted by {}   keys: q quits, p u d group, s m r e n sort\n", text, options.by,
               options.sort);
  else
    fmt::print("{}\n", text);
}

}  // namespace

int top(const TopOptions& given) {
  auto dir = host::RuntimeDir::open();
  if (!dir) {
    fmt::print(stderr, "nupa: {}\n", dir.error().what());
    return 1;
  }
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kEndsTop) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const base::UniqueFd ended(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  TopOptions options = given;
  const bool is_screen = !options.json && isatty(STDOUT_FILENO) != 0;
  const std::optional<Keys> keys = is_screen ? std::optional<Keys>(std::in_place) : std::nullopt;
  Traffic traffic;
  size_t silent = 0;
  const auto look = [&] {
    const host::Observation seen = observe_all(**dir);
    traffic.look(rows_of(seen.processes), base::now_ns());
    silent = seen.silent.size();
  };
  look();
  int64_t next_ns = base::now_ns() + ns_of(std::min(options.interval, kFirstSeconds));
  for (uint32_t shown = 0;;) {
    pollfd ready[] = {{ended.get(), POLLIN, 0}, {keys ? keys->fd() : -1, POLLIN, 0}};
    const auto woken = progress::wait_descriptors(ready, progress::Deadline::at(next_ns), progress::Signals::kReturn);
    if (ready[0].revents != 0) return 0;
    char key = 0;
    if (ready[1].revents != 0 && (read(STDIN_FILENO, &key, 1) != 1 || !take_key(key, &options))) return 0;
    // Otherwise a key, or a signal, such as that of another size of the terminal.
    if (woken && *woken == 0) {
      next_ns = base::now_ns() + ns_of(options.interval);
      look();
      ++shown;
    }
    show(traffic.table(options.by, options.sort), options, silent, is_screen);
    if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category());
    if (shown == options.count && options.count != 0) return 0;
  }
}

}  // namespace nupa::cli
