// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Congestion control of one path. Its input is arrivals, losses and the time; its output is a window and a rate. The
/// requester calls it, and programs choose an algorithm by name. It has no clock and no thread; it is called under the
/// queue pair's lock.
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace nupa::roce {

/// Limits the bytes in flight on one path, and their rate. Each path of a queue pair has one object. Times are in
/// nanoseconds of one clock that the caller chooses, sizes in bytes. Not thread safe: called under the queue pair's
/// lock.
class Congestion {
 public:
  virtual ~Congestion() = default;
  virtual std::string_view name() const = 0;

  /// `bytes` arrived at the peer. `rtt_ns`: a round trip measured with them; 0 if there is none. `marked`: packets
  /// since the last call that met a congested queue (ECN CE). A round trip and marks are passed with 0 bytes, before
  /// the bytes of the same acknowledgement.
  virtual void on_arrived(int64_t now, uint32_t bytes, int64_t rtt_ns, uint32_t marked) = 0;
  /// `packets` count as lost because later packets arrived before them.
  virtual void on_loss(int64_t now, uint32_t packets) = 0;
  /// Saves the state: losses from now on may turn out to be late packets.
  virtual void remember() {}
  /// All losses since remember() were late packets. Takes the reaction to them back, unless another signal has shown
  /// congestion since.
  virtual void undo() {}
  /// One packet was lost. `packets` have to be sent again, since the peer keeps none that came after it.
  virtual void on_go_back(int64_t now, [[maybe_unused]] uint32_t packets) { on_loss(now, 1); }
  /// Nothing arrived for a whole retransmission timeout.
  virtual void on_timeout(int64_t now) = 0;
  /// A congestion notification packet arrived (annex A17.9).
  virtual void on_notification(int64_t now) = 0;

  /// Bytes that may be in flight. One packet may always be in flight.
  virtual uint64_t window() const = 0;
  /// Bytes a second at which to send from now on; 0: as fast as the window allows. Not const: it does the work of the
  /// timers that would have expired since the last call.
  virtual uint64_t rate(int64_t now) = 0;
};

/// The largest window of the algorithms that count packets: the bitmap of a selective acknowledgement covers as many
/// packets (docs/reference/roce-extensions.md).
constexpr double kMostPackets = 1024;

/// Creates one of congestion_names(); the first of them is the best if nothing is known about the network. Returns null
/// if there is no such name. `packet_bytes`: size of a full packet, as Path counts it.
std::unique_ptr<Congestion> make_congestion(std::string_view name, uint32_t packet_bytes);
std::vector<std::string_view> congestion_names();

}  // namespace nupa::roce
