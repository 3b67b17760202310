#pragma once
#include <nupa/device.h>
#include <nupa/result.h>

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "ccl/channel/rdma_lane.h"

namespace nupa::ccl {

/// What comes by the wires of a communicator: one completion queue for all of them. Any thread.
class WirePort {
 public:
  /// Called by the thread that polls, with nothing locked, for each rank whose wire has broken.
  using OnBreak = std::function<void(uint32_t rank)>;

  /// `requests`: that the lanes of a queue pair may have under way, in each direction. Errors of the core.
  static Result<std::unique_ptr<WirePort>> open(Device& device, uint32_t requests, OnBreak on_break);

  /// The queue pair of a wire may have so many sends under way beside those of its lanes: probes of whether the other
  /// end lives.
  static constexpr uint32_t kProbes = 4;
  /// How many requests the queue pair of a wire may have under way.
  uint32_t sends() const { return requests_ + kProbes; }
  uint32_t receives() const { return requests_; }

  CompletionQueue& cq() { return *cq_; }
  /// There is room for the completions of one more queue pair.
  int grow();
  /// From now on its completions are for these lanes, by LaneKind. The queue pair takes receives.
  int add(QueuePair& qp, uint32_t rank, WireLane* const* lanes);
  /// From now on its completions are ignored. A rank calls this before it ends the queue pair itself, so that OnBreak
  /// does not name the other end.
  void drop(const QueuePair& qp);

  /// Takes what has come.
  void poll();
  /// Until something comes, `limit_ns` at most.
  void sleep(int64_t limit_ns);

 private:
  struct Wire {
    QueuePair* qp;
    uint32_t rank;
    WireLane* lanes[kLanes];
  };

  WirePort(std::unique_ptr<CompletionChannel> channel, std::unique_ptr<CompletionQueue> cq, uint32_t requests,
           OnBreak on_break)
      : channel_(std::move(channel)), cq_(std::move(cq)), requests_(requests), on_break_(std::move(on_break)) {}
  /// Returns whose wire has broken, or kNoRank.
  uint32_t take(const WorkCompletion& completion);

  const std::unique_ptr<CompletionChannel> channel_;
  const std::unique_ptr<CompletionQueue> cq_;
  const uint32_t requests_;  ///< of a queue pair's lanes, in each direction
  const OnBreak on_break_;
  uint32_t entries_ = 0;
  std::mutex mutex_;
  std::unordered_map<uint32_t, Wire> wires_;  ///< by queue pair number
};

}  // namespace nupa::ccl
