#pragma once
#include <nupa/device.h>

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "ccl/fault.h"
#include "ccl/lane/wire_lane.h"

namespace nupa::ccl {

/// What comes by the wires of a communicator: one completion queue for all of them. Any thread.
class WirePort {
 public:
  /// Called by whoever polls, with nothing locked: the wire to `rank` has broken.
  using OnBreak = std::function<void(uint32_t rank)>;

  /// `requests`: that a queue pair may have under way, in each direction. Errors of the core.
  static Outcome<std::unique_ptr<WirePort>> open(Device& device, uint32_t requests, OnBreak on_break);

  CompletionQueue& cq() { return *cq_; }
  /// There is room for the completions of one more queue pair.
  int grow();
  /// From now on its completions are for these lanes, by LaneKind. The queue pair takes receives.
  int add(QueuePair& qp, uint32_t rank, WireLane* const* lanes);

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
  const uint32_t requests_;  ///< of a queue pair, in each direction
  const OnBreak on_break_;
  uint32_t entries_ = 0;
  std::mutex mutex_;
  std::unordered_map<uint32_t, Wire> wires_;  ///< by queue pair number
};

}  // namespace nupa::ccl
