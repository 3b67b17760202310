// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/quiesce.h"

namespace nupa::core {

/// The part of a process's segment that its rings and long lists lie in, which peers map. A block is used again after
/// quiesce() only. Any thread; give_back() without a send lock.
class RingMemory {
 public:
  explicit RingMemory(cm::Node& node) : node_(node) {}

  /// ENOMEM, EFBIG: limits of the process.
  Result<segment::Segment::Block> allocate(uint64_t bytes) { return node_.segment().allocate(bytes); }
  void give_back(const segment::Segment::Block& block) { node_.segment().release(block, quiesce(node_)); }

 private:
  cm::Node& node_;
};

}  // namespace nupa::core
