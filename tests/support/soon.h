// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Waits of tests for a condition.
#include <sys/types.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

namespace nupa::test {

/// Whether `holds` does before a long time has passed; only a test that fails waits so long.
inline bool soon(const std::function<bool()>& holds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);  // a sanitizer on a busy machine
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // sleep: the pause between two looks
  }
  return true;
}

/// Whether the thread has ended, or waits for something in the kernel (proc_pid_stat(5)).
inline bool stands_still(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return true;
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() && line[name_end + 2] == 'S';
}

}  // namespace nupa::test
