#pragma once
/// Congestion control of one path: answers, losses and the time go in; a window and a rate come out. The protocol asks
/// it, and programs choose one by name. No clock or thread inside; under the queue pair's lock.
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace nupa::roce {

/// How much may be under way on one path, and how fast. One object a path of a queue pair; all times in nanoseconds of
/// one clock that the caller chooses, all sizes in bytes. Not thread safe: called under the queue pair's lock.
class Congestion {
 public:
  virtual ~Congestion() = default;
  virtual std::string_view name() const = 0;

  /// `bytes` arrived at the other end. `rtt_ns`: a round trip measured with them, 0: none. `marked`: how many of the
  /// packets since the last call met a congested queue (ECN CE). A round trip and marks come with 0 bytes, before the
  /// bytes that the same answer tells of.
  virtual void on_arrived(int64_t now, uint32_t bytes, int64_t rtt_ns, uint32_t marked) = 0;
  /// `packets` were found lost by others that overtook them.
  virtual void on_loss(int64_t now, uint32_t packets) = 0;
  /// What on_loss() tells from now on may turn out to have been late and not lost.
  virtual void remember() {}
  /// All that on_loss() has told since remember() had been late: what was done about it is undone, unless something
  /// else has told of congestion since.
  virtual void undo() {}
  /// One was lost, for which `packets` have to go again, since the other end keeps none of them.
  virtual void on_go_back(int64_t now, [[maybe_unused]] uint32_t packets) { on_loss(now, 1); }
  /// Nothing was heard for a whole retransmission timeout.
  virtual void on_timeout(int64_t now) = 0;
  /// A congestion notification packet came (annex A17.9).
  virtual void on_notification(int64_t now) = 0;

  /// Bytes that may be under way; at least one packet may always be.
  virtual uint64_t window() const = 0;
  /// Bytes a second at which to send from now on, 0: as fast as the window allows. Not const, for what a timer would
  /// have done since the last call is done here.
  virtual uint64_t rate(int64_t now) = 0;
};

/// What a window counts in packets goes no further: a selective acknowledgement tells of so many (docs/roce.md).
constexpr double kMostPackets = 1024;

/// Those of congestion_names(), of which the first is the best where nothing is known; null: no such name.
/// `packet_bytes`: of a full packet, as Path counts it.
std::unique_ptr<Congestion> make_congestion(std::string_view name, uint32_t packet_bytes);
std::vector<std::string_view> congestion_names();

}  // namespace nupa::roce
