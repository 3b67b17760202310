// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Accesses to memory that the program may change meanwhile, as an adapter would read it. The race is intended, so with
/// ThreadSanitizer these are instructions that it does not see.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nupa::base {

inline void copy_racing(std::byte* to, const std::byte* from, size_t length) {
#if !defined(__SANITIZE_THREAD__)
  std::memcpy(to, from, length);
#elif defined(__x86_64__)
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(length)::"memory");
#else
  for (; length > 0; --length) {
    uint32_t byte;
    asm volatile("ldrb %w0, [%1], #1\n\tstrb %w0, [%2], #1" : "=&r"(byte), "+r"(from), "+r"(to)::"memory");
  }
#endif
}

/// Writes the word or the byte without a change.
inline void touch_for_write([[maybe_unused]] uint64_t* word) {
#if defined(__x86_64__)
  asm volatile("lock orq $0, %0" : "+m"(*word));
#else
  uint64_t value;
  uint32_t failed;
  asm volatile("1: ldxr %0, %2\n\tstxr %w1, %0, %2\n\tcbnz %w1, 1b" : "=&r"(value), "=&r"(failed), "+Q"(*word));
#endif
}

inline void touch_for_write([[maybe_unused]] std::byte* byte) {
#if defined(__x86_64__)
  asm volatile("lock orb $0, %0" : "+m"(*byte));
#else
  uint32_t value, failed;
  asm volatile("1: ldxrb %w0, %2\n\tstxrb %w1, %w0, %2\n\tcbnz %w1, 1b" : "=&r"(value), "=&r"(failed), "+Q"(*byte));
#endif
}

/// Call it before an atomic operation on memory of a program, which may be unmapped (memory_fault.h). ThreadSanitizer's
/// atomics hold an internal lock, which a fault must not leave locked, so the fault has to come first.
template <class Memory>
void fault_before_atomic([[maybe_unused]] Memory* memory) {
#if defined(__SANITIZE_THREAD__)
  touch_for_write(memory);
#endif
}

/// Reads a byte that another thread may be writing.
inline std::byte load_racing(const std::byte* from) {
  std::byte value;
  copy_racing(&value, from, 1);
  return value;
}

}  // namespace nupa::base
