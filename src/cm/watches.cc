#include "cm/watches.h"

#include <cerrno>

namespace nupa::cm {

Result<void> Watches::add(int fd, std::function<void()> ready) {
  std::lock_guard lock(mutex_);
  watches_[fd] = std::move(ready);
  if (poller_.add(fd)) return {};
  const int error = errno;
  watches_.erase(fd);
  return fail(error, "the service thread cannot watch a descriptor");
}

void Watches::remove(int fd) {
  std::lock_guard lock(mutex_);
  if (watches_.erase(fd) != 0) poller_.remove(fd);
}

bool Watches::call(int fd) {
  std::lock_guard lock(mutex_);
  const auto found = watches_.find(fd);
  if (found == watches_.end()) return false;
  const std::function<void()> ready = found->second;  // may remove itself
  ready();
  return true;
}

}  // namespace nupa::cm
