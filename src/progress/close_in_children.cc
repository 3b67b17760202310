// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <mutex>
#include <set>

#include "base/log.h"
#include "progress/lifecycle.h"

namespace nupa::progress {
namespace {

class Descriptors final : public ForkParticipant {
 public:
  static Descriptors& instance() {
    static auto* made = new Descriptors;
    return *made;
  }
  Descriptors() {
    if (join_forks(ForkStage::kDescriptors, this) != 0)
      NUPA_ERROR("no memory for fork handlers: forked children will keep descriptors of their parent");
  }
  void insert(int fd) {
    std::lock_guard lock(mutex_);
    open_.insert(fd);
  }
  int open(const std::function<int()>& make) {
    std::lock_guard lock(mutex_);
    const int fd = make();
    if (fd >= 0) open_.insert(fd);
    return fd;
  }
  void erase(int fd) {
    std::lock_guard lock(mutex_);
    open_.erase(fd);
  }
  void before_fork() override { mutex_.lock(); }
  void in_parent() override { mutex_.unlock(); }
  bool in_child() override {
    for (const int fd : open_) ::close(fd);
    open_.clear();
    mutex_.unlock();
    return true;
  }

 private:
  std::mutex mutex_;  ///< no other lock is taken while this one is held, so a fork can wait for it
  std::set<int> open_;
};

}  // namespace

void close_in_children(int fd) { Descriptors::instance().insert(fd); }
int open_for_parent(const std::function<int()>& make) { return Descriptors::instance().open(make); }
void forget_for_children(int fd) { Descriptors::instance().erase(fd); }

}  // namespace nupa::progress
