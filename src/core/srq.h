// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>

#include "core/completion_sink.h"
#include "core/receive_queue.h"

namespace nupa::core {

class Srq final : public SharedReceiveQueue {
 public:
  Srq(DeviceImpl& device, Pd& pd, uint32_t index, const SrqOptions& options);
  /// Second part of the construction: creates the ring. ENOMEM, EFBIG.
  int open();
  ~Srq() override;

  int post_recv(const RecvWr& wr) override;
  int modify(uint32_t mask, uint32_t max_wr, uint32_t limit) override;
  int query(uint32_t* max_wr, uint32_t* max_sge, uint32_t* limit) const override;
  uint32_t number() const override;
  uint32_t handle() const override { return index_; }
  void* user_context() const override { return options_.user_context; }
  int close() override;

  uint32_t index() const { return index_; }
  Pd& pd() { return pd_; }
  CompletionSink* cq() { return cq_; }
  ReceiveQueue& queue() { return *queue_; }
  Users users;

  /// Called when a completion of one of its receives was polled from any completion queue.
  void retire_receive() { queue_->retire(false); }
  void on_limit();
  /// Returns whether the queue pair of this index has the completion that was announced by `intent`; false if there is
  /// no such queue pair.
  using Completed = std::function<bool(uint32_t qp_index, uint64_t intent)>;
  /// Recovers from the death of process `dead_tag`: takes back the receives that it had claimed and not completed.
  void recover(uint32_t dead_tag, const Completed& completed);

 private:
  DeviceImpl& device_;
  Pd& pd_;
  uint32_t index_;
  SrqOptions options_;
  CompletionSink* cq_ = nullptr;
  Xrcd* xrcd_ = nullptr;
  shm::SrqShared* shared_;
  std::unique_ptr<ReceiveQueue> queue_;
  bool open_ = false;
};

}  // namespace nupa::core
