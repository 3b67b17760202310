// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <vector>

#include "host/peer.h"

namespace nupa::host {

/// The eventfds of this process's completion channels, which peers ask for by index. Under the node's mutex.
class PublishedChannels {
 public:
  /// Returns the lowest free index. ENOSPC: all Peer::kMaxChannels are in use.
  Result<uint32_t> publish(int event_fd) {
    while (first_free_ < fds_.size() && fds_[first_free_] >= 0) ++first_free_;
    if (first_free_ == Peer::kMaxChannels) return fail(ENOSPC, "all completion channels of this process are in use");
    if (first_free_ == fds_.size()) fds_.push_back(-1);
    fds_[first_free_] = event_fd;
    return static_cast<uint32_t>(first_free_);
  }
  void withdraw(uint32_t index) {
    fds_[index] = -1;
    first_free_ = std::min<size_t>(first_free_, index);
  }
  /// -1: there is no such channel. `index` may come from another process.
  int at(uint32_t index) const { return index < fds_.size() ? fds_[index] : -1; }

 private:
  std::vector<int> fds_;   ///< by index, -1: free
  size_t first_free_ = 0;  ///< no index below it is free
};

}  // namespace nupa::host
