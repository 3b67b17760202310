// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>

#include "host/runtime_dir.h"

namespace nupa::core {

/// The XRC domains that are open in this process, with the number of their handles. Other processes see the domains of
/// files in the runtime directory. Any thread.
class XrcUsers {
 public:
  /// Set in the identity of a private domain, which no other process can open.
  static constexpr uint64_t kPrivate = uint64_t{1} << 63;

  /// Adds a handle on the domain. `exclusive`: fails with EEXIST if this process or another one has it open. Other
  /// errors are those of RuntimeDir::hold().
  Result<void> add(host::RuntimeDir& dir, uint64_t identity, bool exclusive) {
    std::lock_guard lock(mutex_);
    const auto found = handles_.find(identity);
    if (found != handles_.end()) {
      if (exclusive) return fail(EEXIST, kExists);
      ++found->second;
      return {};
    }
    if ((identity & kPrivate) == 0) {
      auto held = dir.hold(identity, exclusive);
      if (!held) return held.error().code() == EEXIST ? fail(EEXIST, kExists) : fail(held.error());
    }
    handles_.emplace(identity, 1);
    return {};
  }
  void drop(host::RuntimeDir& dir, uint64_t identity) {
    std::lock_guard lock(mutex_);
    if (--handles_[identity] != 0) return;
    handles_.erase(identity);
    if ((identity & kPrivate) == 0) dir.let_go(identity);
  }

 private:
  static constexpr const char* kExists = "the XRC domain exists already";

  std::mutex mutex_;
  std::map<uint64_t, int> handles_;
};

}  // namespace nupa::core
