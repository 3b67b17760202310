// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Helpers for tests of registered pages.
#include <filesystem>

#include "region_test_support.h"

namespace nupa::memory::testing {

constexpr uintptr_t page(uintptr_t n) { return n * kPageSize; }

inline size_t entries_of(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace nupa::memory::testing
