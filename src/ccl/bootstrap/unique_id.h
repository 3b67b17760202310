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

/// Names a meeting of ranks: 128 bytes that anybody may carry to them. Whoever has it may take part.
struct UniqueId {
  static constexpr size_t kBytes = 128;
  static constexpr size_t kMaxAddresses = 6;
  static constexpr size_t kSecretBytes = 16;

  std::array<uint8_t, kSecretBytes> secret{};
  uint16_t port = 0;
  std::vector<Gid> addresses;  ///< of the host where the root is, to be tried in turn; kMaxAddresses at most

  /// As bytes: magic(8), secret(16), port(2), number of addresses(1), zeros(5), addresses(6 x 16); port in network
  /// order.
  std::array<std::byte, kBytes> encode() const;
  /// EINVAL: these are not the bytes of one.
  static Result<UniqueId> decode(const std::byte* bytes, size_t length);

  /// The same bytes in hexadecimal digits, for environments and files.
  std::string text() const;
  /// EINVAL: this is not the text of one.
  static Result<UniqueId> from_text(std::string_view text);
};

}  // namespace nupa::ccl
