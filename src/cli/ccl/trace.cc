// SPDX-License-Identifier: Apache-2.0
/// `nupa ccl trace`: merges the traces of a job's ranks into one file.
#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/ccl/bench.h"
#include "json/json.h"

namespace nupa::cli::collectives {
namespace {

using nlohmann::json;

constexpr const char* kNoTrace = "is not a trace of a rank";

/// The clocks of a file's process, read at one moment.
struct Clock {
  int64_t monotonic_ns = 0;
  int64_t realtime_ns = 0;
  std::string boot;

  int64_t offset_ns() const { return realtime_ns - monotonic_ns; }
};

bool complain_of(const std::string& path, const char* why) {
  fmt::print(stderr, "nupa: ccl: {}: {}\n", path, why);
  return false;
}

bool find_clock(const json& events, Clock* clock) {
  for (const json& event : events) {
    if (!event.is_object() || event.value("name", "") != "nupa_clock" || !event.contains("args")) continue;
    const json& told = event["args"];
    *clock = {told.value("monotonic_ns", int64_t{0}), told.value("realtime_ns", int64_t{0}), told.value("boot", "")};
    return true;
  }
  return false;
}

class Merge {
 public:
  /// Returns false and prints an error if the file is not a trace of a rank.
  bool add(const std::string& path) {
    std::error_code unknown;
    if (std::filesystem::is_directory(path, unknown)) return complain_of(path, std::strerror(EISDIR));
    std::ifstream file(path);
    if (!file) return complain_of(path, std::strerror(errno));
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    auto events = parse_json(text);
    try {
      return (events && take(std::move(*events))) || complain_of(path, kNoTrace);
    } catch (const json::exception&) {
      return complain_of(path, kNoTrace);
    }
  }

  /// Returns the text with one element in each line.
  std::string text() const {
    std::string text = "[\n";
    for (const json& event : all_) text += json_text(event) + (&event == &all_.back() ? "\n" : ",\n");
    return text + "]\n";
  }

 private:
  /// Returns false if these are not the events of a rank.
  bool take(json events) {
    Clock clock;
    if (!events.is_array() || !find_clock(events, &clock)) return false;
    const double shift_us = static_cast<double>(shift_ns(clock)) / 1000;
    for (json& event : events) {
      if (event.value("name", "") == "end") continue;
      if (event.contains("ts") && shift_us != 0) event["ts"] = event["ts"].get<double>() + shift_us;
      all_.push_back(std::move(event));
    }
    return true;
  }

  /// Returns the shift to the first file's CLOCK_MONOTONIC. Ranks of one host share that clock, so they use one offset:
  /// each has read the clocks at another time, and CLOCK_REALTIME may have been set in between.
  int64_t shift_ns(const Clock& clock) {
    const auto known = hosts_.emplace(clock.boot, clock.offset_ns()).first;
    if (hosts_.size() == 1) first_ns_ = known->second;
    return known->second - first_ns_;
  }

  std::vector<json> all_;
  std::map<std::string, int64_t> hosts_;  ///< CLOCK_REALTIME minus CLOCK_MONOTONIC
  int64_t first_ns_ = 0;
};

}  // namespace

int trace(const TraceOptions& options) {
  Merge merge;
  for (const std::string& path : options.files)
    if (!merge.add(path)) return 1;
  const std::string text = merge.text();
  if (options.output.empty()) {
    fmt::print("{}", text);
    return 0;
  }
  std::ofstream file(options.output);
  file << text;
  file.close();
  if (!file) complain_of(options.output, std::strerror(errno));
  return file ? 0 : 1;
}

}  // namespace nupa::cli::collectives
