// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/unique_fd.h"
#include <nupa/result.h>

namespace nupa::base {

/// Makes an empty memory file that can grow but not shrink (sealed), so that a process that maps it cannot get SIGBUS.
/// `name` is for people (/proc/pid/maps). EMFILE, ENFILE, ENOMEM.
Result<UniqueFd> make_shared_file(const char* name);

/// Grows the file to `size` bytes. EFBIG: RLIMIT_FSIZE of this process is smaller (no signal is raised).
Result<void> grow_shared_file(int fd, uint64_t size);

/// Frees the memory of [offset, offset+length). The range reads as zeros afterwards.
void punch_shared_file(int fd, uint64_t offset, uint64_t length);

/// True if the file has the seal that make_shared_file sets.
bool cannot_shrink(int fd);

}  // namespace nupa::base
