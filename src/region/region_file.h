#pragma once
#include <nupa/result.h>

#include <cstddef>
#include <cstdint>

#include "base/unique_fd.h"
#include "region/vma.h"

namespace nupa::region {

/// The one memory file of this process that peers map: sparse, growing, sealed against shrinking so
/// that no peer can meet SIGBUS. An offset is given out once: a late writer in another process
/// never hits newer memory. reserve() needs a lock of the caller's; everything else may run in any
/// thread.
class RegionFile {
 public:
  RegionFile() = default;
  /// EMFILE, ENFILE, ENOMEM.
  static Result<RegionFile> create();

  int fd() const { return file_.get(); }
  /// Bytes, mostly of holes.
  uint64_t size() const { return size_; }

  /// True if `vma` maps this file shared and shows byte `offset` at `address`.
  bool shows(const Vma& vma, uintptr_t address, uint64_t offset) const;

  /// Room for `length` bytes of whole pages, never given out before. EFBIG: RLIMIT_FSIZE, or the
  /// file is full.
  Result<uint64_t> reserve(uint64_t length);

  /// Copies the touched pages of [from, from+length) to `offset`; others stay holes. 0, or EFBIG,
  /// ENOMEM, ENOSPC. Raises SIGXFSZ at EFBIG: run it under a SignalHold.
  int write(uintptr_t from, uint64_t length, uint64_t offset) const;
  /// Copies [offset, offset+length) to zeroed memory; holes are skipped. False: a read failed.
  /// Async-signal-safe.
  bool read(std::byte* to, uint64_t length, uint64_t offset) const;
  /// A run in [offset, end) before which there are only holes; false if nothing else is left.
  /// Async-signal-safe.
  bool next_data(uint64_t offset, uint64_t end, uint64_t* data, uint64_t* data_end) const;

  /// Frees the memory behind [offset, offset+length).
  void punch(uint64_t offset, uint64_t length) const;
  /// Forgets the file. Async-signal-safe.
  void close() { file_.reset(); }

 private:
  base::UniqueFd file_;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  uint64_t size_ = 0;
  uint64_t next_offset_ = 0;
};

}  // namespace nupa::region
