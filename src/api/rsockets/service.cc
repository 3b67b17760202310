#include "service.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <memory>

#include "base/clock.h"
#include "progress/clock.h"
#include "progress/thread.h"

namespace nupa::rsockets {

using progress::kNsPerMs;
using progress::kNsPerSecond;

Service& Service::instance() {
  // Never destroyed: the thread may outlive static objects at exit.
  constinit static std::atomic<Service*> current{nullptr};
  Service* service = current.load(std::memory_order_acquire);
  while (service == nullptr || service->process_ != getpid()) {
    std::unique_ptr<Service> fresh(new Service);
    if (!current.compare_exchange_strong(service, fresh.get(), std::memory_order_acq_rel)) continue;
    // The parent's is left as the fork found it; only this process's copies of its descriptors are closed.
    if (service != nullptr) {
      service->epoll_.reset();
      service->event_.reset();
    }
    return *fresh.release();
  }
  return *service;
}

int Service::start() {
  if (started_) return 0;
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  event_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !event_) return -errno;
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.fd = event_.get();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &wanted) != 0) return -errno;

  const auto started = progress::start_detached("nupa-rsockets", [this] { run(); });
  if (!started) return -started.error().code;
  started_ = true;
  return 0;
}

int Service::add(int fd, ServiceClient* client) {
  std::lock_guard lock(mutex_);
  const int rc = start();
  if (rc != 0) return rc;
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &wanted) != 0) return -errno;
  clients_[fd] = client;
  return 0;
}

void Service::remove(int fd, ServiceClient* client) {
  std::lock_guard lock(mutex_);
  const auto it = clients_.find(fd);
  if (it == clients_.end() || it->second != client) return;
  clients_.erase(it);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

int Service::keep_alive(ServiceTimer* who, int seconds) {
  std::lock_guard lock(mutex_);
  const int rc = start();
  if (rc != 0) return rc;
  std::erase_if(timers_, [&](const Timer& timer) { return timer.who == who; });
  const int64_t period = seconds * kNsPerSecond;
  timers_.push_back({who, period, base::now_ns() + period});
  kick();
  return 0;
}

void Service::forget(ServiceTimer* who) {
  std::lock_guard lock(mutex_);
  std::erase_if(timers_, [&](const Timer& timer) { return timer.who == who; });
}

void Service::kick() {
  const uint64_t one = 1;
  if (write(event_.get(), &one, sizeof one) < 0) return;  // full: it is awake already
}

int64_t Service::serve_timers() {
  const int64_t now = base::now_ns();
  // A stream that finds out that it has ended takes its timer away.
  for (;;) {
    const auto due =
        std::find_if(timers_.begin(), timers_.end(), [&](const Timer& timer) { return timer.due_ns <= now; });
    if (due == timers_.end()) break;
    due->due_ns = now + due->period_ns;
    due->who->keep_alive();
  }
  int64_t next = INT64_MAX;
  for (const Timer& timer : timers_) next = std::min(next, timer.due_ns);
  return next == INT64_MAX ? -1 : (next - now) / kNsPerMs + 1;
}

void Service::run() {
  constexpr int kTogether = 64;
  epoll_event events[kTogether];
  int64_t timeout_ms = -1;
  for (;;) {
    const int count =
        epoll_wait(epoll_.get(), events, kTogether, static_cast<int>(std::min<int64_t>(timeout_ms, INT_MAX)));
    std::lock_guard lock(mutex_);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == event_.get()) {
        uint64_t value;
        if (read(event_.get(), &value, sizeof value) < 0) continue;
        continue;
      }
      const auto it = clients_.find(events[i].data.fd);
      if (it != clients_.end()) it->second->service();
    }
    timeout_ms = serve_timers();
  }
}

}  // namespace nupa::rsockets
