#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "memory/piece.h"
#include "memory/region_file.h"
#include "memory/vma.h"

namespace nupa::memory {

/// Which pages of this process the region file backs, and for how many registrations. Pure
/// bookkeeping; the caller locks. Pages with no user are those that could not be made private yet.
class IntervalMap {
 public:
  bool empty() const { return intervals_.empty(); }
  /// Intervals, about as many as mappings of the process.
  size_t size() const { return intervals_.size(); }

  /// Enters pages that were not in here, with no user.
  void insert(const Piece& piece);
  /// Forgets [begin, end).
  void erase(uintptr_t begin, uintptr_t end);

  /// Adds a user to everything in [begin, end) and returns it, neighbours in memory and file
  /// joined.
  std::vector<Piece> hold(uintptr_t begin, uintptr_t end);
  /// Takes a user from what is left of `piece`: pages that were forgotten, or entered anew since,
  /// have nothing to do with it.
  void drop(const Piece& piece);

  /// Compares [begin, end) with the mappings that the kernel has there, in order; forgets pages
  /// where `file` is not shown any more, and returns them: the program has unmapped or replaced
  /// them.
  std::vector<Piece> forget_stale(uintptr_t begin, uintptr_t end, const std::vector<Vma>& vmas, const RegionFile& file);

  /// Intervals in [begin, end), or those of them that nobody uses.
  std::vector<Piece> pieces(uintptr_t begin, uintptr_t end, bool unused_only = false) const;

 private:
  struct Interval {
    uintptr_t end;
    uint64_t file_offset;
    uint32_t users;
  };
  using Map = std::map<uintptr_t, Interval>;

  /// Makes `address` the border of two intervals if it lies inside one.
  void split_at(uintptr_t address);
  /// The first interval that reaches beyond `address`.
  Map::const_iterator first_after(uintptr_t address) const;

  Map intervals_;
};

}  // namespace nupa::memory
