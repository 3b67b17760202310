#pragma once
/// How two nodes show each other that they have the network's key, without saying it: HMAC-SHA256 (RFC 2104, FIPS
/// 198-1) over numbers that each end has drawn for this connection.
///
///   asks    -> answers   nonce, mac("asks", nonce, what it says)
///   answers -> asks      nonce, mac("answers", both nonces, what it says)
///   from then on         each message with its mac(who says it, both nonces, the message)
///
/// Who answers says nothing before the first proof holds. That one may be a repetition of somebody else's; the next
/// message's cannot.
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

/// Errors: those of getrandom(2).
Result<Key> new_key();
Result<Nonce> new_nonce();
/// 64 hexadecimal digits, with white space around them or not. EINVAL.
Result<Key> key_from_text(std::string_view text);
std::string text_of(const Key& key);

/// One connection's proofs.
class Proof {
 public:
  /// `network`: its name, which both ends know.
  Proof(const Key& key, std::string network) : key_(key), network_(std::move(network)) {}
  void set_asking(const Nonce& nonce) { asking_ = nonce; }
  void set_answering(const Nonce& nonce) { answering_ = nonce; }

  Mac asks(std::span<const std::byte> message) const { return mac("nupa net asks", message); }
  Mac answers(std::span<const std::byte> message) const { return mac("nupa net answers", message); }
  /// Of what an end says after that. `from_asking`: which end; `count`: of its messages before.
  Mac of_message(bool from_asking, uint32_t count, std::span<const std::byte> message) const;

 private:
  Mac mac(std::string_view purpose, std::span<const std::byte> message) const;

  Key key_;
  std::string network_;
  Nonce asking_{};
  Nonce answering_{};
};

/// In a time that does not tell where they differ.
bool are_equal(const Mac& one, const Mac& other);

}  // namespace nupa::netdev
