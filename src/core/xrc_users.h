// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <mutex>

namespace nupa::core {

/// The XRC domains that are open in this process, by identity (that of a file, or a private one), with the number of
/// their handles. Opening with O_EXCL asks it. Any thread.
class XrcUsers {
 public:
  void add(uint64_t identity) {
    std::lock_guard lock(mutex_);
    ++handles_[identity];
  }
  void drop(uint64_t identity) {
    std::lock_guard lock(mutex_);
    if (--handles_[identity] == 0) handles_.erase(identity);
  }
  bool is_open(uint64_t identity) {
    std::lock_guard lock(mutex_);
    return handles_.count(identity) != 0;
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, int> handles_;
};

}  // namespace nupa::core
