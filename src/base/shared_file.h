#pragma once
#include <cstdint>

#include "base/unique_fd.h"
#include <nupa/result.h>

namespace nupa::base {

/// An empty memory file that may grow and never shrinks (sealed), so that whoever maps it cannot be hit by SIGBUS.
/// `name` is for people (/proc/pid/maps). EMFILE, ENFILE, ENOMEM.
Result<UniqueFd> make_shared_file(const char* name);

/// Grows the file to `size` bytes. EFBIG: RLIMIT_FSIZE of this process is smaller (no signal is raised).
Result<void> grow_shared_file(int fd, uint64_t size);

/// Gives the memory of [offset, offset+length) back; the range reads as zeros afterwards.
void punch_shared_file(int fd, uint64_t offset, uint64_t length);

/// True if the file carries the seal that make_shared_file sets.
bool cannot_shrink(int fd);

}  // namespace nupa::base
