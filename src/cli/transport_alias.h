// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/transport_names.h"

namespace nupa::cli {

/// Adds the former name of row["transport"] as row["transport_alias"], for scripts that compare with it.
inline void add_transport_alias(nlohmann::json* row) {
  const auto transport = row->find("transport");
  if (transport == row->end()) return;
  const auto old_name = core::old_transport_name(transport->get<std::string>());
  if (!old_name.empty()) (*row)["transport_alias"] = old_name;
}

}  // namespace nupa::cli
