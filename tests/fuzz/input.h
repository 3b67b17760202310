// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A fuzzer's bytes, read as numbers from the front; zeros when they are used up.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace nupa::fuzz {

/// What may never happen. A fuzzer and a test both see a program that aborts.
inline void require(bool holds, const char* rule) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", rule);
  std::abort();
}

class Input {
 public:
  Input(const uint8_t* data, size_t length) : at_(data), left_(length) {}
  bool used_up() const { return left_ == 0; }
  size_t left() const { return left_; }
  template <class T>
  T number() {
    T value{};
    const size_t bytes = std::min(left_, sizeof value);
    if (bytes > 0) std::memcpy(&value, at_, bytes);
    at_ += bytes;
    left_ -= bytes;
    return value;
  }
  uint8_t u8() { return number<uint8_t>(); }
  uint16_t u16() { return number<uint16_t>(); }
  uint32_t u32() { return number<uint32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }
  /// Below `bound`, which is at most 256.
  uint32_t below(uint32_t bound) { return u8() % bound; }
  /// `count` bytes, zeros at the end if there are not so many. A block of its own, so that a read beyond is seen.
  std::vector<std::byte> bytes(size_t count) {
    std::vector<std::byte> out(count);
    const size_t here = std::min(left_, count);
    if (here > 0) std::memcpy(out.data(), at_, here);
    at_ += here;
    left_ -= here;
    return out;
  }

 private:
  const uint8_t* at_;
  size_t left_;
};

}  // namespace nupa::fuzz
