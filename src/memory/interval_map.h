// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "memory/piece.h"
#include "memory/region_file.h"
#include "memory/vma.h"

namespace nupa::memory {

/// The pages of this process that the region file backs, with the number of registrations of each. Bookkeeping only;
/// the caller locks. Pages without a user could not be made private yet.
class IntervalMap {
 public:
  bool empty() const { return intervals_.empty(); }
  /// Number of intervals, about the number of mappings of the process.
  size_t size() const { return intervals_.size(); }

  /// Adds pages that are not in the map yet, without a user.
  void insert(const Piece& piece);
  /// Removes [begin, end).
  void erase(uintptr_t begin, uintptr_t end);

  /// Adds a user to everything in [begin, end) and returns it. Pieces that adjoin both in memory and in the file are
  /// joined.
  std::vector<Piece> hold(uintptr_t begin, uintptr_t end);
  /// Removes a user from the pages of `piece` that are still in the map. Pages that were removed, or added again since,
  /// are left alone.
  void drop(const Piece& piece);

  /// Compares [begin, end) with the kernel's mappings there, which are in order. Removes and returns the pages where
  /// `file` is not mapped any more: the program has unmapped or replaced them.
  std::vector<Piece> forget_stale(uintptr_t begin, uintptr_t end, const std::vector<Vma>& vmas, const RegionFile& file);

  /// The intervals in [begin, end); with `unused_only` those without a user.
  std::vector<Piece> pieces(uintptr_t begin, uintptr_t end, bool unused_only = false) const;

 private:
  struct Interval {
    uintptr_t end;
    uint64_t file_offset;
    uint32_t users;
  };
  using Map = std::map<uintptr_t, Interval>;

  /// Splits the interval that contains `address` there.
  void split_at(uintptr_t address);
  /// The first interval that ends behind `address`.
  Map::const_iterator first_after(uintptr_t address) const;

  Map intervals_;
};

}  // namespace nupa::memory
