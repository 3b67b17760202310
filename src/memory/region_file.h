#pragma once
#include <nupa/result.h>

#include <cstddef>
#include <cstdint>

#include "base/unique_fd.h"
#include "memory/vma.h"

namespace nupa::memory {

/// The operations on the file's content. A value that owns nothing and uses no heap: it works while any memory of the
/// program's is on the move. Any thread.
class FileHandle {
 public:
  explicit FileHandle(int fd) : fd_(fd) {}

  /// Copies the touched pages of [from, from+length) to `offset`; others stay holes. Where the kernel does not say
  /// which are touched (/proc/self/pagemap), all of them if `may_touch`; otherwise that is an error, since the touch of
  /// an absent page in a range that is closed would wait for the caller itself. 0, or EFBIG, ENOMEM, ENOSPC; EMFILE and
  /// other errors of open(). Raises SIGXFSZ at EFBIG: run it under a SignalHold.
  int write(uintptr_t from, uint64_t length, uint64_t offset, bool may_touch) const;
  /// Copies [offset, offset+length) to zeroed memory; holes are skipped. False: a read failed.
  /// Async-signal-safe.
  bool read(std::byte* to, uint64_t length, uint64_t offset) const;
  /// A run in [offset, end) before which there are only holes; false if nothing else is left.
  /// Async-signal-safe.
  bool next_data(uint64_t offset, uint64_t end, uint64_t* data, uint64_t* data_end) const;
  /// Frees the memory behind [offset, offset+length).
  void punch(uint64_t offset, uint64_t length) const;
  /// Maps [offset, offset+length) at a place of the kernel's choice; `sharing`: MAP_SHARED or MAP_PRIVATE. MAP_FAILED.
  void* map(uint64_t length, uint64_t offset, int protection, int sharing) const;

 private:
  int fd_;
};

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

  FileHandle handle() const { return FileHandle(file_.get()); }
  /// Frees the memory behind [offset, offset+length).
  void punch(uint64_t offset, uint64_t length) const { handle().punch(offset, length); }
  /// Forgets the file. Async-signal-safe.
  void close() { file_.reset(); }

 private:
  base::UniqueFd file_;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  uint64_t size_ = 0;
  uint64_t next_offset_ = 0;
};

}  // namespace nupa::memory
