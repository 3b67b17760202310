// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The blocks of one territory, as extents in a table of lines. Only processes of the territory's host use it, and one
/// at a time: under the host's lock. A process can be killed at any instruction of it; each change is one word.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>

#include "transport/pool/medium/layout.h"
#include "transport/pool/medium/lines.h"

namespace nupa::pool {

template <CachePolicy Policy>
class BlockTable {
 public:
  /// `lines`: the table, one line for each block.
  BlockTable(Policy policy, Line* lines, uint32_t blocks) : policy_(policy), lines_(lines), blocks_(blocks) {}

  /// Calls `use(first block, count, line)` for each extent, until it returns false. Returns false if the table holds
  /// what no process of this host writes; the rest of the territory is then not used.
  template <class Use>
  bool each(Use&& use) {
    for (uint32_t at = 0; at < blocks_;) {
      BlockLine line;
      line.word = policy_.poll(lines_ + at);
      const bool is_fresh = line.word == 0;
      const uint32_t count = is_fresh ? blocks_ - at : block_count(line.word);
      if (count == 0 || count > blocks_ - at || block_kind(line.word) > BlockKind::kInbox) return false;
      if (block_kind(line.word) != BlockKind::kFree) line = std::bit_cast<BlockLine>(policy_.read(lines_ + at));
      if (!use(at, count, line)) return true;
      at += count;
    }
    return true;
  }

  /// Takes `count` blocks. `wanted`: kind, owner and writer; its count is set here. No value: no extent is large
  /// enough.
  std::optional<uint32_t> take(uint32_t count, const BlockLine& wanted) {
    join_free();
    std::optional<uint32_t> found;
    uint32_t found_count = 0;
    each([&](uint32_t at, uint32_t extent, const BlockLine& line) {
      if (block_kind(line.word) != BlockKind::kFree || extent < count) return true;
      found = at;
      found_count = extent;
      return false;
    });
    if (!found || count == 0) return std::nullopt;
    // The rest first: nobody walks to its line before the extent has become shorter.
    if (found_count > count) put_free(*found + count, found_count - count);
    BlockLine line = wanted;
    line.word = block_word(block_kind(wanted.word), count, block_owner(wanted.word));
    policy_.publish(lines_ + *found, std::bit_cast<Line>(line));
    return found;
  }

  struct Room {
    uint32_t longest = 0;   ///< blocks of the longest extent that is free
    uint32_t programs = 0;  ///< blocks that memory of programs has
  };
  Room room() {
    Room room;
    uint32_t run = 0;
    each([&](uint32_t, uint32_t count, const BlockLine& line) {
      const BlockKind kind = block_kind(line.word);
      if (kind == BlockKind::kProgram) room.programs += count;
      run = kind == BlockKind::kFree ? run + count : 0;
      room.longest = std::max(room.longest, run);
      return true;
    });
    return room;
  }

  /// The extent that begins with this block; no value: none begins there.
  std::optional<BlockLine> find(uint32_t block) {
    std::optional<BlockLine> found;
    each([&](uint32_t at, uint32_t, const BlockLine& line) {
      if (at == block && block_kind(line.word) != BlockKind::kFree) found = line;
      return at < block;
    });
    return found;
  }

  /// Frees the extent that begins with this block.
  void free(uint32_t block, uint32_t count) { put_free(block, count); }

 private:
  /// Changes word 0 alone: a process that is killed here leaves the extent as it was, or free.
  void put_free(uint32_t at, uint32_t count) {
    policy_.poll(lines_ + at);
    Line line = policy_.read(lines_ + at);
    line.words[0] = block_word(BlockKind::kFree, count, 0);
    policy_.publish(lines_ + at, line);
  }

  /// Makes one extent of neighbours that are free.
  void join_free() {
    uint32_t begin = 0, joined = 0, parts = 0;
    const auto finish = [&] {
      if (parts > 1) put_free(begin, joined);
      joined = parts = 0;
    };
    each([&](uint32_t at, uint32_t count, const BlockLine& line) {
      if (block_kind(line.word) != BlockKind::kFree) {
        finish();
        return true;
      }
      if (parts == 0) begin = at;
      joined += count;
      ++parts;
      return true;
    });
    finish();
  }

  [[no_unique_address]] Policy policy_;
  Line* const lines_;
  const uint32_t blocks_;
};

}  // namespace nupa::pool
