// SPDX-License-Identifier: Apache-2.0
// The switch of a build with faults: a shared library of its own, which is ready before all that is linked to it. It
// makes system calls directly, since libraries of the build replace open() and others.
#include "nupa_mutants.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int nupa_mutant_active = 0;
unsigned char* nupa_mutant_reached = nullptr;

namespace {

constexpr long kFileBytes = 1 << 16;

__attribute__((constructor)) void choose() {
  if (const char* number = getenv("NUPA_MUTANT")) nupa_mutant_active = atoi(number);
  const char* file = getenv("NUPA_MUTANT_REACHED");
  if (file == nullptr) return;
  const long fd = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  const long address = syscall(SYS_mmap, nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (address != -1) nupa_mutant_reached = reinterpret_cast<unsigned char*>(address);
}

}  // namespace
