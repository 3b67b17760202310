// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Helpers that copy arrays and divide them among ranks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nupa::ccl {

constexpr size_t kCacheLine = 64;

/// memcpy() that accepts null arrays of length 0.
inline void copy_array(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
/// The same, but copies nothing if the array already is its part of the result.
inline void copy_unless_same(void* to, const void* from, size_t bytes) {
  if (to != from) copy_array(to, from, bytes);
}

inline const std::byte* bytes_at(const void* data, size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
inline std::byte* bytes_at(void* data, size_t offset) { return static_cast<std::byte*>(data) + offset; }

/// The elements [begin, end) of an array.
struct Slice {
  size_t begin;
  size_t end;
  size_t length() const { return end - begin; }
};

/// The slice of `rank` when `elements` are divided among all ranks, as equally as whole cache lines allow.
inline Slice slice_of(uint32_t rank, uint32_t ranks, size_t elements, size_t element_bytes) {
  const size_t in_line = std::max<size_t>(kCacheLine / element_bytes, 1);
  const size_t lines = (elements + in_line - 1) / in_line;
  const auto at = [&](uint32_t part) { return std::min(lines * part / ranks * in_line, elements); };
  return {at(rank), at(rank + 1)};
}

/// Length of the part of a block that begins at `begin`: `at_once` at most, 0 behind the end of the block.
inline size_t part_length(size_t length, size_t begin, size_t at_once) {
  return begin < length ? std::min(at_once, length - begin) : 0;
}

}  // namespace nupa::ccl
