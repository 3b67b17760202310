// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::progress {

/// What a signal of this process does to a system call that read() stands for: the kernel starts read() again after a
/// handler with SA_RESTART, but no call that waits for several descriptors. A thread that sleeps in such a call in
/// read()'s place has to do the same, and cannot know which handler interrupted it.
enum class AfterSignals : uint8_t {
  kRestart,  ///< all handlers have SA_RESTART, or there are none
  kReturn,   ///< none has
  kMixed,    ///< the caller has to sleep in read() itself
};
/// Looks at all handlers of the process: some 64 system calls.
AfterSignals look_at_handlers();
/// The same, as it was a second ago at the most.
AfterSignals after_signals(int64_t now_ns);

}  // namespace nupa::progress
