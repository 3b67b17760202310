// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The rates that `nupa top` shows, computed from what `nupa stat` sees. No I/O.

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace nupa::cli {

/// Each counter of a queue pair that has a rate.
enum class Counter : uint8_t { kBytes, kMessages, kReceived, kErrors, kRnr };
constexpr size_t kTrafficCounters = 5;

/// One line of the table.
struct TrafficLine {
  std::string name;  ///< a process, a queue pair or a device
  std::set<std::string> devices;
  std::set<std::string> transports;
  uint32_t queue_pairs = 0;
  uint32_t failed = 0;                           ///< queue pairs in the error state
  std::array<double, kTrafficCounters> rates{};  ///< a second
  std::array<uint64_t, kTrafficCounters> totals{};
  double rate(Counter counter) const { return rates[static_cast<size_t>(counter)]; }
  uint64_t total(Counter counter) const { return totals[static_cast<size_t>(counter)]; }
};

struct TrafficTable {
  double seconds = 0;  ///< between the looks
  std::vector<TrafficLine> lines;
  TrafficLine all;
};

/// The accepted values of --by and --sort.
std::vector<std::string> top_groups();
std::vector<std::string> top_columns();

class Traffic {
 public:
  /// `rows`: as `nupa stat --json` prints them; `now_ns`: the time of the look. The first look has no rates. A queue
  /// pair that is new since the last look counts from 0.
  void look(nlohmann::json rows, int64_t now_ns);
  /// The last look. `by`, `sort`: a group, and a column.
  TrafficTable table(const std::string& by, const std::string& sort) const;

 private:
  using Key = std::pair<int64_t, uint32_t>;  ///< process and number of a queue pair
  struct Values {
    std::array<uint64_t, kTrafficCounters> totals{};
    std::array<double, kTrafficCounters> rates{};
  };
  static Key key_of(const nlohmann::json& row);

  nlohmann::json rows_ = nlohmann::json::array();
  std::map<Key, Values> values_;
  int64_t looked_ns_ = 0;
  double seconds_ = 0;  ///< between the last two looks; 0: there was one
};

/// The table as text. `lines` and `columns`: of the terminal, with room for the last line of help; 0: all.
std::string text_of(const TrafficTable& table, const std::string& by, size_t lines, size_t columns);
/// The table as a line of JSON.
nlohmann::json json_of(const TrafficTable& table);

}  // namespace nupa::cli
