// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "base/log.h"
#include "progress/lifecycle.h"

namespace nupa::progress {
namespace {

void blank(void* at, size_t length) {
  // The system call itself: ThreadSanitizer takes mmap() for a write that races with readers of the memory.
  constexpr int kFlags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const long mapped = syscall(SYS_mmap, at, length, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  // A fault in the child is better than writes that reach its parent.
  if (mapped == -1) syscall(SYS_munmap, at, length);
}

class Mappings final : public ForkParticipant {
 public:
  Mappings() {
    if (join_forks(ForkStage::kDescriptors, this) != 0)
      NUPA_ERROR("no memory for fork handlers: forked children will share queue pairs with their parent");
  }
  void insert(void* at, size_t length) {
    std::lock_guard lock(mutex_);
    known_[at] = length;
  }
  void erase(void* at) {
    std::lock_guard lock(mutex_);
    known_.erase(at);
  }
  void before_fork() override { mutex_.lock(); }
  void in_parent() override { mutex_.unlock(); }
  bool in_child() override {
    for (const auto& [at, length] : known_) blank(at, length);
    known_.clear();
    mutex_.unlock();
    return true;
  }

 private:
  std::mutex mutex_;  ///< no other lock is taken while this one is held, so a fork can wait for it
  std::map<void*, size_t> known_;
};

/// Never destroyed: fork() may run while static objects are being destroyed.
Mappings& g_mappings = *new Mappings;

}  // namespace

void blank_in_children(void* at, size_t length) { g_mappings.insert(at, length); }
void forget_mapping_for_children(void* at) { g_mappings.erase(at); }

}  // namespace nupa::progress
