// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace nupa::memory {

/// The kernel's calls without the C library. Programs with a registration cache (UCX, Open MPI) patch mmap, munmap,
/// mremap and madvise, and drop the ranges of these calls from the cache. Pages that move into the region file or back
/// keep their address and content: nothing was unmapped for the program, so its cache must not notice the calls. The
/// patches would also run the program's code inside the remapper's lock, and that code may register or deregister
/// memory. Results and errors are those of the calls of the same name.
inline void* raw_mmap(void* at, size_t length, int protection, int flags, int fd, int64_t offset) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, length, protection, flags, fd, offset));
}
inline int raw_munmap(void* at, size_t length) { return static_cast<int>(syscall(SYS_munmap, at, length)); }
/// Old and new length are the same: the mapping only moves.
inline void* raw_mremap(void* from, size_t length, void* to) {
  return reinterpret_cast<void*>(syscall(SYS_mremap, from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to));
}
inline int raw_madvise(void* at, size_t length, int advice) {
  return static_cast<int>(syscall(SYS_madvise, at, length, advice));
}

}  // namespace nupa::memory
