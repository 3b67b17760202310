// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/device.h>

#include <deque>
#include <memory>
#include <vector>

#include "gateway/request_relay.h"

namespace nupa::gateway {

/// Carries the requests of one queue pair's peer to the peer of another one. The gateway's thread makes all calls.
class Direction {
 public:
  /// Requests that are posted at the other side.
  static constexpr uint32_t kDepth = 128;

  /// Allocates the rings for the device that posts. `on_work`: see RequestRelay. Returns the errors of alloc_mr().
  static Result<std::unique_ptr<Direction>> create(Device& device, ProtectionDomain& pd, uint64_t window,
                                                   std::function<void()> on_work);

  RequestRelay& relay() { return *relay_; }
  /// `from`: the queue pair that has the relay. `to`: the queue pair that posts.
  void join(QueuePair& from, QueuePair& to) {
    from_ = &from;
    to_ = &to;
  }
  /// Posts what has arrived, as much as fits.
  void post_parts();
  /// A request of post_parts() has ended. settle() reports it.
  void note_end(WcStatus status) { ended_.push_back(status); }
  /// Reports ended requests to the relay, and has the answers sent.
  void settle();
  /// Looks whether the other side waits for a receive, and reports a change.
  void look();
  bool is_idle() const { return posted_.empty(); }

 private:
  Direction() = default;
  void end_oldest(WcStatus status);

  std::unique_ptr<MemoryRegion> memory_;
  std::unique_ptr<RequestRelay> relay_;
  QueuePair* from_ = nullptr;
  QueuePair* to_ = nullptr;
  std::deque<RequestRelay::Part> posted_;
  std::vector<WcStatus> ended_;
};

}  // namespace nupa::gateway
