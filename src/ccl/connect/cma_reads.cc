// SPDX-License-Identifier: Apache-2.0
#include "ccl/connect/cma_reads.h"

#include <sys/uio.h>

#include <cerrno>

#include "ccl/call/arrays.h"

namespace nupa::ccl {

int CmaReads::read(uint32_t rank, void* to, uint64_t address, size_t bytes) {
  // A call may read only a part, up to a page that it cannot read. The next call begins there, and fails if it cannot
  // read anything.
  for (size_t done = 0; done < bytes;) {
    const iovec local{bytes_at(to, done), bytes - done};
    const iovec remote{reinterpret_cast<void*>(address + done), bytes - done};
    const ssize_t got = process_vm_readv(processes_[rank], &local, 1, &remote, 1, 0);
    if (got < 0 && errno == ESRCH) {
      on_dead_(rank);
      return ECONNRESET;
    }
    if (got <= 0) return got < 0 ? errno : EFAULT;
    done += static_cast<size_t>(got);
  }
  return 0;
}

}  // namespace nupa::ccl
