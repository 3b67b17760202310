// SPDX-License-Identifier: Apache-2.0
#include "base/shared_file.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>

#include "base/system_error.h"

namespace nupa::base {

Result<UniqueFd> make_shared_file(const char* name) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return base::fail_call(errno, "cannot create the shared memory file ", name);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
    return base::fail_call(errno, "cannot seal the shared memory file ", name);
  return fd;
}

Result<void> grow_shared_file(int fd, uint64_t size) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && size > limit.rlim_cur)
    return fail(EFBIG, "the file size limit (ulimit -f) is too small for shared memory: ", size, " bytes needed");
  // The limit may change between the look and the call: the signal must not reach the program.
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const int status = ftruncate(fd, static_cast<off_t>(size));
  const int error = errno;
  if (status != 0 && error == EFBIG) {
    const timespec now{};
    sigtimedwait(&blocked, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (status != 0) return base::fail_call(error, "cannot grow a shared memory file to ", size, " bytes");
  return {};
}

void punch_shared_file(int fd, uint64_t offset, uint64_t length) {
  fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(length));
}

bool cannot_shrink(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

}  // namespace nupa::base
