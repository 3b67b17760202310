#pragma once
#include <nupa/result.h>

#include <string>

#include "base/unique_fd.h"

namespace nupa::ccl {

/// A file that is a JSON array at any time: each write puts its end where the last one's was. One thread at a time.
class TraceFile {
 public:
  /// `name`: a folder, or a file's name with %r for the rank, %p for the process and %h for the host; without %r and
  /// %p ".RANK" is appended. What is there is lost.
  static Result<TraceFile> open(const std::string& name, uint32_t rank);

  /// Appends elements: lines that end with ",\n". The first error is said on standard error, and nothing is written any
  /// more.
  void write(const std::string& elements);

 private:
  TraceFile(std::string path, base::UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  base::UniqueFd fd_;
  off_t end_ = 0;  ///< of the elements, without what ends the array
  bool failed_ = false;
};

}  // namespace nupa::ccl
