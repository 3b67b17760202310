// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Statistics of a queue pair as named values, as `nupa stat --json` prints them.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace nupa::core {

struct StatValue;
struct StatField;
/// Names are the keys of the JSON output; each occurs once.
using StatFields = std::vector<StatField>;
using StatList = std::vector<StatValue>;

/// std::monostate: there is no value.
struct StatValue {
  std::variant<std::monostate, bool, uint64_t, double, std::string, StatFields, StatList> value;
};
struct StatField {
  std::string name;
  StatValue value;
};

/// A transport's statistics of one of its queue pairs.
struct Explanation {
  std::string peer;  ///< the peer's address, if it is on another host
  StatFields fields;
};

}  // namespace nupa::core
