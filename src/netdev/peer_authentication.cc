// SPDX-License-Identifier: Apache-2.0
#include "netdev/peer_authentication.h"

#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <sys/random.h>

#include <cctype>
#include <cerrno>

#include "base/system_error.h"

namespace nupa::netdev {
namespace {

template <size_t kSize>
Result<std::array<uint8_t, kSize>> random_bytes() {
  std::array<uint8_t, kSize> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return base::fail_call(errno, "cannot get random numbers from the kernel");
  return bytes;
}

int digit(char character) {
  if (character >= '0' && character <= '9') return character - '0';
  const char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

Result<Key> new_key() { return random_bytes<kKeyBytes>(); }
Result<Nonce> new_nonce() { return random_bytes<kNonceBytes>(); }

Result<Key> key_from_text(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  const size_t last = text.find_last_not_of(kSpace);
  constexpr const char* kWhat = "not a network key: it must be 64 hexadecimal digits";
  if (first == text.npos || last - first + 1 != 2 * kKeyBytes) return fail(EINVAL, kWhat);
  Key key;
  for (size_t i = 0; i < kKeyBytes; ++i) {
    const int high = digit(text[first + 2 * i]), low = digit(text[first + 2 * i + 1]);
    if (high < 0 || low < 0) return fail(EINVAL, kWhat);
    key[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return key;
}

std::string text_of(const Key& key) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : key) text += {kDigits[byte >> 4], kDigits[byte & 0xf]};
  return text;
}

Mac PeerAuthentication::mac(std::string_view purpose, std::span<const std::byte> message) const {
  hmac_sha256_ctx context;
  hmac_sha256_set_key(&context, key_.size(), key_.data());
  const auto add = [&](const void* data, size_t size) {
    // The lengths are included, so that different lists of parts never give the same bytes.
    const uint64_t length = size;
    hmac_sha256_update(&context, sizeof length, reinterpret_cast<const uint8_t*>(&length));
    hmac_sha256_update(&context, size, static_cast<const uint8_t*>(data));
  };
  add(purpose.data(), purpose.size());
  add(network_.data(), network_.size());
  add(asking_.data(), asking_.size());
  add(answering_.data(), answering_.size());
  add(message.data(), message.size());
  Mac made;
  hmac_sha256_digest(&context, made.size(), made.data());
  return made;
}

Mac PeerAuthentication::of_message(bool from_asking, uint32_t count, std::span<const std::byte> message) const {
  return mac((from_asking ? "nupa net from who asks " : "nupa net from who answers ") + std::to_string(count), message);
}

bool are_equal(const Mac& one, const Mac& other) { return memeql_sec(one.data(), other.data(), one.size()) != 0; }

}  // namespace nupa::netdev
