// SPDX-License-Identifier: Apache-2.0
#include "ccl/planner/link_speed.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {
namespace {

/// The best of these tries is the speed of the link while no rank is kept from running.
constexpr int kTries = 3;
constexpr int kInTurn = 4;
/// Messages that are outstanding at the same time; fewer than a channel's fragments.
constexpr int kAtOnce = 8;
constexpr size_t kBytes = 256 << 10;
/// Groups up to this size have channels between all ranks anyway.
constexpr uint32_t kFewRanks = 16;
constexpr int64_t kPsPerNs = 1000;

/// Each rank sends messages to the next rank and receives as many from the previous one.
CollectiveTask pass_on(ChannelGroup& group, int messages) {
  const uint32_t next = (group.rank() + 1) % group.ranks();
  const uint32_t before = (group.rank() + group.ranks() - 1) % group.ranks();
  for (int i = 0; i < messages; ++i)
    if (const int error = co_await send_array(group, next, nullptr, 0); error != 0) co_return error;
  for (int i = 0; i < messages; ++i)
    if (const int error = co_await receive_array(group, before, nullptr, 0); error != 0) co_return error;
  co_return 0;
}

/// A barrier. In a small group each rank waits for every other one, so that all of them name a rank that never comes.
CollectiveTask all_come(ChannelGroup& group) {
  if (group.ranks() > kFewRanks) co_return co_await barrier(group);
  const std::byte own{};
  std::byte all[kFewRanks];
  Call call;
  call.operation = Operation::kAllGather;
  call.in = &own;
  call.out = all;
  call.elements = sizeof own;
  co_return co_await all_gather_direct(group, call);
}

}  // namespace

/// Measures the parameters of LogGP: Alexandrov, Ionescu, Schauser and Scheiman, "LogGP: incorporating long messages
/// into the LogP model".
CollectiveTask measure(ChannelGroup& group, LinkSpeed* speed) {
  if (group.ranks() == 1) co_return 0;
  if (const int error = co_await all_come(group); error != 0) co_return error;
  if (const int error = co_await pass_on(group, 1); error != 0) co_return error;
  std::vector<std::byte> out(kBytes);
  std::vector<std::byte> in(kBytes);
  Flow stream{(group.rank() + 1) % group.ranks(),
              out.data(),
              kBytes,
              (group.rank() + group.ranks() - 1) % group.ranks(),
              in.data(),
              kBytes};
  int64_t message = INT64_MAX;
  int64_t burst = INT64_MAX;
  int64_t whole = INT64_MAX;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    int64_t began = base::now_ns();
    for (int i = 0; i < kInTurn; ++i)
      if (const int error = co_await pass_on(group, 1); error != 0) co_return error;
    message = std::min(message, (base::now_ns() - began) / kInTurn);
    began = base::now_ns();
    if (const int error = co_await pass_on(group, kAtOnce); error != 0) co_return error;
    burst = std::min(burst, base::now_ns() - began);
    began = base::now_ns();
    if (const int error = co_await flow(group, stream); error != 0) co_return error;
    whole = std::min(whole, base::now_ns() - began);
  }
  // Whole ns for each byte would be too coarse.
  int64_t slowest[] = {message, std::max<int64_t>(burst - message, 0) / (kAtOnce - 1),
                       std::max<int64_t>(whole - message, 0) * kPsPerNs / static_cast<int64_t>(kBytes)};
  Call call;
  call.operation = Operation::kAllReduce;
  call.reducer.reduction = {Type::kInt64, Operator::kMax};
  call.in = slowest;
  call.out = slowest;
  call.elements = std::size(slowest);
  if (const int error = co_await all_reduce_doubling(group, call); error != 0) co_return error;
  speed->message_ns = static_cast<double>(std::max<int64_t>(slowest[0], 1));
  speed->more_ns = static_cast<double>(slowest[1]);
  speed->byte_ns = static_cast<double>(slowest[2]) / static_cast<double>(kPsPerNs);
  co_return 0;
}

}  // namespace nupa::ccl::messages
