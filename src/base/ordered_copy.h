// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>

#include "base/block_copy.h"
#include "base/fence.h"
#include "base/racing_copy.h"

namespace nupa::base {

/// Stores the last 1 to 8 bytes of a message. An aligned 1, 2, 4 or 8 bytes are one store, so a reader that polls on
/// that word sees either the old or the new value.
inline void store_tail(std::byte* to, const std::byte* from, uint64_t length) {
  fault_before_atomic(to);  // they lie on one page
  const bool aligned = (reinterpret_cast<uintptr_t>(to) & (length - 1)) == 0;
  if (length == 8 && aligned) {
    uint64_t value;
    std::memcpy(&value, from, 8);
    __atomic_store_n(reinterpret_cast<uint64_t*>(to), value, __ATOMIC_RELEASE);
  } else if (length == 4 && aligned) {
    uint32_t value;
    std::memcpy(&value, from, 4);
    __atomic_store_n(reinterpret_cast<uint32_t*>(to), value, __ATOMIC_RELEASE);
  } else if (length == 2 && aligned) {
    uint16_t value;
    std::memcpy(&value, from, 2);
    __atomic_store_n(reinterpret_cast<uint16_t*>(to), value, __ATOMIC_RELEASE);
  } else {
    for (uint64_t i = 0; i < length; ++i)
      __atomic_store_n(reinterpret_cast<uint8_t*>(to) + i, static_cast<uint8_t>(from[i]), __ATOMIC_RELEASE);
  }
}

/// The length of the last word of `length` bytes at `to`, which a program may poll on: up to the end from the last
/// multiple of 8 before it.
inline uint64_t last_word_bytes(uint64_t to, uint64_t length) {
  const uint64_t end = to + length;
  const uint64_t tail = end - ((end - 1) & ~uint64_t{7});
  return tail < length ? tail : length;
}

/// memmove whose last word becomes visible after all bytes before it: programs poll on the last byte of an RDMA WRITE.
/// x86 keeps stores in order, but memmove alone would write the end of a short block first. Nothing becomes visible
/// before what this thread wrote earlier: store_tail() releases, and the fence before the body releases, too.
inline void copy_in_order(std::byte* to, const std::byte* from, uint64_t length) {
  // An aligned word is nothing but a tail: the usual flag or counter.
  if (length == 8 && (reinterpret_cast<uintptr_t>(to) & 7) == 0) return store_tail(to, from, 8);
  if (length == 0) return;
  const uint64_t tail = last_word_bytes(reinterpret_cast<uintptr_t>(to), length);
  const uint64_t body = length - tail;
  if (body > 0) {
    fence_before_writes();
    copy_block(to, from, body);
    std::atomic_thread_fence(std::memory_order_release);
  }
  store_tail(to + body, from + body, tail);
}

}  // namespace nupa::base
