// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "progress/clock.h"

/// Pauses that several places have for the same reason.
namespace nupa::progress {

/// Before another try of what had no room, or was held by another thread: about the time in which a 10 Gbit/s link
/// takes one message of 64 KiB. Each pause is twice as long as the one before, up to the longest.
inline constexpr int64_t kFirstRetryPauseNs = 50 * kNsPerUs;
inline constexpr int64_t kLongestRetryPauseNs = kNsPerMs;

/// Until a listener takes the next one when there was no descriptor for it (EMFILE).
inline constexpr int64_t kAcceptPauseNs = 100 * kNsPerMs;

}  // namespace nupa::progress
