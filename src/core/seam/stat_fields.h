// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Statistics of a queue pair, for people and scripts: named values, as `nupa stat --json` prints them.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace nupa::core {

struct StatValue;
/// Names are those of the output; each once.
using StatFields = std::vector<std::pair<std::string, StatValue>>;
using StatList = std::vector<StatValue>;

/// std::monostate: there is no value.
struct StatValue {
  std::variant<std::monostate, bool, uint64_t, double, std::string, StatFields, StatList> value;
};

/// What a transport says of a queue pair that it carries.
struct Explanation {
  std::string peer;  ///< where it leads, if its peer is no process of this host
  StatFields fields;
};

}  // namespace nupa::core
