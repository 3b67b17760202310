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

/// The effect of a signal on a wait: it ends the wait with EINTR, or the wait goes on. It never moves the deadline.
enum class Signals : uint8_t { kReturn, kIgnore };

/// ppoll(2) with a deadline. Returns the number of ready descriptors. 0: none is ready by then; after the deadline it
/// still checks once. `mask`: the signals that are blocked meanwhile. EINTR with kReturn; EINVAL, ENOMEM.
NUPA_EXPORT Result<int> wait_descriptors(std::span<pollfd> fds, Deadline deadline, Signals signals,
                                         const sigset_t* mask = nullptr);
/// Waits until a descriptor is readable, at its end, or has an error. Signals do not end the wait. ETIMEDOUT.
NUPA_EXPORT Result<void> wait_readable(int fd, Deadline deadline);
/// The same until the descriptor is writable.
NUPA_EXPORT Result<void> wait_writable(int fd, Deadline deadline);
/// True if the descriptor is readable now.
NUPA_EXPORT bool is_readable(int fd);

}  // namespace nupa::progress
