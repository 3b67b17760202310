// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <cstddef>
#include <cstdint>

#include "base/unique_fd.h"
#include "memory/vma.h"

namespace nupa::memory {

/// The operations on the file's content. The object owns nothing and uses no heap, so it works while any memory of the
/// program is being moved. Any thread.
class FileHandle {
 public:
  explicit FileHandle(int fd) : fd_(fd) {}

  /// Copies the touched pages of [from, from+length) to `offset`; the others stay holes. If the kernel does not report
  /// which pages are touched (/proc/self/pagemap), it copies all with `may_touch` and fails without. The touch of an
  /// absent page in a closed range would wait for the caller itself. Returns 0, or EFBIG, ENOMEM, ENOSPC; EMFILE and
  /// other errors of open(). EFBIG also raises SIGXFSZ, so run it under a SignalHold.
  int write(uintptr_t from, uint64_t length, uint64_t offset, bool may_touch) const;
  /// Copies [offset, offset+length) to zeroed memory and skips holes. False: a read failed. Async-signal-safe.
  bool read(std::byte* to, uint64_t length, uint64_t offset) const;
  /// Finds the first run of data in [offset, end). False: there are only holes. Async-signal-safe.
  bool next_data(uint64_t offset, uint64_t end, uint64_t* data, uint64_t* data_end) const;
  /// Frees the memory of [offset, offset+length).
  void punch(uint64_t offset, uint64_t length) const;
  /// Maps [offset, offset+length) at an address that the kernel chooses. `sharing`: MAP_SHARED or MAP_PRIVATE. Returns
  /// MAP_FAILED on an error.
  void* map(uint64_t length, uint64_t offset, int protection, int sharing) const;

 private:
  int fd_;
};

/// The memory file of this process that peers map: sparse, growing, and sealed against shrinking, so that no peer gets
/// SIGBUS. An offset is allocated only once, so a late writer in another process never hits newer memory. reserve()
/// needs a lock of the caller; everything else may run in any thread.
class RegionFile {
 public:
  RegionFile() = default;
  /// EMFILE, ENFILE, ENOMEM.
  static Result<RegionFile> create();

  int fd() const { return file_.get(); }
  /// The length in bytes, mostly holes.
  uint64_t size() const { return size_; }

  /// True if `vma` maps this file shared and has byte `offset` at `address`.
  bool shows(const Vma& vma, uintptr_t address, uint64_t offset) const;

  /// Allocates `length` bytes of whole pages at an offset that was never used before. EFBIG: RLIMIT_FSIZE, or the file
  /// is full.
  Result<uint64_t> reserve(uint64_t length);

  FileHandle handle() const { return FileHandle(file_.get()); }
  /// Frees the memory of [offset, offset+length).
  void punch(uint64_t offset, uint64_t length) const { handle().punch(offset, length); }
  /// Closes the file. Async-signal-safe.
  void close() { file_.reset(); }

 private:
  base::UniqueFd file_;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  uint64_t size_ = 0;
  uint64_t next_offset_ = 0;
};

}  // namespace nupa::memory
