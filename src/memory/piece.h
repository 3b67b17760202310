// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::memory {

/// The unit in which memory moves, in bytes: x86-64's small page.
constexpr uint64_t kPageSize = 4096;

constexpr uintptr_t page_up(uintptr_t address) { return (address + kPageSize - 1) & ~(kPageSize - 1); }
constexpr uintptr_t page_down(uintptr_t address) { return address & ~(kPageSize - 1); }

/// Pages [begin, end) of this process that the region file backs from byte file_offset on.
struct Piece {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  uint64_t file_offset = 0;

  uint64_t length() const { return end - begin; }
  /// The byte of the file that backs `address`, which must be inside.
  uint64_t offset_of(uintptr_t address) const { return file_offset + (address - begin); }
};

}  // namespace nupa::memory
