// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "progress/clock.h"

/// Pauses that several places use for the same reason.
namespace nupa::progress {

/// Pauses before the retry of an operation that found a full buffer, or a lock held by another thread. The first is
/// about the time in which a 10 Gbit/s link transfers one message of 64 KiB. Each pause is twice as long as the one
/// before, up to the longest.
inline constexpr int64_t kFirstRetryPauseNs = 50 * kNsPerUs;
inline constexpr int64_t kLongestRetryPauseNs = kNsPerMs;

/// Pause of a listener that had no descriptor for a connection (EMFILE).
inline constexpr int64_t kAcceptPauseNs = 100 * kNsPerMs;

}  // namespace nupa::progress
