#include "base/lowest_descriptor.h"

#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <utility>

namespace nupa::base {
namespace {

std::atomic<int> g_lowest{0};

}  // namespace

void set_lowest_descriptor(int lowest) { g_lowest = lowest; }

UniqueFd out_of_the_way(UniqueFd fd) {
  const int lowest = g_lowest;
  if (!fd || fd.get() >= lowest) return fd;
  const int error = errno;
  UniqueFd moved(fcntl(fd.get(), F_DUPFD_CLOEXEC, lowest));
  errno = error;
  return moved ? std::move(moved) : std::move(fd);
}

}  // namespace nupa::base
