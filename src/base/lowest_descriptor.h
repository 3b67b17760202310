// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "base/unique_fd.h"

namespace nupa::base {

/// Sets the lowest number for the library's own descriptors; 0, the initial value, allows any. Any thread.
void set_lowest_descriptor(int lowest);
int lowest_descriptor();

/// Moves an open file to a number from `lowest` on. Returns the descriptor unchanged if none is free below the limit of
/// open files.
inline UniqueFd out_of_the_way(UniqueFd fd, int lowest = lowest_descriptor()) {
  if (!fd || fd.get() >= lowest) return fd;
  const int error = errno;
  UniqueFd moved(fcntl(fd.get(), F_DUPFD_CLOEXEC, lowest));
  errno = error;
  return moved ? std::move(moved) : std::move(fd);
}

}  // namespace nupa::base
