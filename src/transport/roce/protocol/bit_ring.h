// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>

#include "transport/roce/protocol/sequence.h"
#include "transport/roce/wire/wire.h"

namespace nupa::roce {

/// One bit for each of the kBitmapBits numbers of a sliding window. A number that leaves the window frees its bit for
/// the number that enters.
class BitRing {
 public:
  void set(Seq seq) { words_[place(seq)] |= bit(seq); }
  void clear(Seq seq) { words_[place(seq)] &= ~bit(seq); }
  bool has(Seq seq) const { return (words_[place(seq)] & bit(seq)) != 0; }
  /// Returns the bits of `from` to `from` + 31; the bit of `from` is the lowest.
  uint32_t word(Seq from) const {
    const auto shift = static_cast<uint32_t>(from % 32);
    const uint32_t low = words_[place(from)] >> shift;
    return shift == 0 ? low : low | words_[place(from + 32)] << (32 - shift);
  }
  /// Returns the first number from `from` on whose bit is set. One must be set.
  Seq first(Seq from) const {
    while (word(from) == 0) from += 32;
    return from + static_cast<uint32_t>(__builtin_ctz(word(from)));
  }

 private:
  static uint32_t place(Seq seq) { return static_cast<uint32_t>(seq / 32 % kBitmapWords); }
  static uint32_t bit(Seq seq) { return uint32_t{1} << (seq % 32); }
  std::array<uint32_t, kBitmapWords> words_{};
};

}  // namespace nupa::roce
