// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::roce {

/// The thread that looks for packets.
enum class Receiver : uint8_t {
  kPort,     ///< the port's: it looks everywhere
  kPoller,   ///< one of the program that polls: it looks again soon, each time in one place
  kSleeper,  ///< one of the program that sleeps, and packets have woken it: it looks until it finds them
};

}  // namespace nupa::roce
