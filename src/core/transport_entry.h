// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <span>
#include <string_view>

#include "core/seam/stat_fields.h"
#include "core/seam/transport.h"

namespace nupa::core {

/// A transport that exists, by the names that users give it.
struct TransportEntry {
  std::string_view name;
  std::string_view old_name;  ///< still accepted; empty: none
  /// Reads and checks the transport's own settings, and opens nothing. EINVAL (logged): one of them is wrong.
  Result<std::unique_ptr<Transport>> (*create)();
  /// Says what the transport has written about a queue pair of `type`. The bytes are another process's: not to be
  /// trusted. Null: it writes nothing.
  Explanation (*explain)(QpType type, const shm::StatisticsShared& block) = nullptr;
};
/// In order of cost. Defined by the composition root.
std::span<const TransportEntry> transport_entries();

}  // namespace nupa::core
