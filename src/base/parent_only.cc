#include "base/parent_only.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

#include "base/log.h"

namespace nupa::base {
namespace {

/// Nothing else is locked while this is, so a fork can wait for it.
std::mutex& mutex() {
  static auto* made = new std::mutex;
  return *made;
}
std::set<int>& descriptors() {
  static auto* made = new std::set<int>;
  return *made;
}

void prepare() { mutex().lock(); }
void in_parent() { mutex().unlock(); }
void in_child() {
  for (const int fd : descriptors()) ::close(fd);
  descriptors().clear();
  mutex().unlock();
}

}  // namespace

void close_in_children(int fd) {
  static const int registered = pthread_atfork(prepare, in_parent, in_child);
  if (registered != 0) NUPA_ERROR("no memory for process handlers");
  std::lock_guard lock(mutex());
  descriptors().insert(fd);
}

void forget_for_children(int fd) {
  std::lock_guard lock(mutex());
  descriptors().erase(fd);
}

}  // namespace nupa::base
