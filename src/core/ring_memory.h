// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <mutex>
#include <vector>

#include "core/qp_table.h"
#include "core/quiesce.h"

namespace nupa::core {

/// The memory in a process's segment for its rings and long lists, which peers map. A block may be used again only
/// after quiesce(), which checks all queue pairs. If there are many, blocks that are given back wait and share one
/// quiesce(). Any thread; give_back() is called without a send lock.
class RingMemory {
 public:
  RingMemory(host::Node& node, const QpTable& qps) : node_(node), qps_(qps) {}

  /// ENOMEM, EFBIG: limits of the process.
  Result<shm::Segment::Block> allocate(uint64_t bytes);
  void give_back(const shm::Segment::Block& block);

 private:
  void free_waiting();

  host::Node& node_;
  const QpTable& qps_;
  std::mutex mutex_;
  std::vector<shm::Segment::Block> waiting_;
  uint64_t waiting_bytes_ = 0;
};

}  // namespace nupa::core
