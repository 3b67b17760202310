// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace nupa::base {

/// A part of this process's memory. `data` null: a null region, which reads as zeros and discards what is written.
struct Piece {
  std::byte* data;
  uint64_t length;
};

}  // namespace nupa::base
