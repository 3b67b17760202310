// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/demultiplexer.h"

namespace nupa::roce {

bool Demultiplexer::make_place(uint32_t number) {
  const bool is_first = banks_.of(number) == nullptr;
  banks_.make(number);
  return is_first;
}

size_t Demultiplexer::places() const {
  size_t queue_pairs = 0;
  banks_.each([&queue_pairs](const Bank&) { queue_pairs += shm::kSlotQp; });
  return queue_pairs;
}

void Demultiplexer::add(QpReceiver& queue_pair) {
  Bank& bank = banks_.make(queue_pair.number());
  const uint32_t index = shm::index_of(queue_pair.number());
  queue_pair.timers_ = &bank.timers[index / kGroup];
  uint32_t seen = bank.high_water.load();
  while (seen <= index && !bank.high_water.compare_exchange_weak(seen, index + 1)) {
  }
  bank.queue_pairs[index].store(&queue_pair, std::memory_order_release);
}

void Demultiplexer::remove(const QpReceiver& queue_pair) {
  banks_.of(queue_pair.number())->queue_pairs[shm::index_of(queue_pair.number())].store(nullptr);
}

}  // namespace nupa::roce
