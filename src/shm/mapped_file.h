// SPDX-License-Identifier: Apache-2.0
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

/// A shared file that is mapped as needed: in aligned parts of kWindow bytes, or in one mapping for an object that is
/// larger. Mappings stay until this object is destroyed. Any thread.
///
/// A forked child may not use it: the file is closed there, and its mappings are replaced by private zeros.
class MappedFile {
 public:
  static constexpr uint64_t kWindow = 16 << 20;

  /// `owner`: the owner's name in the texts of errors.
  explicit MappedFile(base::UniqueFd fd, std::string owner = "this process");
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  int fd() const { return fd_.get(); }
  /// Returns the address of [offset, offset+length). An object of up to kWindow bytes must not straddle a multiple of
  /// kWindow (power-of-two sizes at their natural alignment never do). ENOMEM: the process may map no more. ERANGE:
  /// beyond the file's end. ESRCH: the file is closed, or belongs to the parent process.
  Result<void*> at(uint64_t offset, uint64_t length);
  /// Closes the file. Existing mappings stay, and new ones fail.
  void close_file();
  /// Closes the file and replaces its mappings by zeros that may be read and written.
  void let_go();

 private:
  void close();

  const progress::OfThisProcess made_;
  base::UniqueFd fd_;
  std::mutex mutex_;
  const std::string owner_;
  uint64_t size_ = 0;                            ///< the file's size at the last look; it only grows (files are sealed)
  using Extent = std::pair<uint64_t, uint64_t>;  ///< the offset, with a bit for large objects; the length
  std::map<Extent, void*> mappings_;
};

}  // namespace nupa::shm
