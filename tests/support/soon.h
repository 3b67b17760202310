// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Waits of tests for a condition.
#include <chrono>
#include <functional>
#include <thread>

namespace nupa::test {

/// Whether `holds` does before a long time has passed; only a test that fails waits so long.
inline bool soon(const std::function<bool()>& holds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);  // a sanitizer on a busy machine
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

}  // namespace nupa::test
