#include "core/sudden_end.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/process_end.h"

/// The preload library's, if it is there: what _exit() calls first.
extern "C" __attribute__((weak, visibility("default"))) std::atomic<void (*)()> nupa_before_exit;

namespace nupa::core {
namespace {

constexpr int kPatienceMs = 100;
std::atomic<SuddenEnd*> g_watched{nullptr};

void add_one(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
}

bool is_preloaded() {
  // The linker knows no address of what nobody defines; the compiler believes that each object has one.
  const std::atomic<void (*)()>* volatile hook = &nupa_before_exit;
  return hook != nullptr;
}

}  // namespace

SuddenEnd::SuddenEnd(cm::Node& node, base::UniqueFd asked, base::UniqueFd done)
    : node_(node), pid_(getpid()), asked_(std::move(asked)), done_(std::move(done)) {}

Result<std::unique_ptr<SuddenEnd>> SuddenEnd::watch(cm::Node& node) {
  if (!is_preloaded()) return nullptr;
  base::UniqueFd asked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  base::UniqueFd done(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!asked || !done) return fail(errno, "no descriptor is to be had for the end of the process");
  std::unique_ptr<SuddenEnd> end(new SuddenEnd(node, std::move(asked), std::move(done)));
  const int fd = end->asked_.get();
  auto watched = node.watch(fd, [end = end.get()] {
    base::run_process_end();
    add_one(end->done_.get());
    uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(end->asked_.get(), &count, sizeof count);
  });
  if (!watched) return tl::unexpected(watched.error());
  g_watched = end.get();
  nupa_before_exit = &before_exit;
  return end;
}

SuddenEnd::~SuddenEnd() {
  if (getpid() != pid_) return;
  SuddenEnd* self = this;
  if (g_watched.compare_exchange_strong(self, nullptr)) nupa_before_exit = nullptr;
  node_.unwatch(asked_.get());
}

void SuddenEnd::before_exit() {
  SuddenEnd* end = g_watched;
  // A child of vfork() has everything of its parent but the process number.
  if (end == nullptr || getpid() != end->pid_ || end->node_.on_service_thread()) return;
  add_one(end->asked_.get());
  pollfd done{end->done_.get(), POLLIN, 0};
  ::poll(&done, 1, kPatienceMs);
}

}  // namespace nupa::core
