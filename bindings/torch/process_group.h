// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "bindings/torch/operation.h"

namespace nupa::torch_backend {

/// The backend "nupa" of torch.distributed: the collectives of one communicator. Each call checks its arguments, throws
/// if they are wrong, and returns at once; queue.h describes which thread then runs the operation.
class ProcessGroupNupa final : public Base {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using TensorLists = std::vector<Tensors>;
  using Splits = std::vector<int64_t>;

  /// All ranks call it with the same store. `timeout`: for ranks to come, and for each operation.
  ProcessGroupNupa(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout);
  ~ProcessGroupNupa() override;

  const std::string getBackendName() const override { return "nupa"; }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  Work allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Work gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  Work reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, Splits& output_splits, Splits& input_splits,
                     const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Work barrier(const c10d::BarrierOptions& options) override;

  Work send(Tensors& tensors, int rank, int tag) override;
  Work recv(Tensors& tensors, int rank, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;

  /// If ranks have not come within options.timeout, rank 0 throws an error that names the first one, or all of them if
  /// `all`. The other ranks throw too, and the group has ended.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all) override;

  /// The number of collectives that were called; the same on all ranks at the same place of the program.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(std::memory_order_relaxed); }

  // These are overrides in 2.x only.
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options);
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options);
  void setTimeout(std::chrono::milliseconds timeout);
  /// Ends the outstanding operations of all ranks.
  void abort();
  /// Leaves the group. No calls are allowed afterwards.
  void shutdown();

  /// Shuts down all process groups because the process ends.
  static void shut_all_down();

 private:
  class Plan;
  Work begin(Plan plan);
  std::shared_ptr<Group> group(const char* call) const;
  uint32_t root(const char* call, int64_t rank) const;
  void collect(const std::shared_ptr<Group>& group, const c10d::BarrierOptions& options, bool all);

  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::shared_ptr<Group> group_;  ///< null after shutdown
  std::atomic<uint64_t> sequence_{0};
};

}  // namespace nupa::torch_backend
