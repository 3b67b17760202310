// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Event loops and the descriptors that they watch.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace nupa::progress {

/// A descriptor that is readable from write() to read().
class Bell {
 public:
  Bell() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  int fd() const { return fd_.get(); }
  void ring() const { EXPECT_EQ(0, eventfd_write(fd(), 1)); }
  void clear() const {
    eventfd_t value;
    EXPECT_EQ(0, eventfd_read(fd(), &value));
  }
  int release() { return fd_.release(); }

 private:
  base::UniqueFd fd_;
};

}  // namespace nupa::progress
