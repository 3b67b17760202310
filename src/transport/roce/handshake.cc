// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/handshake.h"

#include <endian.h>

#include <algorithm>
#include <cstring>

#include "core/seam/group_address.h"

namespace nupa::roce {
namespace {

constexpr uint8_t kKnowsYours = 1;
constexpr uint8_t kTakesUnchecked = 2;
constexpr uint32_t kHeaderBytes = 4;
constexpr uint32_t kRailBytes = 20;
constexpr int64_t kPauseNs = 10'000'000;
/// A peer that does not answer after this many tries has a version without rails.
constexpr uint32_t kTries = 10;

}  // namespace

Handshake::Handshake(std::vector<Rail> mine, bool takes_unchecked)
    : mine_(std::move(mine)), takes_unchecked_(takes_unchecked) {}

int64_t Handshake::deadline() const {
  if (asked_) return 0;
  // A side with one rail sends nothing unless the peer requests it.
  return started_ && !known_ && (mine_.size() > 1 || takes_unchecked_) && tries_ < kTries ? next_ns_ : INT64_MAX;
}

bool Handshake::receive(const Packet& packet) {
  if (packet.payload_length < kHeaderBytes) return false;
  const auto flags = std::to_integer<uint8_t>(packet.payload[0]);
  const auto count = std::to_integer<uint32_t>(packet.payload[1]);
  if (count == 0 || count > kMaxPaths || packet.payload_length != kHeaderBytes + count * kRailBytes) return false;
  std::vector<Rail> theirs;
  for (uint32_t i = 0; i < count; ++i) {
    const std::byte* from = packet.payload + kHeaderBytes + i * kRailBytes;
    Rail rail;
    uint16_t port;
    std::memcpy(rail.address.raw.data(), from, sizeof rail.address.raw);
    std::memcpy(&port, from + sizeof rail.address.raw, sizeof port);
    rail.port = be16toh(port);
    // All packets of one connection have one address family, and go to one host.
    if (base::is_ipv4(rail.address) != base::is_ipv4(mine_[0].address) || core::names_group(rail.address)) return false;
    theirs.push_back(rail);
  }
  theirs_ = std::move(theirs);
  known_ = (flags & kKnowsYours) != 0;
  they_take_unchecked_ = (flags & kTakesUnchecked) != 0;
  if (!known_) asked_ = true;
  const auto paths = static_cast<uint32_t>(std::max(mine_.size(), theirs_.size()));
  const bool more = paths > paths_;
  paths_ = std::max(paths, paths_);
  return more;
}

void Handshake::transmit(int64_t now, Packet packet, Output& output) {
  if (!has_output(now)) return;
  static_assert(sizeof bytes_ == kHeaderBytes + kMaxPaths * kRailBytes);
  bytes_[0] = static_cast<std::byte>((theirs_.empty() ? 0 : kKnowsYours) | (takes_unchecked_ ? kTakesUnchecked : 0));
  bytes_[1] = static_cast<std::byte>(mine_.size());
  for (size_t i = 0; i < mine_.size(); ++i) {
    std::byte* to = bytes_.data() + kHeaderBytes + i * kRailBytes;
    const uint16_t port = htobe16(mine_[i].port);
    std::memcpy(to, mine_[i].address.raw.data(), sizeof mine_[i].address.raw);
    std::memcpy(to + sizeof mine_[i].address.raw, &port, sizeof port);
  }
  packet.opcode = kHandshake;
  packet.payload_length = static_cast<uint32_t>(kHeaderBytes + mine_.size() * kRailBytes);
  const Fragment fragment{bytes_.data(), packet.payload_length};
  if (output.send(0, packet, &fragment, 1) != Sent::kYes) return;
  asked_ = false;
  next_ns_ = now + (kPauseNs << std::min(tries_++, 6u));
}

}  // namespace nupa::roce
