// SPDX-License-Identifier: Apache-2.0
#include "ccl/connect/mapped_region_cache.h"

#include "ccl/channel/arena.h"

namespace nupa::ccl {

PublishedRegion* MappedRegionCache::table_of(uint32_t rank) const {
  return reinterpret_cast<ArenaHead*>(links_.arena_of(ranks_[rank]))->regions;
}

Place MappedRegionCache::publish(const void* data, size_t bytes) {
  // An operation publishes its arrays first, so that no mapping is in use here.
  for (Mapped& mapped : mapped_)
    if (mapped.size() >= kMostMapped) mapped.clear();
  const auto region = allocations_.find(data, bytes);
  if (!region) return {};
  const auto known = published_.find(region->serial);
  uint32_t entry = known == published_.end() ? next_entry_ : known->second;
  if (known == published_.end()) {
    PublishedRegion& place = table_of(rank_)[entry];
    published_.erase(place.serial);
    place = {region->serial, region->base, region->bytes, region->rkey, 0};
    published_[region->serial] = entry;
    next_entry_ = (next_entry_ + 1) % kPublishedRegions;
  }
  return {region->serial, reinterpret_cast<uint64_t>(data) - region->base, entry};
}

std::byte* MappedRegionCache::find(uint32_t rank, const Place& place) {
  Mapped& mapped = mapped_[rank];
  if (const auto found = mapped.find(place.serial); found != mapped.end()) return found->second.get() + place.offset;
  if (place.entry >= kPublishedRegions) return nullptr;
  const PublishedRegion region = table_of(rank)[place.entry];
  if (region.serial != place.serial || place.offset > region.bytes) return nullptr;
  auto window = links_.map(ranks_[rank], region.rkey, region.base, region.bytes);
  if (window == nullptr) return nullptr;
  std::byte* const base = window.get();
  mapped[place.serial] = std::move(window);
  return base + place.offset;
}

}  // namespace nupa::ccl
