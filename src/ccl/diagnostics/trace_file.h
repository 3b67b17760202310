// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <string>

#include "base/unique_fd.h"

namespace nupa::ccl {

/// A file that is a complete JSON array at any time: each write replaces the end of the array. Not thread-safe.
class TraceFile {
 public:
  /// `name`: a folder, or a file's name with %r for the rank, %p for the process and %h for the host; without %r and
  /// %p, ".RANK" is appended. An existing file is overwritten. Returns the errno value of creating the file. A full
  /// disk is an error of write().
  static Result<TraceFile> open(const std::string& name, uint32_t rank);

  /// Appends elements: lines that end with ",\n". The first error is printed on standard error, and later calls write
  /// nothing.
  void write(const std::string& elements);

 private:
  TraceFile(std::string path, base::UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  /// Prints an errno value; 0: there is nothing to print.
  void report(int error);

  std::string path_;
  base::UniqueFd fd_;
  off_t end_ = 0;  ///< where the elements end and the end of the array begins
  bool failed_ = false;
};

}  // namespace nupa::ccl
