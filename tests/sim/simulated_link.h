// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <queue>
#include <random>
#include <vector>

namespace nupa::sim {

/// What a simulated link does to packets. Chances are per packet, from 0 to 1; times in nanoseconds.
struct LinkFaults {
  double loss = 0;
  double duplication = 0;
  double corruption = 0;  ///< one to four bits of the packet are turned
  double reordering = 0;  ///< a packet is held back by up to `reorder_packets` times its own time on the wire
  uint32_t reorder_packets = 64;
  double spike = 0;  ///< a packet, and with it all behind it, is late by up to `spike_ns`
  int64_t spike_ns = 0;
};

struct LinkOptions {
  int64_t delay_ns = 10'000;
  uint64_t rate = 0;         ///< bytes a second; 0: no limit
  uint64_t queue_bytes = 0;  ///< a packet that finds more waiting is lost; 0: no limit
  uint64_t mark_bytes = 0;   ///< a packet that finds more waiting is marked (ECN CE); 0: never
  uint32_t overhead = 0;     ///< bytes of lower headers of each packet, for the rate
  LinkFaults faults;
};

/// One direction of a link, in simulated time: the same seed and the same calls give the same packets at the same
/// times. No clock, no thread.
class SimulatedLink {
 public:
  struct Arrival {
    int64_t when;
    uint64_t order;  ///< of arrivals at the same time
    uint32_t tag;    ///< as given to send()
    bool marked;
    std::vector<std::byte> bytes;
  };

  SimulatedLink(const LinkOptions& options, uint64_t seed) : options_(options), random_(seed) {}

  void send(int64_t now, std::vector<std::byte> bytes, uint32_t tag = 0);
  /// When the next packet arrives; INT64_MAX: none is under way.
  int64_t next_arrival() const { return under_way_.empty() ? INT64_MAX : under_way_.top().when; }
  Arrival take();
  void set_options(const LinkOptions& options) { options_ = options; }
  /// Bytes that wait for the wire at `now`.
  uint64_t queued(int64_t now) const;
  uint64_t sent() const { return sent_; }
  uint64_t lost() const { return lost_; }

 private:
  struct Later {
    bool operator()(const Arrival& a, const Arrival& b) const {
      return a.when != b.when ? a.when > b.when : a.order > b.order;
    }
  };
  bool chance(double probability) { return probability > 0 && uniform_(random_) < probability; }
  void corrupt(std::vector<std::byte>& bytes);
  void schedule(int64_t when, uint32_t tag, bool marked, std::vector<std::byte> bytes);

  LinkOptions options_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> uniform_{0, 1};
  std::priority_queue<Arrival, std::vector<Arrival>, Later> under_way_;
  int64_t wire_free_ = 0;  ///< when what was sent so far has left
  int64_t late_until_ = 0;
  uint64_t order_ = 0;
  uint64_t sent_ = 0;
  uint64_t lost_ = 0;
};

}  // namespace nupa::sim
