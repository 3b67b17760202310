#pragma once
#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "base/unique_fd.h"

namespace nupa::base {

/// From which number on the library's own descriptors are wanted; 0, as at first: any. Any thread.
void set_lowest_descriptor(int lowest);
int lowest_descriptor();

/// The same open file under such a number; as it was if there is none below the limit of open files.
inline UniqueFd out_of_the_way(UniqueFd fd, int lowest = lowest_descriptor()) {
  if (!fd || fd.get() >= lowest) return fd;
  const int error = errno;
  UniqueFd moved(fcntl(fd.get(), F_DUPFD_CLOEXEC, lowest));
  errno = error;
  return moved ? std::move(moved) : std::move(fd);
}

}  // namespace nupa::base
