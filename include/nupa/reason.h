// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Reasons of errors, for libraries that translate this interface into another one, such as the drop-in libibverbs.
/// They print one line for each call of a program that fails: the call, the error, and the value and the rule behind
/// it.

#include <nupa/export.h>

namespace nupa {

/// Returns true if explain() prints: with NUPA_EXPLAIN=on, or NUPA_LOG=info or debug.
/// Any thread.
/// @return True if it does. It stays so for the life of the process.
NUPA_EXPORT bool explains() noexcept;

/// The rule behind an errno value that a function of this interface has just returned in this thread without a text.
/// @param code errno value that was returned
/// @return The text, valid until the thread's next call of this interface; null: no reason is known, or explains() is
///   false. It is returned once.
NUPA_EXPORT const char* take_reason(int code) noexcept;

/// Prints a call of the program that failed, and the reason. A thread that repeats a call gets one line a second for
/// it. errno stays. Any thread.
/// @param call name of the function that the program called
/// @param code errno value that it returns
/// @param reason text; null: take_reason()
NUPA_EXPORT void explain(const char* call, int code, const char* reason) noexcept;

}  // namespace nupa
