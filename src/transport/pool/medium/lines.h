// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Reading and changing single lines, by the three kinds of layout.h. The functions hold for each policy.

#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>

#include "transport/pool/medium/cache_policy.h"

namespace nupa::pool {

/// Copies a line with a key. No value: its key is 0, or the line changes at present.
template <class T, CachePolicy Policy>
std::optional<T> copy_line(Policy& policy, const Line* line) {
  static_assert(sizeof(T) == kLineBytes);
  const uint64_t key = policy.poll(line);
  if (key == 0) return std::nullopt;
  const Line copy = policy.read(line);
  // The other words can be those of a later key, as far as they were stored before this read. Then the key is 0 or
  // another one by now.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (copy.words[0] != key || policy.poll(line) != key) return std::nullopt;
  return std::bit_cast<T>(copy);
}

/// Publishes a line with a key whose word 0 is 0.
template <class T, CachePolicy Policy>
void put_line(Policy& policy, Line* line, const T& content) {
  static_assert(sizeof(T) == kLineBytes);
  policy.publish(line, std::bit_cast<Line>(content));
}

/// Takes a line with a key back. It may be put again afterwards.
template <CachePolicy Policy>
void clear_line(Policy& policy, Line* line) {
  policy.clear(line);
  policy.full_fence();
}

/// Publishes a line of one word.
template <CachePolicy Policy>
void put_word(Policy& policy, Line* line, uint64_t word) {
  Line content;
  content.words[0] = word;
  policy.publish(line, content);
}

}  // namespace nupa::pool
