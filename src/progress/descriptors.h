// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <poll.h>
#include <signal.h>

#include <cstdint>
#include <span>

#include "progress/deadline.h"
#include <nupa/export.h>
#include <nupa/result.h>

namespace nupa::progress {

/// What a signal does to a wait: it ends it with EINTR, or the wait goes on. It never moves the deadline.
enum class Signals : uint8_t { kReturn, kIgnore };

/// ppoll(2) with a deadline. How many descriptors are ready; 0: none by then, which is found out also by a look after
/// the deadline. `mask`: the signals that are blocked meanwhile. EINTR with kReturn; EINVAL, ENOMEM.
NUPA_EXPORT Result<int> wait_descriptors(std::span<pollfd> fds, Deadline deadline, Signals signals,
                                         const sigset_t* mask = nullptr);
/// Until one descriptor is readable (at its end, or at an error of it, too); signals do not end it. ETIMEDOUT.
NUPA_EXPORT Result<void> wait_readable(int fd, Deadline deadline);
/// The same until there is room to write.
NUPA_EXPORT Result<void> wait_writable(int fd, Deadline deadline);
/// Now, without waiting.
NUPA_EXPORT bool is_readable(int fd);

}  // namespace nupa::progress
