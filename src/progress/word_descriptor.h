// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

#include "progress/thread.h"
#include "progress/wake_up.h"
#include <nupa/result.h>

namespace nupa::progress {

/// A descriptor that becomes readable when a word of shared memory is counted up by ring_word(), for threads that sleep
/// on descriptors. Its thread sleeps at the word, because no descriptor of the kernel stands for a word.
class WordDescriptor {
 public:
  WordDescriptor() = default;
  /// Only after stop(), or in a child of fork().
  ~WordDescriptor() { descriptor_.close(); }
  WordDescriptor(const WordDescriptor&) = delete;
  WordDescriptor& operator=(const WordDescriptor&) = delete;

  /// Rings of the word from now on make the descriptor readable. `word` is mapped until stop(). EMFILE, ENFILE, ENOMEM;
  /// EAGAIN: the thread cannot be started.
  Result<void> start(ThreadName name, std::atomic<uint32_t>& word);
  /// Stops the thread and waits for its end. Rings the word, so that others that sleep at it wake once.
  void stop();

  int fd() const { return descriptor_.fd(); }
  /// Takes the rings so far: the descriptor is not readable until the next one. Any thread.
  void take() { descriptor_.take(); }

 private:
  void serve(uint32_t seen);

  WakeUp descriptor_;
  std::atomic<uint32_t>* word_ = nullptr;
  std::atomic<bool> stop_{false};
  Thread thread_;
};

}  // namespace nupa::progress
