#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "progress/lifecycle.h"
#include <nupa/result.h>

namespace nupa::shm {

/// A shared file, mapped piece by piece as it is needed: windows of kWindow bytes, aligned, or one mapping of its own
/// for an object that is larger. Mappings stay until the object goes. Any thread.
///
/// In a forked child it is its parent's: the file is closed there, and where it was mapped there are private zeros.
class MappedFile {
 public:
  static constexpr uint64_t kWindow = 16 << 20;

  /// `owner`: whose it is, for the texts of errors.
  explicit MappedFile(base::UniqueFd fd, std::string owner = "this process");
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  int fd() const { return fd_.get(); }
  /// The address of [offset, offset+length). An object of up to kWindow bytes must not straddle a window (power-of-two
  /// sizes at their natural alignment never do). ENOMEM: the process may map no more; ERANGE: beyond the file's end.
  /// ESRCH: it is closed, or another process's.
  Result<void*> at(uint64_t offset, uint64_t length);
  /// Nothing more can be mapped; what is stays.
  void close_file();
  /// The file's memory is given back. Where it was mapped there are zeros, which may be read and written.
  void let_go();

 private:
  void close();

  const progress::OfThisProcess made_;
  base::UniqueFd fd_;
  std::mutex mutex_;
  const std::string owner_;
  uint64_t size_ = 0;  ///< as it was when it was looked at last; it only grows (files are sealed)
  using Extent = std::pair<uint64_t, uint64_t>;  ///< where it begins, with what tells large objects apart; its length
  std::map<Extent, void*> mappings_;
};

}  // namespace nupa::shm
