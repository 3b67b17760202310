#pragma once
#include "bindings/torch/operation.h"

namespace nupa::torch_backend {

/// torch.distributed's backend "nupa": collectives of one communicator. Each call returns at once; how operations are
/// done then: queue.h. Arguments are checked by the call itself, which throws.
class ProcessGroupNupa final : public Base {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using TensorLists = std::vector<Tensors>;
  using Splits = std::vector<int64_t>;

  /// By all ranks, with the same store. `timeout`: for ranks to come, and for each operation.
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

  /// Rank 0 throws who has not come within options.timeout, all of them if `all`, and so do the others. The group has
  /// ended then.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all) override;

  /// Of collectives that were called; the same on all ranks at the same place of the program.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(std::memory_order_relaxed); }

  // These override in 2.x only.
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options);
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options);
  void setTimeout(std::chrono::milliseconds timeout);
  /// Ends what all ranks have under way.
  void abort();
  /// The group is left; no calls afterwards.
  void shutdown();

  /// Of all that there are: the process ends.
  static void shut_all_down();

 private:
  class Plan;
  Work begin(Plan plan);
  std::shared_ptr<Group> group(const char* call) const;
  uint32_t root(const char* call, int64_t rank) const;
  void collect(const std::shared_ptr<Group>& group, const c10d::BarrierOptions& options, bool all);

  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::shared_ptr<Group> group_;  ///< null: shut down
  std::atomic<uint64_t> sequence_{0};
};

}  // namespace nupa::torch_backend
