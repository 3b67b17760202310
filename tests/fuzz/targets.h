// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The fuzz targets. Each reads one input to its end and aborts where a rule is broken; docs/design/roce.md and
/// docs/design/pool.md have the rules.
#include <cstddef>
#include <cstdint>

namespace nupa::fuzz {

/// One packet: reading, writing, the invariant CRC.
void packet(const uint8_t* data, size_t length);
/// Two engines whose packets are lost, repeated, changed and forged between them.
void engine(const uint8_t* data, size_t length);
/// Packets at the endpoints' doors, of connected queue pairs and of datagrams.
void endpoint(const uint8_t* data, size_t length);
/// Three communication managers whose messages are lost, repeated, changed and forged between them.
void connection(const uint8_t* data, size_t length);
/// The contents of a pool of memory that another host writes.
void pool_content(const uint8_t* data, size_t length);
#ifdef NUPA_WITH_NETDEV
/// What comes from another node of a network of `nupa net`.
void frame(const uint8_t* data, size_t length);
#endif

struct Target {
  const char* name;  ///< also of its folder in corpus/
  void (*run)(const uint8_t* data, size_t length);
};
constexpr Target kTargets[] = {{"packet", packet},     {"engine", engine},
#ifdef NUPA_WITH_NETDEV
                               {"frame", frame},
#endif
                               {"endpoint", endpoint}, {"connection", connection}, {"pool_content", pool_content}};

}  // namespace nupa::fuzz
