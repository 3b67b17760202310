// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Peer authentication: two nodes prove to each other that they have the network's key, without sending it. They use
/// HMAC-SHA256 (RFC 2104, FIPS 198-1) over random numbers that each side draws for the connection.
///
///     client -> server   nonce, mac("asks", nonce, message)
///     server -> client   nonce, mac("answers", both nonces, message)
///     afterwards         each message with its mac(sender, both nonces, message)
///
/// The server sends nothing before the client's first proof is valid. That proof may be a replay of another client's
/// message, but the next message cannot be one.
#include <nupa/result.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace nupa::netdev {

constexpr size_t kKeyBytes = 32;
constexpr size_t kNonceBytes = 16;
constexpr size_t kMacBytes = 32;
using Key = std::array<uint8_t, kKeyBytes>;
using Nonce = std::array<uint8_t, kNonceBytes>;
using Mac = std::array<uint8_t, kMacBytes>;

/// Returns the errors of getrandom(2).
Result<Key> new_key();
Result<Nonce> new_nonce();
/// Parses 64 hexadecimal digits, with or without white space around them. Returns EINVAL if the text is invalid.
Result<Key> key_from_text(std::string_view text);
std::string text_of(const Key& key);

/// The authentication of one connection.
class PeerAuthentication {
 public:
  /// `network` is the network's name, which both sides have.
  PeerAuthentication(const Key& key, std::string network) : key_(key), network_(std::move(network)) {}
  void set_asking(const Nonce& nonce) { asking_ = nonce; }
  void set_answering(const Nonce& nonce) { answering_ = nonce; }

  Mac asks(std::span<const std::byte> message) const { return mac("nupa net asks", message); }
  Mac answers(std::span<const std::byte> message) const { return mac("nupa net answers", message); }
  /// Returns the mac of a later message. `from_asking` selects the sending side, and `count` is the number of its
  /// earlier messages.
  Mac of_message(bool from_asking, uint32_t count, std::span<const std::byte> message) const;

 private:
  Mac mac(std::string_view purpose, std::span<const std::byte> message) const;

  Key key_;
  std::string network_;
  Nonce asking_{};
  Nonce answering_{};
};

/// Constant-time comparison.
bool are_equal(const Mac& one, const Mac& other);

}  // namespace nupa::netdev
