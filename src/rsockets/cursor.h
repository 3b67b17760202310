// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "rsockets/socket.h"

namespace nupa::rsockets {

/// A position in a program's list of buffers.
class Cursor {
 public:
  explicit Cursor(Pieces pieces) : piece_(pieces.list), left_(pieces.count) { skip_empty(); }

  bool at_end() const { return left_ == 0; }
  std::byte* at() const { return static_cast<std::byte*>(piece_->iov_base) + offset_; }
  /// Bytes up to the end of the current buffer.
  size_t contiguous() const { return left_ == 0 ? 0 : piece_->iov_len - offset_; }

  void advance(size_t bytes) {
    while (bytes != 0) {
      const size_t step = std::min(bytes, contiguous());
      bytes -= step;
      offset_ += step;
      if (offset_ == piece_->iov_len) {
        next();
        skip_empty();
      }
    }
  }
  void copy_to(std::byte* to, size_t bytes) {
    while (bytes != 0) {
      const size_t step = std::min(bytes, contiguous());
      std::memcpy(to, at(), step);
      advance(step);
      to += step;
      bytes -= step;
    }
  }
  void copy_from(const std::byte* from, size_t bytes) {
    while (bytes != 0) {
      const size_t step = std::min(bytes, contiguous());
      std::memcpy(at(), from, step);
      advance(step);
      from += step;
      bytes -= step;
    }
  }

 private:
  void next() {
    ++piece_;
    --left_;
    offset_ = 0;
  }
  void skip_empty() {
    while (left_ != 0 && piece_->iov_len == 0) next();
  }

  const iovec* piece_;
  int left_;
  size_t offset_ = 0;
};

}  // namespace nupa::rsockets
