// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

namespace nupa::cli {

/// A line of `nupa doctor`.
struct Finding {
  const char* level;  ///< OK, NOTE or PROBLEM
  std::string subject;
  std::string found;
  std::string remedy;  ///< empty: nothing is to be done
};

/// The findings about the pool that NUPA_POOL or /etc/nupa/pool.json names. Watches heartbeats for 0.6 s.
std::vector<Finding> pool_findings();

}  // namespace nupa::cli
