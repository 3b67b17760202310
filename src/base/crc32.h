// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/crc32_polynomial.h"

namespace nupa::base {

/// The CRC-32 of Ethernet and InfiniBand (polynomial 0x04c11db7, bits in wire order) without the inversions at start
/// and end: takes a state and returns the state after `length` bytes. Works on any processor. Where the processor
/// multiplies without carry, it folds 64 to 256 bytes a step (Gopal et al., "Fast CRC Computation Using PCLMULQDQ",
/// 2009); arm64 has an instruction for 8 bytes. `soon`: memory that is about to be written; `length` bytes there are
/// prefetched meanwhile. Any address is allowed.
uint32_t crc32(uint32_t state, const std::byte* data, size_t length, const std::byte* soon = nullptr);
/// Copies the bytes and returns the CRC state of the copy: a byte that changes meanwhile is the same in both. The
/// ranges must not overlap.
uint32_t crc32_copy(uint32_t state, std::byte* to, const std::byte* from, size_t length);

}  // namespace nupa::base
