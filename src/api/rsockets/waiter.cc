#include "waiter.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "progress/cpu.h"
#include "settings.h"

namespace nupa::rsockets {

void Observers::add(Observer* observer) {
  std::lock_guard lock(lock_);
  list_.push_back(observer);
  count_.store(static_cast<uint32_t>(list_.size()), std::memory_order_seq_cst);
  base::fence_after_update();
}

void Observers::remove(Observer* observer) {
  std::lock_guard lock(lock_);
  const auto it = std::find(list_.begin(), list_.end(), observer);
  if (it != list_.end()) list_.erase(it);
  count_.store(static_cast<uint32_t>(list_.size()), std::memory_order_seq_cst);
}

void Observers::tell(const Observer* except) {
  std::lock_guard lock(lock_);
  for (Observer* observer : list_) {
    if (observer != except) observer->changed();
  }
}

ThreadWaiter& ThreadWaiter::mine() {
  // The waiter itself has no destructor: functions that atexit() registered may sleep after the destructors of the
  // thread's other objects have run. They get a new descriptor, which the end of the process closes.
  constinit thread_local ThreadWaiter waiter;
  struct CloseAtThreadExit {
    ~CloseAtThreadExit() { waiter.close(); }
  };
  if (waiter.process_ != getpid()) {
    thread_local CloseAtThreadExit close_at_thread_exit;
    waiter.open();
  }
  return waiter;
}

void ThreadWaiter::open() {
  close();
  fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  process_ = getpid();
  told_.store(false);
}

void ThreadWaiter::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  process_ = 0;
}

void ThreadWaiter::changed() {
  if (told_.exchange(true)) return;
  const uint64_t one = 1;
  if (write(fd_, &one, sizeof one) < 0) return;  // without a descriptor (EMFILE) sleepers look by themselves
}

void ThreadWaiter::reset() {
  if (!told_.load()) return;
  uint64_t count;
  // Nothing to read yet: changed() is about to write, and told_ stays set so that a later reset() reads it. Without a
  // descriptor told_ stays set forever, which only leaves out writes that would fail.
  if (read(fd_, &count, sizeof count) < 0) return;
  // Only now: the look that follows sees each change that came before this line.
  told_.exchange(false);
}

Spin::Spin() : until_(Deadline::in_ns(settings().polling_us * progress::kNsPerUs)) {}

bool Spin::again() {
  if (until_.passed()) return false;
  progress::relax();
  return true;
}

}  // namespace nupa::rsockets
