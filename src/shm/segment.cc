// SPDX-License-Identifier: Apache-2.0
#include "shm/segment.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "base/shared_file.h"

namespace nupa::shm {

namespace {

/// Maps the fixed tables in one mapping, because the data path looks them up by index.
Result<Tables> place_tables(MappedFile& file) {
  auto base = file.at(0, kHeapOffset);
  if (!base) return tl::unexpected(base.error());
  auto* bytes = static_cast<std::byte*>(*base);
  return Tables{reinterpret_cast<SegmentHeader*>(bytes),
                reinterpret_cast<QpShared*>(bytes + kQpOffset),
                reinterpret_cast<CqShared*>(bytes + kCqOffset),
                reinterpret_cast<SrqShared*>(bytes + kSrqOffset),
                reinterpret_cast<MrShared*>(bytes + kMrOffset),
                reinterpret_cast<StatisticsShared*>(bytes + kStatisticsOffset),
                reinterpret_cast<ListenerShared*>(bytes + kListenerOffset)};
}

}  // namespace

Result<Tables> map_tables(MappedFile& file) {
  auto tables = place_tables(file);
  if (!tables) return tables;
  if (tables->header->magic != kMagic || tables->header->version != kLayoutVersion)
    return fail(EPROTO, "the segment is not of this version of NUPA");
  return tables;
}

Result<std::unique_ptr<Segment>> Segment::create() {
  auto fd = base::make_shared_file("nupa-segment");
  if (!fd) return tl::unexpected(fd.error());
  if (auto grown = base::grow_shared_file(fd->get(), kHeapOffset); !grown) return tl::unexpected(grown.error());
  auto file = std::make_unique<MappedFile>(std::move(*fd));
  auto tables = place_tables(*file);
  if (!tables) return tl::unexpected(tables.error());
  tables->header->magic = kMagic;
  tables->header->version = kLayoutVersion;
  return std::unique_ptr<Segment>(new Segment(std::move(file), *tables));
}

Segment::Segment(std::unique_ptr<MappedFile> file, Tables tables)
    : file_(std::move(file)), tables_(tables), file_size_(kHeapOffset) {}

Result<Segment::Block> Segment::allocate(uint64_t bytes) {
  const uint64_t size = std::max(std::bit_ceil(bytes), kPage);
  const auto size_class = static_cast<size_t>(std::countr_zero(size));
  if (size_class >= free_.size()) return fail(ENOMEM, "the object is too large for the segment");
  Block block{0, size, nullptr};
  {
    std::lock_guard lock(mutex_);
    if (!free_[size_class].empty()) {
      block.offset = free_[size_class].back();
      free_[size_class].pop_back();
    } else {
      // Aligns naturally. The skipped part goes to the free lists of smaller sizes.
      uint64_t offset = (heap_end_ + size - 1) & ~(size - 1);
      while (heap_end_ < offset) {
        const uint64_t step = uint64_t{1} << std::countr_zero(heap_end_);
        free_[static_cast<size_t>(std::countr_zero(heap_end_))].push_back(heap_end_);
        heap_end_ += step;
      }
      const uint64_t wanted = (offset + size + MappedFile::kWindow - 1) & ~(MappedFile::kWindow - 1);
      if (wanted > file_size_) {
        if (auto grown = base::grow_shared_file(file_->fd(), wanted); !grown) return tl::unexpected(grown.error());
        file_size_ = wanted;
      }
      block.offset = offset;
      heap_end_ = offset + size;
    }
  }
  auto address = file_->at(block.offset, block.size);
  if (!address) {
    release(block, true);
    return tl::unexpected(address.error());
  }
  block.address = *address;
  return block;
}

void Segment::release(const Block& block, bool reusable) {
  if (block.size == 0) return;
  base::punch_shared_file(file_->fd(), block.offset, block.size);
  if (!reusable) return;
  std::lock_guard lock(mutex_);
  free_[static_cast<size_t>(std::countr_zero(block.size))].push_back(block.offset);
}

}  // namespace nupa::shm
