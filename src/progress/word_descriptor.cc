// SPDX-License-Identifier: Apache-2.0
#include "progress/word_descriptor.h"

#include "progress/short_slices.h"
#include "progress/words.h"

namespace nupa::progress {

Result<void> WordDescriptor::start(ThreadName name, std::atomic<uint32_t>& word) {
  if (auto opened = descriptor_.open(); !opened) return opened;
  word_ = &word;
  // Read here, so that no ring after this call is missed.
  const uint32_t seen = word.load(std::memory_order_acquire);
  return thread_.start(name, [this, seen] { serve(seen); });
}

void WordDescriptor::stop() {
  if (!thread_.has_started()) return;
  stop_.store(true);
  ring_word(*word_);
  thread_.join();
}

void WordDescriptor::serve(uint32_t seen) {
  ask_for_short_slices();
  while (!stop_.load()) {
    sleep_while(*word_, seen);
    const uint32_t now = word_->load(std::memory_order_acquire);
    if (now == seen) continue;
    seen = now;
    descriptor_.signal();
  }
}

}  // namespace nupa::progress
