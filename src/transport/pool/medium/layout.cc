// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/layout.h"

#include <bit>
#include <cerrno>

#include "base/crc32.h"

namespace nupa::pool {
namespace {

bool is_power_between(uint64_t value, uint64_t least, uint64_t most) {
  return std::has_single_bit(value) && value >= least && value <= most;
}

}  // namespace

uint32_t checksum_of(const HeaderLine& header) {
  HeaderLine line = header;
  line.checksum = 0;
  return base::crc32(~uint32_t{0}, reinterpret_cast<const std::byte*>(&line), sizeof line);
}

Result<Geometry> check_header(const HeaderLine& header, uint64_t medium_bytes, const char* what) {
  if (header.magic != kMagic) return fail(EINVAL, what, ": holds no pool (nupa pool format makes one)");
  if (header.version != kLayoutVersion)
    return fail(EINVAL, what, ": the pool has layout version ", header.version, ", and this NUPA has version ",
                kLayoutVersion, " (nupa pool format makes a new one)");
  if (header.checksum != checksum_of(header))
    return fail(EINVAL, what, ": the header of the pool is damaged (nupa pool format makes a new one)");
  if (header.bytes > medium_bytes)
    return fail(EINVAL, what, ": the pool has ", header.bytes, " bytes, and the medium only ", medium_bytes);
  const bool fits = header.hosts >= 1 && header.hosts <= kMaxHosts && header.records >= 1 &&
                    header.records <= kMaxRecords && header.bytes > kTerritoriesOffset &&
                    header.bytes <= kMostPoolBytes &&
                    is_power_between(header.block_bytes, kLeastBlockBytes, kMostBlockBytes) &&
                    is_power_between(header.ring_lines, kLeastRingLines, kMostRingLines);
  if (!fits) return fail(EINVAL, what, ": the header of the pool has impossible sizes");
  const Geometry geometry(header);
  if (geometry.blocks() < geometry.blocks_for(inbox_bytes(header.ring_lines)))
    return fail(EINVAL, what, ": the pool is too small for one inbox of each host");
  return geometry;
}

}  // namespace nupa::pool
