// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A connection whose ends the tests drive to their limits.
#include "api_support.h"

namespace nupa::rsockets_test {

constexpr int kNoDescriptor = 12345;

inline sockaddr* as_out(sockaddr_in* address) { return reinterpret_cast<sockaddr*>(address); }

/// Descriptors that are closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) { EXPECT_GE(fd, 0) << std::strerror(errno); }
  ~Descriptor() {
    if (fd_ >= 0) rclose(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return fd_; }

 private:
  int fd_;
};

class RsocketsEdges : public RsocketsApi {
 protected:
  int read_error(int fd, int flags = MSG_DONTWAIT) {
    char c;
    return error_of(rrecv(fd, &c, 1, flags));
  }
  int write_error(int fd, int flags = MSG_DONTWAIT) { return error_of(rsend(fd, "x", 1, flags)); }
  /// Until data or an end is there to read.
  void wait_readable(int fd) { ASSERT_NE(poll_one(fd, POLLIN, kSoonMs), 0); }
  /// Until the peer's shutdown has come.
  void wait_peer_shut(int fd) { ASSERT_NE(poll_one(fd, POLLRDHUP, kSoonMs) & POLLRDHUP, 0); }
  /// Sends until the peer has no room.
  void fill(int from, int to) {
    auto left = static_cast<size_t>(number_of(to, SOL_SOCKET, SO_RCVBUF));
    const std::vector<char> data(left);
    while (left != 0) {
      const ssize_t count = rsend(from, data.data(), left, 0);
      ASSERT_GT(count, 0);
      left -= static_cast<size_t>(count);
    }
  }
};

}  // namespace nupa::rsockets_test
