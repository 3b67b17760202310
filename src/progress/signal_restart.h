// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::progress {

/// How a system call that replaces read() has to react to signals of this process. The kernel restarts read() after a
/// handler with SA_RESTART, but restarts no call that waits for several descriptors. A thread that sleeps in such a
/// call in place of read() has to do the same, and cannot find out which handler interrupted it.
enum class AfterSignals : uint8_t {
  kRestart,  ///< all handlers have SA_RESTART, or there are none
  kReturn,   ///< no handler has SA_RESTART
  kMixed,    ///< the caller has to sleep in read() itself
};
/// Reads all handlers of the process: some 64 system calls.
AfterSignals look_at_handlers();
/// The same, from a cache that is at most a second old.
AfterSignals after_signals(int64_t now_ns);

}  // namespace nupa::progress
