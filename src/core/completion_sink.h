// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

#include "core/objects.h"

namespace nupa::core {

/// A completion queue as queue pairs and shared receive queues see it, which complete there by its number. Cq is the
/// only one; it knows them, too.
class CompletionSink : public CompletionQueue {
 public:
  /// Its number in the process's tables.
  uint32_t index() const { return index_; }
  /// The queue pair of that number is reset or destroyed: throws its entries away.
  virtual void purge(uint32_t qp_num) = 0;
  /// The queue pair that completes here has left the table and is going to be destroyed.
  virtual void forget(uint32_t qp_num) = 0;
  /// True if the entry that a writer announced by `intent` was completed (or taken since).
  virtual bool completed(uint64_t intent) = 0;

  Users users;
  std::atomic<int> pending_qps{0};  ///< queue pairs with waiting requests that complete here

 protected:
  explicit CompletionSink(uint32_t index) : index_(index) {}
  const uint32_t index_;
};

}  // namespace nupa::core
