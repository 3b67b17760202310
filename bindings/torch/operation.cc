// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/operation.h"

#include "progress/waiter.h"

namespace nupa::torch_backend {
namespace {

constexpr int64_t kLookAtMessageNs = 50'000;

}  // namespace

Operation::Operation(std::shared_ptr<Group> group, const char* call, Tensors results)
    : group_(std::move(group)), call_(call), results_(std::move(results)) {}

void Operation::complete(const Future& future, const Tensors& results, const std::exception_ptr& error) {
  if (error != nullptr)
    future->setError(error);
  else
    future->markCompleted(c10::IValue(results));
}

Operation::Future Operation::future() {
  Future made;
  {
    std::lock_guard lock(mutex_);
    if (future_ == nullptr)
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    else
      return future_;
    made = future_;
    if (!is_done()) return made;
  }
  complete(made, results_, error_);
  return made;
}

void Operation::finish(int result, const std::function<void()>& after) {
  if (result != 0) {
    error_ = communication_error(std::string("nupa: ") + call_ + ": " + nupa_ccl_error_text());
  } else {
    try {
      after();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  Future asked_for;
  {
    std::lock_guard lock(mutex_);
    done_.store(true, std::memory_order_release);
    asked_for = future_;
  }
  if (asked_for != nullptr) complete(asked_for, results_, error_);
}

Collective::Collective(std::shared_ptr<Group> group, const char* call, Tensors results, Body body)
    : Operation(std::move(group), call, std::move(results)), body_(std::move(body)) {}

void Collective::run() {
  int result = 0;
  std::exception_ptr thrown;
  try {
    result = body_(group().comm());
  } catch (...) {
    thrown = std::current_exception();
  }
  finish(result, [&thrown] {
    if (thrown != nullptr) std::rethrow_exception(thrown);
  });
  body_ = nullptr;
}

void Collective::wait() { group().queue().wait(*this); }

bool Collective::wait_until(Clock::time_point until) { return group().queue().wait_until(*this, until); }

void Collective::hasten() {
  if (!is_done()) group().queue().hasten();
}

Message::Message(std::shared_ptr<Group> group, const char* call, const at::Tensor& tensor, bool is_send)
    : Operation(std::move(group), call, {tensor}), flat_(tensor), is_send_(is_send) {}

std::shared_ptr<Message> Message::send(std::shared_ptr<Group> group, const at::Tensor& tensor, uint32_t rank, int tag) {
  auto message = std::make_shared<Message>(std::move(group), "send", tensor, true);
  message->flat_.load();
  const Flat& flat = message->flat_;
  message->begin(
      nupa_ccl_send(flat.data(), flat.bytes(), NUPA_CCL_UINT8, rank, tag, message->group().comm(), &message->request_));
  return message;
}

std::shared_ptr<Message> Message::receive(std::shared_ptr<Group> group, const at::Tensor& tensor, uint32_t rank,
                                          int tag) {
  auto message = std::make_shared<Message>(std::move(group), "recv", tensor, false);
  const Flat& flat = message->flat_;
  message->begin(nupa_ccl_recv(flat.data(), flat.bytes(), NUPA_CCL_UINT8, rank, tag, message->group().comm(),
                               &message->status_, &message->request_));
  return message;
}

void Message::begin(int result) {
  if (result != 0)
    finish(result, [] {});
  else
    group().message_begins();
}

void Message::end(nupa_ccl_request* request) {
  const int result = nupa_ccl_wait(request);
  finish(result, [this] {
    if (!is_send_) flat_.store();
  });
  group().message_ends();
  std::lock_guard lock(mutex_);
  ended_.notify_all();
}

void Message::wait() {
  std::unique_lock lock(mutex_);
  if (request_ == nullptr) return ended_.wait(lock, [this] { return is_done(); });
  nupa_ccl_request* const taken = std::exchange(request_, nullptr);
  lock.unlock();
  end(taken);
}

bool Message::look_now() {
  nupa_ccl_request* taken = nullptr;
  {
    std::lock_guard lock(mutex_);
    int done = 0;
    if (request_ == nullptr || nupa_ccl_test(request_, &done) != 0 || done == 0) return is_done();
    taken = std::exchange(request_, nullptr);
  }
  end(taken);
  return true;
}

bool Message::wait_until(Clock::time_point until) {
  while (!look_now()) {
    if (Clock::now() >= until) return false;
    progress::sleep_for(kLookAtMessageNs);
  }
  return true;
}

void Message::hasten() {
  if (is_done()) return;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(is_watched_, true)) return;
  }
  group().watcher().add(std::static_pointer_cast<Message>(shared_from_this()));
}

NupaWork::NupaWork(int rank, c10d::OpType type, std::shared_ptr<Operation> operation)
    : Work(rank, type), operation_(std::move(operation)) {}

NupaWork::~NupaWork() {
  try {
    operation_->hasten();
  } catch (const std::system_error&) {
    // No thread can be started. The operation completes when a thread waits for a later one.
  }
}

bool NupaWork::isCompleted() {
  if (operation_->look_now()) return true;
  operation_->hasten();
  return operation_->look_now();
}

bool NupaWork::wait(std::chrono::milliseconds timeout) {
  if (timeout <= kNoTimeout) {
    operation_->wait();
  } else if (!operation_->wait_until(Operation::Clock::now() + timeout)) {
    std::rethrow_exception(
        communication_error("nupa: the operation did not complete within " + std::to_string(timeout.count()) + " ms"));
  }
  if (const std::exception_ptr error = operation_->error()) std::rethrow_exception(error);
  return true;
}

void NupaWork::abort() {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "nupa: a single operation cannot be aborted, only its process group");
}

Operation::Future NupaWork::getFuture() {
  const Operation::Future future = operation_->future();
  operation_->hasten();
  return future;
}

}  // namespace nupa::torch_backend
