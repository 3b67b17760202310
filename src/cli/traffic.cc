// SPDX-License-Identifier: Apache-2.0
#include "cli/traffic.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

namespace nupa::cli {
namespace {

constexpr std::array<const char*, kTrafficCounters> kCounterNames{"bytes", "messages", "received", "errors", "rnr"};
/// The column of --sort by each rate.
constexpr std::array<const char*, kTrafficCounters> kColumns{"sent", "messages", "received", "errors", "rnr"};

std::string joined(const std::set<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : ",") + word;
  return all;
}

std::string line_name(const nlohmann::json& row, const std::string& by) {
  if (by == "device") return row["device"].get<std::string>();
  const std::string process = fmt::format("{}[{}]", row["command"].get<std::string>(), row["pid"].get<int64_t>());
  if (by == "process") return process;
  return fmt::format("{} {:#x} {} {}", process, row["qp_num"].get<uint32_t>(), row["type"].get<std::string>(),
                     row["state"].get<std::string>());
}

/// A number of four digits at most and the power of a thousand: 12.3M.
std::string short_number(double value) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  for (; value >= 999.95 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}{}", value, kUnits[unit]);
}

void add(const nlohmann::json& row, const std::array<double, kTrafficCounters>& rates,
         const std::array<uint64_t, kTrafficCounters>& totals, TrafficLine* line) {
  line->devices.insert(row["device"].get<std::string>());
  if (const std::string transport = row["transport"].get<std::string>(); !transport.empty())
    line->transports.insert(transport);
  ++line->queue_pairs;
  line->failed += row["state"] == "ERR";
  for (size_t i = 0; i < kTrafficCounters; ++i) {
    line->rates[i] += rates[i];
    line->totals[i] += totals[i];
  }
}

std::string text_of(const TrafficLine& line) {
  return fmt::format("{:<34} {:>5} {:>4} {:<10} {:<10} {:>8} {:>8} {:>8} {:>7} {:>7} {:>9} {:>9}", line.name,
                     line.queue_pairs, line.failed, joined(line.transports), joined(line.devices),
                     short_number(line.rate(Counter::kBytes)), short_number(line.rate(Counter::kMessages)),
                     short_number(line.rate(Counter::kReceived)), short_number(line.rate(Counter::kErrors)),
                     short_number(line.rate(Counter::kRnr)),
                     short_number(static_cast<double>(line.total(Counter::kBytes))),
                     short_number(static_cast<double>(line.total(Counter::kMessages))));
}

nlohmann::json json_of(const TrafficLine& line) {
  nlohmann::json object{{"name", line.name},
                        {"devices", line.devices},
                        {"transports", line.transports},
                        {"queue_pairs", line.queue_pairs},
                        {"failed", line.failed}};
  for (size_t i = 0; i < kTrafficCounters; ++i) {
    object[kCounterNames[i]] = line.totals[i];
    object[std::string(kCounterNames[i]) + "_per_second"] = line.rates[i];
  }
  return object;
}

}  // namespace

std::vector<std::string> top_groups() { return {"process", "qp", "device"}; }

std::vector<std::string> top_columns() {
  std::vector<std::string> columns(kColumns.begin(), kColumns.end());
  columns.emplace_back("name");
  return columns;
}

Traffic::Key Traffic::key_of(const nlohmann::json& row) {
  return {row["pid"].get<int64_t>(), row["qp_num"].get<uint32_t>()};
}

void Traffic::look(nlohmann::json rows, int64_t now_ns) {
  seconds_ = looked_ns_ == 0 ? 0 : static_cast<double>(now_ns - looked_ns_) / 1e9;
  looked_ns_ = now_ns;
  std::map<Key, Values> now;
  for (const auto& row : rows) {
    const auto known = values_.find(key_of(row));
    Values& values = now[key_of(row)];
    for (size_t i = 0; i < kTrafficCounters; ++i) {
      values.totals[i] = row[kCounterNames[i]].get<uint64_t>();
      // Another queue pair has that number now if a counter is lower.
      const bool goes_on = known != values_.end() && known->second.totals[i] <= values.totals[i];
      const uint64_t from = goes_on ? known->second.totals[i] : 0;
      if (seconds_ > 0) values.rates[i] = static_cast<double>(values.totals[i] - from) / seconds_;
    }
  }
  values_ = std::move(now);
  rows_ = std::move(rows);
}

TrafficTable Traffic::table(const std::string& by, const std::string& sort) const {
  TrafficTable table;
  table.all.name = "all";
  table.seconds = seconds_;
  std::map<std::string, TrafficLine> lines;
  for (const auto& row : rows_) {
    const Values& values = values_.at(key_of(row));
    add(row, values.rates, values.totals, &lines[line_name(row, by)]);
    add(row, values.rates, values.totals, &table.all);
  }
  for (auto& [name, line] : lines) {
    line.name = name;
    table.lines.push_back(std::move(line));
  }
  const auto column = std::find(kColumns.begin(), kColumns.end(), sort);
  if (column != kColumns.end()) {
    const auto index = static_cast<size_t>(column - kColumns.begin());
    // By the total if nothing moves, and by the name, in which they are now, if that is equal.
    std::stable_sort(table.lines.begin(), table.lines.end(), [index](const TrafficLine& a, const TrafficLine& b) {
      return a.rates[index] != b.rates[index] ? a.rates[index] > b.rates[index] : a.totals[index] > b.totals[index];
    });
  }
  return table;
}

std::string text_of(const TrafficTable& table, const std::string& by, size_t lines, size_t columns) {
  std::vector<std::string> text;
  text.push_back(fmt::format("{:<34} {:>5} {:>4} {:<10} {:<10} {:>8} {:>8} {:>8} {:>7} {:>7} {:>9} {:>9}",
                             by == "process"  ? "PROCESS"
                             : by == "device" ? "DEVICE"
                                              : "QUEUE PAIR",
                             "QPS", "ERR", "TRANSPORT", "DEVICE", "SENT B/s", "MSG/s", "RECV/s", "ERR/s", "RNR/s",
                             "BYTES", "MESSAGES"));
  text.push_back(text_of(table.all));
  for (const TrafficLine& line : table.lines) text.push_back(text_of(line));
  std::string all;
  const size_t shown = lines == 0 ? text.size() : std::min(text.size(), lines > 1 ? lines - 1 : 1);
  for (size_t i = 0; i < shown; ++i) all += (columns == 0 ? text[i] : text[i].substr(0, columns)) + "\n";
  return all;
}

nlohmann::json json_of(const TrafficTable& table) {
  nlohmann::json lines = nlohmann::json::array();
  for (const TrafficLine& line : table.lines) lines.push_back(json_of(line));
  return {{"seconds", table.seconds}, {"all", json_of(table.all)}, {"lines", std::move(lines)}};
}

}  // namespace nupa::cli
