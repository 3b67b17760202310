// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

#include "core/objects.h"
#include "core/side_slot.h"

namespace nupa::core {

/// The interface of a completion queue for the queue pairs and shared receive queues that complete there. Cq implements
/// it, and uses those classes in turn.
class CompletionSink : public CompletionQueue {
 public:
  /// Its number in the process's tables.
  uint32_t index() const { return index_; }
  /// Drops the entries of queue pair `qp_num`, which is reset or destroyed.
  virtual void purge(uint32_t qp_num) = 0;
  /// Called when queue pair `qp_num`, which completes here, has left the table and before it is destroyed.
  virtual void forget(uint32_t qp_num) = 0;
  /// True if the entry that a writer announced by `intent` was completed, or was taken since.
  virtual bool completed(uint64_t intent) = 0;

  /// Null: all completions go into the ring.
  SideSlot* side_slot() const { return side_slot_; }

  Users users;
  std::atomic<int> pending_qps{0};  ///< queue pairs with waiting requests that complete here

 protected:
  explicit CompletionSink(uint32_t index) : index_(index) {}
  const uint32_t index_;
  SideSlot* side_slot_ = nullptr;  ///< set by the constructor of the queue
};

}  // namespace nupa::core
