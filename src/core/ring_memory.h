// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <mutex>
#include <vector>

#include "core/qp_table.h"
#include "core/quiesce.h"

namespace nupa::core {

/// The part of a process's segment that its rings and long lists lie in, which peers map. A block is used again after
/// quiesce() only, which looks at all queue pairs: with many of them, blocks that are given back wait for others and
/// for one quiesce() together. Any thread; give_back() without a send lock.
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
