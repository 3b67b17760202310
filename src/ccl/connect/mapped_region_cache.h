// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ccl/connect/links.h"
#include "ccl/channel/mapped_regions.h"
#include "ccl/connect/allocations.h"

namespace nupa::ccl {

/// The allocations of other ranks that a communicator has mapped. Not thread-safe.
class MappedRegionCache final : public MappedRegions {
 public:
  /// `ranks`: the ranks of the group that maps arenas, as they are numbered in the communicator.
  MappedRegionCache(const Allocations& allocations, Links& links, uint32_t rank, std::vector<uint32_t> ranks)
      : allocations_(allocations), links_(links), rank_(rank), ranks_(std::move(ranks)), mapped_(ranks_.size()) {}

  Place publish(const void* data, size_t bytes) override;
  std::byte* find(uint32_t rank, const Place& place) override;

 private:
  /// The mappings of one rank, by serial. Those of freed memory stay until there are kMostMapped of them.
  using Mapped = std::map<uint64_t, std::shared_ptr<std::byte>>;
  static constexpr size_t kMostMapped = 64;

  PublishedRegion* table_of(uint32_t rank) const;

  const Allocations& allocations_;
  Links& links_;
  const uint32_t rank_;
  const std::vector<uint32_t> ranks_;
  std::vector<Mapped> mapped_;
  std::map<uint64_t, uint32_t> published_;  ///< entries by serial
  uint32_t next_entry_ = 0;
};

}  // namespace nupa::ccl
