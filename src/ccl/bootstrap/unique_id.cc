// SPDX-License-Identifier: Apache-2.0
#include "ccl/bootstrap/unique_id.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace nupa::ccl {
namespace {

constexpr char kMagic[8] = {'n', 'u', 'p', 'a', 'c', 'c', 'l', '1'};
constexpr size_t kSecretInIdAt = sizeof kMagic;
constexpr size_t kPortInIdAt = kSecretInIdAt + UniqueId::kSecretBytes;
constexpr size_t kCountAt = kPortInIdAt + 2;
constexpr size_t kAddressesAt = 32;
static_assert(kAddressesAt + UniqueId::kMaxAddresses * sizeof(Gid) == UniqueId::kBytes);

}  // namespace

std::array<std::byte, UniqueId::kBytes> UniqueId::encode() const {
  std::array<std::byte, kBytes> bytes{};
  std::memcpy(bytes.data(), kMagic, sizeof kMagic);
  std::memcpy(&bytes[kSecretInIdAt], secret.data(), secret.size());
  bytes[kPortInIdAt] = static_cast<std::byte>(port >> 8);
  bytes[kPortInIdAt + 1] = static_cast<std::byte>(port & 0xff);
  const size_t count = std::min(addresses.size(), kMaxAddresses);
  bytes[kCountAt] = static_cast<std::byte>(count);
  for (size_t i = 0; i < count; ++i)
    std::memcpy(&bytes[kAddressesAt + i * sizeof(Gid)], addresses[i].raw.data(), sizeof(Gid));
  return bytes;
}

Result<UniqueId> UniqueId::decode(const std::byte* bytes, size_t length) {
  if (length != kBytes || std::memcmp(bytes, kMagic, sizeof kMagic) != 0)
    return fail(EINVAL, "not a unique id of NUPA");
  UniqueId id;
  std::memcpy(id.secret.data(), bytes + kSecretInIdAt, id.secret.size());
  id.port = static_cast<uint16_t>(std::to_integer<uint16_t>(bytes[kPortInIdAt]) << 8 |
                                  std::to_integer<uint16_t>(bytes[kPortInIdAt + 1]));
  const auto count = std::to_integer<size_t>(bytes[kCountAt]);
  if (count == 0 || count > kMaxAddresses || id.port == 0) return fail(EINVAL, "the unique id has no address");
  id.addresses.resize(count);
  for (size_t i = 0; i < count; ++i)
    std::memcpy(id.addresses[i].raw.data(), bytes + kAddressesAt + i * sizeof(Gid), sizeof(Gid));
  return id;
}

std::string UniqueId::text() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : encode()) {
    text += kDigits[std::to_integer<size_t>(byte) >> 4];
    text += kDigits[std::to_integer<size_t>(byte) & 15];
  }
  return text;
}

Result<UniqueId> UniqueId::from_text(std::string_view text) {
  std::byte bytes[kBytes];
  if (text.size() != 2 * sizeof bytes) return fail(EINVAL, "not a unique id of NUPA");
  for (size_t i = 0; i < sizeof bytes; ++i) {
    const char* const digits = text.data() + 2 * i;
    uint8_t value = 0;
    if (std::from_chars(digits, digits + 2, value, 16).ptr != digits + 2)
      return fail(EINVAL, "not a unique id of NUPA");
    bytes[i] = std::byte{value};
  }
  return decode(bytes, sizeof bytes);
}

}  // namespace nupa::ccl
