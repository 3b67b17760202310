// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Copies to and from memory that the program may have unmapped.
#include <cstdint>

#include "base/memory_fault.h"
#include "base/ordered_copy.h"
#include "copy/copy_engine.h"

namespace nupa::copy {

/// Runs `access`. False: it met memory that is not mapped.
template <class Access>
bool guarded(const Access& access) {
  return base::try_access(nullptr, SIZE_MAX, access);
}

inline bool copy_guarded(const Copy& copy) {
  if (copy.length == 0) return true;
  return guarded([&] { base::copy_block(copy.to, copy.from, copy.length); });
}

/// Stores the last bytes of a job. All others are visible before them.
inline bool store_last(const Copy& last) {
  if (last.length == 0) return true;
  return guarded([&] { base::store_tail(last.to, last.from, last.length); });
}

}  // namespace nupa::copy
