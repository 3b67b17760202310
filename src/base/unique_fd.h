// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace nupa::base {

/// Owns one file descriptor and closes it in the destructor. -1: none. Not thread-safe.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

/// True if accept() failed because no descriptor was available. The connection stays pending and the listener stays
/// readable, so the poller of the listener has to leave it out for a while.
inline bool is_out_of_descriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

}  // namespace nupa::base
