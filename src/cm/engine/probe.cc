// SPDX-License-Identifier: Apache-2.0
#include "cm/engine/probe.h"

namespace nupa::cm {
namespace {

constexpr uint64_t kMagic = 0x45564c4141505541;
constexpr std::byte kVendorClass{0x0a};
constexpr std::byte kBaseVersion{1};
constexpr std::byte kMethodSend{3};
constexpr size_t kAttribute = 17;
constexpr std::byte kAsk{1};
constexpr std::byte kEcho{2};

struct Body {
  uint64_t magic;
  uint32_t port;
  uint32_t reserved;
  uint64_t instance;
};
constexpr size_t kBody = 24;

}  // namespace

Mad write_probe(const Probe& probe) {
  Mad mad{};
  mad[0] = kBaseVersion;
  mad[1] = kVendorClass;
  mad[2] = std::byte{1};
  mad[3] = kMethodSend;
  mad[kAttribute] = probe.is_echo ? kEcho : kAsk;
  const Body body{__builtin_bswap64(kMagic), __builtin_bswap32(probe.port), 0, __builtin_bswap64(probe.instance)};
  std::memcpy(&mad[kBody], &body, sizeof body);
  return mad;
}

std::optional<Probe> read_probe(const Mad& mad) {
  Body body;
  std::memcpy(&body, &mad[kBody], sizeof body);
  if (mad[0] != kBaseVersion || mad[1] != kVendorClass || body.magic != __builtin_bswap64(kMagic)) return std::nullopt;
  if (mad[kAttribute] != kAsk && mad[kAttribute] != kEcho) return std::nullopt;
  return Probe{mad[kAttribute] == kEcho, __builtin_bswap32(body.port), __builtin_bswap64(body.instance)};
}

}  // namespace nupa::cm
