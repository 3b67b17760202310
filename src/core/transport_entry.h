// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/seam/stat_fields.h"
#include "core/seam/transport.h"

namespace nupa::core {

/// A device that belongs to a transport.
struct OwnDevice {
  std::string name;
  Gid gid;                      ///< its one address
  std::vector<Gid> neighbours;  ///< addresses of the other hosts that it leads to, whether or not they are running
};

/// A transport that can be made, with the names that users give it.
struct TransportEntry {
  std::string_view name;
  std::string_view old_name;  ///< still accepted; empty: none
  /// Reads and checks the transport's settings, and opens nothing. EINVAL: a setting is wrong.
  Result<std::unique_ptr<Transport>> (*create)();
  /// Decodes the statistics that the transport has written about a queue pair of `type`. Another process wrote the
  /// bytes, so they are not trusted. Null: it writes none.
  Explanation (*explain)(QpType type, const shm::StatisticsShared& block) = nullptr;
  /// Returns the transport's own device, if it has one at present. Null: it never has.
  std::optional<OwnDevice> (*device)() = nullptr;
};
/// The transports in order of cost. The composition root defines this.
std::span<const TransportEntry> transport_entries();

}  // namespace nupa::core
