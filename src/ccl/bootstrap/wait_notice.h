// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The one line that a rank prints when it waits for the rendezvous server.
#include <cstdint>
#include <cstdio>
#include <string>

#include "base/clock.h"
#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

class WaitNotice {
 public:
  /// The wait of a rank begins.
  explicit WaitNotice(uint32_t rank)
      : rank_(rank), due_ns_(base::now_ns() + (rank <= 1 ? kWaitNoticeNs : kLateNoticeNs)) {}

  /// Prints what the rank waits for, once, when the wait has become long.
  void look(const std::string& what) {
    if (base::now_ns() < due_ns_) return;
    due_ns_ = INT64_MAX;
    std::fprintf(stderr, "nupa: ccl: rank %u waits for %s\n", rank_, what.c_str());
  }

 private:
  /// Ranks other than the first two wait longer, so that a job of many ranks whose server is late does not print a line
  /// for each of them.
  static constexpr int64_t kLateNoticeNs = 15 * base::kNsPerSecond;

  const uint32_t rank_;
  int64_t due_ns_;
};

}  // namespace nupa::ccl
