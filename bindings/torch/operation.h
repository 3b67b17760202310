// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>

#include "bindings/torch/group.h"
#include "bindings/torch/tensors.h"

namespace nupa::torch_backend {

/// An operation of a process group, which lives until it is done and no one refers to its result.
class Operation : public Job, public std::enable_shared_from_this<Operation> {
 public:
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;
  using Clock = Queue::Clock;

  Operation(std::shared_ptr<Group> group, const char* call, Tensors results);

  /// Waits until it is done.
  virtual void wait() = 0;
  virtual bool wait_until(Clock::time_point until) = 0;
  /// Returns whether it is done, without waiting.
  virtual bool look_now() = 0;
  /// Makes another thread complete the operation although none waits for it.
  virtual void hasten() = 0;
  /// Returns the sender if this is a receive, otherwise -1.
  virtual int source() const { return -1; }

  /// Returns a future, which the thread that ends the operation completes.
  Future future();
  /// Null: the operation succeeded or is not done.
  std::exception_ptr error() const { return is_done() ? error_ : nullptr; }
  const Tensors& results() const { return results_; }

 protected:
  /// Called once. `result`: the errno value of this thread's last call of the C API. If it is 0, calls `after`, which
  /// may throw.
  void finish(int result, const std::function<void()>& after);
  Group& group() const { return *group_; }

 private:
  static void complete(const Future& future, const Tensors& results, const std::exception_ptr& error);

  const std::shared_ptr<Group> group_;
  const char* const call_;
  const Tensors results_;
  std::exception_ptr error_;
  std::mutex mutex_;
  Future future_;
};

/// A collective. It runs in the order of the group's collectives.
class Collective final : public Operation {
 public:
  /// Returns an errno value of the C API; throws the exceptions of torch.
  using Body = std::function<int(nupa_ccl_comm*)>;
  Collective(std::shared_ptr<Group> group, const char* call, Tensors results, Body body);

  void run() override;
  void wait() override;
  bool wait_until(Clock::time_point until) override;
  bool look_now() override { return is_done(); }
  void hasten() override;

 private:
  Body body_;
};

/// A send or a receive, independent of the collectives.
class Message final : public Operation, public Watched {
 public:
  /// Begin a message. `rank`: the peer, or NUPA_CCL_ANY_RANK for a receive from any rank.
  static std::shared_ptr<Message> send(std::shared_ptr<Group> group, const at::Tensor& tensor, uint32_t rank, int tag);
  static std::shared_ptr<Message> receive(std::shared_ptr<Group> group, const at::Tensor& tensor, uint32_t rank,
                                          int tag);
  Message(std::shared_ptr<Group> group, const char* call, const at::Tensor& tensor, bool is_send);

  void run() override {}
  void wait() override;
  bool wait_until(Clock::time_point until) override;
  bool look_now() override;
  void hasten() override;
  bool look() override { return look_now(); }
  int source() const override { return is_done() && !is_send_ ? static_cast<int>(status_.rank) : -1; }

 private:
  void begin(int result);
  /// Waits until it is done. Called by the thread that has taken the request.
  void end(nupa_ccl_request* request);

  Flat flat_;
  const bool is_send_;
  nupa_ccl_status status_{};
  std::mutex mutex_;
  progress::Condition ended_;
  nupa_ccl_request* request_ = nullptr;  ///< null: a thread waits for it, or it is done
  bool is_watched_ = false;
};

/// The program's handle of an operation.
class NupaWork final : public c10d::Work {
 public:
  NupaWork(int rank, c10d::OpType type, std::shared_ptr<Operation> operation);
  /// The operation continues without the handle.
  ~NupaWork() override;

  bool isCompleted() override;
  bool isSuccess() const override { return operation_->is_done() && operation_->error() == nullptr; }
  std::exception_ptr exception() const override { return operation_->error(); }
  int sourceRank() const override { return operation_->source(); }
  Tensors result() override { return operation_->results(); }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  Operation::Future getFuture() override;

 private:
  const std::shared_ptr<Operation> operation_;
};

}  // namespace nupa::torch_backend
