// SPDX-License-Identifier: Apache-2.0
#include "simulated_link.h"

#include <algorithm>
#include <utility>

namespace nupa::sim {

uint64_t SimulatedLink::queued(int64_t now) const {
  constexpr double kSecond = 1e9;
  if (options_.rate == 0 || wire_free_ <= now) return 0;
  return static_cast<uint64_t>(static_cast<double>(wire_free_ - now) * static_cast<double>(options_.rate) / kSecond);
}

void SimulatedLink::corrupt(std::vector<std::byte>& bytes) {
  if (bytes.empty()) return;
  const uint64_t bits = 1 + random_() % 4;
  for (uint64_t i = 0; i < bits; ++i) bytes[random_() % bytes.size()] ^= static_cast<std::byte>(1u << random_() % 8);
}

void SimulatedLink::schedule(int64_t when, uint32_t tag, bool marked, std::vector<std::byte> bytes) {
  under_way_.push({when, order_++, tag, marked, std::move(bytes)});
}

void SimulatedLink::send(int64_t now, std::vector<std::byte> bytes, uint32_t tag) {
  ++sent_;
  const uint64_t waiting = queued(now);
  const bool marked = options_.mark_bytes != 0 && waiting > options_.mark_bytes;
  if ((options_.queue_bytes != 0 && waiting > options_.queue_bytes) || chance(options_.faults.loss)) {
    ++lost_;
    return;
  }
  int64_t on_wire = 0;
  if (options_.rate != 0) {
    on_wire = static_cast<int64_t>(static_cast<double>(bytes.size() + options_.overhead) * 1e9 /
                                   static_cast<double>(options_.rate));
    wire_free_ = std::max(wire_free_, now) + on_wire;
  }
  int64_t when = (options_.rate != 0 ? wire_free_ : now) + options_.delay_ns;
  if (chance(options_.faults.spike))
    late_until_ = when + static_cast<int64_t>(uniform_(random_) * static_cast<double>(options_.faults.spike_ns));
  when = std::max(when, late_until_);
  if (chance(options_.faults.reordering)) {
    constexpr int64_t kShortest = 300;  // a packet's time where the rate has no limit
    when += static_cast<int64_t>(random_() % (options_.faults.reorder_packets + 1)) * std::max(on_wire, kShortest);
  }
  if (chance(options_.faults.duplication)) {
    const int64_t later = when + static_cast<int64_t>(random_() % 100'000);
    schedule(later, tag, marked, bytes);
  }
  if (chance(options_.faults.corruption)) corrupt(bytes);
  schedule(when, tag, marked, std::move(bytes));
}

SimulatedLink::Arrival SimulatedLink::take() {
  Arrival arrival = under_way_.top();
  under_way_.pop();
  return arrival;
}

}  // namespace nupa::sim
