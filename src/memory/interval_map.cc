// SPDX-License-Identifier: Apache-2.0
#include "memory/interval_map.h"

#include <algorithm>
#include <iterator>

namespace nupa::memory {

void IntervalMap::insert(const Piece& piece) {
  if (piece.begin < piece.end) intervals_.emplace(piece.begin, Interval{piece.end, piece.file_offset, 0});
}

void IntervalMap::erase(uintptr_t begin, uintptr_t end) {
  split_at(begin);
  split_at(end);
  intervals_.erase(intervals_.lower_bound(begin), intervals_.lower_bound(end));
}

void IntervalMap::split_at(uintptr_t address) {
  auto found = intervals_.upper_bound(address);
  if (found == intervals_.begin()) return;
  --found;
  Interval& head = found->second;
  if (found->first == address || head.end <= address) return;
  const Interval tail{head.end, head.file_offset + (address - found->first), head.users};
  head.end = address;
  intervals_.emplace_hint(std::next(found), address, tail);
}

IntervalMap::Map::const_iterator IntervalMap::first_after(uintptr_t address) const {
  auto found = intervals_.upper_bound(address);
  if (found != intervals_.begin() && std::prev(found)->second.end > address) --found;
  return found;
}

std::vector<Piece> IntervalMap::hold(uintptr_t begin, uintptr_t end) {
  split_at(begin);
  split_at(end);
  std::vector<Piece> held;
  for (auto it = intervals_.lower_bound(begin); it != intervals_.end() && it->first < end; ++it) {
    ++it->second.users;
    if (!held.empty() && held.back().end == it->first && held.back().offset_of(it->first) == it->second.file_offset)
      held.back().end = it->second.end;
    else
      held.push_back({it->first, it->second.end, it->second.file_offset});
  }
  return held;
}

void IntervalMap::drop(const Piece& piece) {
  split_at(piece.begin);
  split_at(piece.end);
  for (auto it = intervals_.lower_bound(piece.begin); it != intervals_.end() && it->first < piece.end; ++it)
    if (it->second.file_offset == piece.offset_of(it->first) && it->second.users > 0) --it->second.users;
}

std::vector<Piece> IntervalMap::forget_stale(uintptr_t begin, uintptr_t end, const std::vector<Vma>& vmas,
                                             const RegionFile& file) {
  std::vector<Piece> stale;
  auto vma = vmas.begin();
  for (const Piece& piece : pieces(begin, end)) {
    for (uintptr_t at = piece.begin; at < piece.end;) {
      while (vma != vmas.end() && vma->end <= at) ++vma;
      uintptr_t next = piece.end;
      bool shown = false;
      if (vma != vmas.end()) {
        shown = file.shows(*vma, at, piece.offset_of(at));
        next = std::min(next, at < vma->begin ? vma->begin : vma->end);
      }
      if (!shown) stale.push_back({at, next, piece.offset_of(at)});
      at = next;
    }
  }
  for (const Piece& piece : stale) erase(piece.begin, piece.end);
  return stale;
}

std::vector<Piece> IntervalMap::pieces(uintptr_t begin, uintptr_t end, bool unused_only) const {
  std::vector<Piece> found;
  for (auto it = first_after(begin); it != intervals_.end() && it->first < end; ++it) {
    if (unused_only && it->second.users != 0) continue;
    const uintptr_t from = std::max(begin, it->first);
    found.push_back({from, std::min(end, it->second.end), it->second.file_offset + (from - it->first)});
  }
  return found;
}

}  // namespace nupa::memory
