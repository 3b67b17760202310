// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/device.h>
#include <nupa/result.h>

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "ccl/channel/rdma_channel.h"

namespace nupa::ccl {

/// The RDMA completions of a communicator: one completion queue for all of its queue pairs. Thread-safe.
class RdmaPort {
 public:
  /// Called for each rank whose connection has failed, by the thread that polls, without a lock.
  using OnBreak = std::function<void(uint32_t rank)>;

  /// `requests`: outstanding requests of the channels of one queue pair, in each direction. Returns errors of the core.
  static Result<std::unique_ptr<RdmaPort>> open(Device& device, uint32_t requests, OnBreak on_break);

  /// Sends that a queue pair may have outstanding in addition to those of its channels: probes that check whether the
  /// peer is alive.
  static constexpr uint32_t kProbes = 4;
  /// Outstanding requests of one queue pair.
  uint32_t sends() const { return requests_ + kProbes; }
  uint32_t receives() const { return requests_; }

  CompletionQueue& cq() { return *cq_; }
  /// Makes room for the completions of one more queue pair. Returns 0 or an errno value.
  int grow();
  /// From now on completions of `qp` go to these channels, which are indexed by ChannelKind. Posts receives, so the
  /// queue pair must accept them. Returns 0 or an errno value.
  int add(QueuePair& qp, uint32_t rank, RdmaChannel* const* channels);
  /// From now on completions of `qp` are ignored. A rank calls this before it destroys the queue pair itself, so that
  /// OnBreak does not name the peer.
  void drop(const QueuePair& qp);

  /// Handles the completions that are there.
  void poll();
  /// Sleeps until a completion arrives, at most `limit_ns`.
  void sleep(int64_t limit_ns);

 private:
  struct Connection {
    QueuePair* qp;
    uint32_t rank;
    RdmaChannel* channels[kChannelKinds];
  };

  RdmaPort(std::unique_ptr<CompletionChannel> channel, std::unique_ptr<CompletionQueue> cq, uint32_t requests,
           OnBreak on_break)
      : channel_(std::move(channel)), cq_(std::move(cq)), requests_(requests), on_break_(std::move(on_break)) {}
  /// Returns the rank whose connection has failed, or kNoRank.
  uint32_t take(const WorkCompletion& completion);

  const std::unique_ptr<CompletionChannel> channel_;
  const std::unique_ptr<CompletionQueue> cq_;
  const uint32_t requests_;  ///< of the channels of one queue pair, in each direction
  const OnBreak on_break_;
  uint32_t entries_ = 0;
  std::mutex mutex_;
  std::unordered_map<uint32_t, Connection> connections_;  ///< by queue pair number
};

}  // namespace nupa::ccl
