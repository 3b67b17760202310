#include "cm/poller.h"

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/clock.h"

namespace nupa::cm {
namespace {

constexpr uint32_t kReadable = EPOLLIN | EPOLLRDHUP;

bool control(int epoll, int operation, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return epoll_ctl(epoll, operation, fd, &event) == 0;
}

}  // namespace

Result<void> Poller::open() {
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return fail(errno, "no descriptor is to be had for the service thread");
  return {};
}

bool Poller::add(int fd) { return control(epoll_.get(), EPOLL_CTL_ADD, fd, kReadable); }

void Poller::remove(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Poller::want_room(int socket, bool wanted) {
  control(epoll_.get(), EPOLL_CTL_MOD, socket, wanted ? kReadable | EPOLLOUT : kReadable);
}

int Poller::wait(epoll_event* ready, int room, int64_t wake_ns) {
  // Kernels before Linux 5.11, and sandboxes that know no newer calls, wait in whole milliseconds.
  static std::atomic<bool> fine{true};
  const int64_t left = wake_ns == INT64_MAX ? 0 : std::max<int64_t>(wake_ns - base::now_ns(), 0);
  if (fine.load(std::memory_order_relaxed)) {
    const timespec patience{left / 1'000'000'000, left % 1'000'000'000};
    const int count = epoll_pwait2(epoll_.get(), ready, room, wake_ns == INT64_MAX ? nullptr : &patience, nullptr);
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return count;
    fine = false;
  }
  constexpr int64_t kMillisecond = 1'000'000;
  constexpr int64_t kLongest = 60'000;
  const int patience_ms =
      wake_ns == INT64_MAX ? -1 : static_cast<int>(std::min((left + kMillisecond - 1) / kMillisecond, kLongest));
  return epoll_wait(epoll_.get(), ready, room, patience_ms);
}

}  // namespace nupa::cm
