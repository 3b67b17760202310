// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/demultiplexer.h"

namespace nupa::roce {

bool Demultiplexer::make_place(uint32_t number) {
  const bool is_first = banks_.of(number) == nullptr;
  banks_.make(number);
  return is_first;
}

size_t Demultiplexer::places() const {
  size_t channels = 0;
  banks_.each([&channels](const Bank&) { channels += shm::kSlotQp; });
  return channels;
}

void Demultiplexer::add(Channel& channel) {
  Bank& bank = banks_.make(channel.number());
  const uint32_t index = shm::index_of(channel.number());
  channel.timers_ = &bank.timers[index / kGroup];
  uint32_t seen = bank.high_water.load();
  while (seen <= index && !bank.high_water.compare_exchange_weak(seen, index + 1)) {
  }
  bank.channels[index].store(&channel, std::memory_order_release);
}

void Demultiplexer::remove(const Channel& channel) {
  banks_.of(channel.number())->channels[shm::index_of(channel.number())].store(nullptr);
}

}  // namespace nupa::roce
