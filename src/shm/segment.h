// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "shm/layout.h"
#include "shm/mapped_file.h"

namespace nupa::shm {

/// The tables of one segment, of this process or a peer, as plain pointers.
struct Tables {
  SegmentHeader* header = nullptr;
  QpShared* qp = nullptr;
  CqShared* cq = nullptr;
  SrqShared* srq = nullptr;
  MrShared* mr = nullptr;
  StatisticsShared* statistics = nullptr;
  ListenerShared* listeners = nullptr;
};

/// Maps the tables of the segment in `file` and checks magic and version. EPROTO: not a segment, or another version.
/// ENOMEM.
Result<Tables> map_tables(MappedFile& file);

/// This process's own segment: creates the memory file (sealed against shrinking) and allocates pages of its heap. Any
/// thread.
class Segment {
 public:
  /// EMFILE, ENFILE, ENOMEM; EFBIG: RLIMIT_FSIZE is too small.
  static Result<std::unique_ptr<Segment>> create();

  const Tables& tables() const { return tables_; }
  int fd() const { return file_->fd(); }
  MappedFile& file() { return *file_; }

  struct Block {
    uint64_t offset = 0;
    uint64_t size = 0;
    void* address = nullptr;
  };
  /// Allocates zeroed memory, rounded up to a power-of-two number of pages and naturally aligned. ENOMEM, EFBIG.
  Result<Block> allocate(uint64_t bytes);
  /// Frees a block. `reusable` false: a peer may still access it, so its memory is freed (hole) but its offset is never
  /// used again.
  void release(const Block& block, bool reusable);

 private:
  explicit Segment(std::unique_ptr<MappedFile> file, Tables tables);
  std::unique_ptr<MappedFile> file_;
  Tables tables_;
  std::mutex mutex_;
  uint64_t heap_end_ = kHeapOffset;
  uint64_t file_size_ = 0;
  std::array<std::vector<uint64_t>, 40> free_;  ///< free blocks by log2 of the size
};

}  // namespace nupa::shm
