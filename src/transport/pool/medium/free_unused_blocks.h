// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <utility>
#include <vector>

#include "transport/pool/medium/block_table.h"
#include "transport/pool/medium/directory.h"

namespace nupa::pool {

/// True if the owner of an extent of the directory's host has ended.
template <CachePolicy Policy>
bool is_left_behind(Directory<Policy>& directory, const BlockLine& line) {
  const uint16_t owner = block_owner(line.word);
  return owner >= directory.geometry().records() ||
         directory.instance_of(directory.host(), owner) != line.owner_instance;
}

/// True if the extent of the directory's host that begins with block `at` can be given away: its owner is dead or does
/// not offer it any more, and its writers cannot write to it.
template <CachePolicy Policy>
bool is_unused(Directory<Policy>& directory, uint32_t at, const BlockLine& line) {
  const Geometry& geometry = directory.geometry();
  const uint16_t host = directory.host();
  const uint64_t offset = geometry.block(host, at);
  switch (block_kind(line.word)) {
    case BlockKind::kFree:
      return false;
    case BlockKind::kProgram:
      return is_left_behind(directory, line) && !directory.is_reached(line.owner_instance);
    case BlockKind::kInbox:
      return !directory.is_offered(line, offset) && !directory.is_written(line, offset);
  }
  return false;
}

/// Frees those extents that no process of the host borrows. Under the host's lock, and after end_process() for the
/// processes that are dead.
template <CachePolicy Policy, class Lock>
void free_unused_blocks(Directory<Policy>& directory, BlockTable<Policy>& table, Lock& lock) {
  std::vector<std::pair<uint32_t, uint32_t>> unused;
  table.each([&](uint32_t at, uint32_t count, const BlockLine& line) {
    if (is_unused(directory, at, line) && !lock.is_borrowed(at)) unused.emplace_back(at, count);
    return true;
  });
  for (const auto& [at, count] : unused) table.free(at, count);
}

}  // namespace nupa::pool
