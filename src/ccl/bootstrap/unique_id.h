// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/types.h>
#include <nupa/result.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nupa::ccl {

/// The addresses and the secret of a rendezvous server: 128 bytes that a program may pass to its ranks by any means.
/// Each process that has the id can take part.
struct UniqueId {
  static constexpr size_t kBytes = 128;
  static constexpr size_t kMaxAddresses = 6;
  static constexpr size_t kSecretBytes = 16;

  std::array<uint8_t, kSecretBytes> secret{};
  uint16_t port = 0;
  std::vector<Gid> addresses;  ///< of the server's host, to be tried in order; kMaxAddresses at most

  /// Encodes the id as magic(8), secret(16), port(2), number of addresses(1), zeros(5), addresses(6 x 16); the port is
  /// in network byte order.
  std::array<std::byte, kBytes> encode() const;
  /// EINVAL: the bytes are not an encoded id.
  static Result<UniqueId> decode(const std::byte* bytes, size_t length);

  /// The encoded id in hexadecimal digits, for environment variables and files.
  std::string text() const;
  /// EINVAL: the text is not that of an id.
  static Result<UniqueId> from_text(std::string_view text);
};

}  // namespace nupa::ccl
