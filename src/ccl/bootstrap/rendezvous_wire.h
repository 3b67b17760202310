// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The messages between a rank and a rendezvous server, in little-endian numbers:
///
///   request   magic(4) version(2) limit(2) secret(16) rendezvous(8) rank(4) world(4) length(4) info(length)
///   answer    status(4) length(4); if status is 0: name(16) and for each rank length(4) info(length); otherwise: an
///             error text(length)
///
/// limit: for how many seconds the rank waits for others; 0: the server's limit counts. rendezvous: the number of the
/// rendezvous. info: the peer info of a rank.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace nupa::ccl {

constexpr uint32_t kRendezvousMagic = 0x4c434e55;  // "UNCL"
constexpr uint16_t kRendezvousVersion = 2;
constexpr size_t kMagicAt = 0;
constexpr size_t kVersionAt = 4;
constexpr size_t kLimitAt = 6;
constexpr size_t kSecretAt = 8;
constexpr size_t kRendezvousAt = 24;
constexpr size_t kRankAt = 32;
constexpr size_t kWorldAt = 36;
constexpr size_t kLengthAt = 40;
constexpr size_t kRequestBytes = 44;
constexpr size_t kAnswerBytes = 8;
constexpr size_t kNameBytes = 16;
static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie");

template <class T>
void write_at(std::vector<std::byte>* to, size_t at, const T& value) {
  std::memcpy(to->data() + at, &value, sizeof value);
}

template <class T>
T read_at(const std::vector<std::byte>& from, size_t at) {
  T value;
  std::memcpy(&value, from.data() + at, sizeof value);
  return value;
}

}  // namespace nupa::ccl
