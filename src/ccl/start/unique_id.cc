#include "ccl/start/unique_id.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nupa::ccl {
namespace {

constexpr char kMagic[8] = {'n', 'u', 'p', 'a', 'c', 'c', 'l', '1'};
constexpr size_t kSecretAt = sizeof kMagic;
constexpr size_t kPortAt = kSecretAt + UniqueId::kSecretBytes;
constexpr size_t kCountAt = kPortAt + 2;
constexpr size_t kAddressesAt = 32;
static_assert(kAddressesAt + UniqueId::kMaxAddresses * sizeof(Address) == UniqueId::kBytes);

}  // namespace

std::array<std::byte, UniqueId::kBytes> UniqueId::encode() const {
  std::array<std::byte, kBytes> bytes{};
  std::memcpy(bytes.data(), kMagic, sizeof kMagic);
  std::memcpy(&bytes[kSecretAt], secret.data(), secret.size());
  bytes[kPortAt] = static_cast<std::byte>(port >> 8);
  bytes[kPortAt + 1] = static_cast<std::byte>(port & 0xff);
  const size_t count = std::min(addresses.size(), kMaxAddresses);
  bytes[kCountAt] = static_cast<std::byte>(count);
  for (size_t i = 0; i < count; ++i)
    std::memcpy(&bytes[kAddressesAt + i * sizeof(Address)], addresses[i].data(), sizeof(Address));
  return bytes;
}

Outcome<UniqueId> UniqueId::decode(const std::byte* bytes, size_t length) {
  if (length != kBytes || std::memcmp(bytes, kMagic, sizeof kMagic) != 0)
    return fault(EINVAL, "this is not a unique id of the library");
  UniqueId id;
  std::memcpy(id.secret.data(), bytes + kSecretAt, id.secret.size());
  id.port = static_cast<uint16_t>(std::to_integer<uint16_t>(bytes[kPortAt]) << 8 |
                                  std::to_integer<uint16_t>(bytes[kPortAt + 1]));
  const auto count = std::to_integer<size_t>(bytes[kCountAt]);
  if (count == 0 || count > kMaxAddresses || id.port == 0) return fault(EINVAL, "the unique id names no address");
  id.addresses.resize(count);
  for (size_t i = 0; i < count; ++i)
    std::memcpy(id.addresses[i].data(), bytes + kAddressesAt + i * sizeof(Address), sizeof(Address));
  return id;
}

}  // namespace nupa::ccl
