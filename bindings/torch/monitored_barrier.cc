// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/process_group.h"

namespace nupa::torch_backend {
namespace {

constexpr const char* kCall = "monitored_barrier";
/// The largest tag.
constexpr int kTag = INT32_MAX;

void fail(Group& group, const std::string& text) {
  group.abort();
  std::rethrow_exception(communication_error(std::string("nupa: ") + kCall + ": " + text));
}

void expect_well(const Operation& operation) {
  if (const std::exception_ptr error = operation.error()) std::rethrow_exception(error);
}

at::Tensor one_byte() { return at::zeros({1}, at::kByte); }

}  // namespace

void ProcessGroupNupa::monitoredBarrier(const c10d::BarrierOptions& options, bool all) {
  const std::shared_ptr<Group> on = group(kCall);
  // Like any barrier, it runs after the operations that were called before.
  on->queue().drain();
  if (getRank() == 0) return collect(on, options, all);
  Message::send(on, one_byte(), 0, kTag)->wait();
  const auto answer = Message::receive(on, one_byte(), 0, kTag);
  answer->wait();
  expect_well(*answer);
}

void ProcessGroupNupa::collect(const std::shared_ptr<Group>& on, const c10d::BarrierOptions& options, bool all) {
  const std::chrono::milliseconds limit = options.timeout == c10d::kUnsetTimeout ? timeout_ : options.timeout;
  const auto until = Queue::Clock::now() + limit;
  std::string missing;
  for (int rank = 1; rank < getSize() && (all || missing.empty()); ++rank) {
    const auto come = Message::receive(on, one_byte(), static_cast<uint32_t>(rank), kTag);
    if (!come->wait_until(until)) {
      come->hasten();
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    } else {
      expect_well(*come);
    }
  }
  if (!missing.empty())
    fail(*on, "not all ranks arrived within " + std::to_string(limit.count()) + " ms; missing: rank " + missing);
  for (int rank = 1; rank < getSize(); ++rank) {
    const auto answer = Message::send(on, one_byte(), static_cast<uint32_t>(rank), kTag);
    answer->wait();
    expect_well(*answer);
  }
}

}  // namespace nupa::torch_backend
