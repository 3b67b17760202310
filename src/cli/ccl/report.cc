// SPDX-License-Identifier: Apache-2.0
#include "cli/ccl/report.h"

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <sys/utsname.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/settings.h"

namespace nupa::cli::collectives {
namespace {

constexpr double kBytesPerUsOfGbs = 1e3;

/// Returns the value after the colon of the first such line.
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

std::string system_name() {
  utsname name{};
  uname(&name);
  return fmt::format("{} {}", name.sysname, name.release);
}

std::string bandwidth_text(const std::optional<double>& gbs) { return gbs ? fmt::format("{:.3f}", *gbs) : "-"; }

nlohmann::json json_of(const std::optional<double>& value) { return value ? nlohmann::json(*value) : nlohmann::json(); }

}  // namespace

std::optional<double> Result::algorithm_bandwidth() const {
  if (bytes == 0) return {};
  return static_cast<double>(bytes) / timing.median_us / kBytesPerUsOfGbs;
}

std::optional<double> Result::bus_bandwidth(uint32_t ranks) const {
  const auto whole = algorithm_bandwidth();
  const auto factor = bus_factor(operation, ranks);
  if (!whole || !factor) return {};
  return *whole * *factor;
}

About About::here(uint32_t ranks) {
  const char* const transport = base::text_setting("NUPA_TRANSPORT");
  return {ranks, cpu_name(), system_name(), fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(std::time(nullptr))),
          transport == nullptr ? std::string(base::find_setting("NUPA_TRANSPORT")->usual) : transport};
}

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kRight:
      return "ok";
    case Verdict::kWrong:
      return "wrong";
    default:
      return "-";
  }
}

std::string text_of(const BenchOptions& options) {
  return fmt::format("{}, {}, {}{}", traits_of(options.type).name, name_of(options.op),
                     options.in_place ? "in place" : "out of place", options.allocated ? ", allocated" : "");
}

std::string size_text(size_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  constexpr size_t kStep = 1024;
  size_t unit = 0;
  for (; bytes != 0 && bytes % kStep == 0 && unit + 1 < std::size(kUnits); ++unit) bytes /= kStep;
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

std::string algorithm_name(const std::string& algorithm) { return algorithm.substr(0, algorithm.find(':')); }

std::string table_head(const BenchOptions& options, const About& about) {
  return fmt::format("{} ranks, {}, transport {}; {}, {}\n", about.ranks, text_of(options), about.transport, about.cpu,
                     about.system);
}

std::string table_head(Operation operation) {
  return fmt::format("\n{}\n{:>12}{:>12}{:>13}{:>13}{:>12}{:>12}  {:<6} {}\n", traits_of(operation).name, "bytes",
                     "count", "median us", "minimum us", "alg GB/s", "bus GB/s", "check", "algorithm");
}

std::string table_row(const Result& result, const About& about) {
  return fmt::format("{:>12}{:>12}{:>13.2f}{:>13.2f}{:>12}{:>12}  {:<6} {}\n", result.bytes, result.count,
                     result.timing.median_us, result.timing.minimum_us, bandwidth_text(result.algorithm_bandwidth()),
                     bandwidth_text(result.bus_bandwidth(about.ranks)), name_of(result.verdict),
                     algorithm_name(result.algorithm));
}

nlohmann::json json_of(const BenchOptions& options, const About& about, const std::vector<Result>& results) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Result& result : results)
    rows.push_back({{"operation", traits_of(result.operation).name},
                    {"bytes", result.bytes},
                    {"count", result.count},
                    {"batches", result.timing.batches},
                    {"iterations_per_batch", result.timing.iterations},
                    {"median_us", result.timing.median_us},
                    {"minimum_us", result.timing.minimum_us},
                    {"algorithm_gbs", json_of(result.algorithm_bandwidth())},
                    {"bus_gbs", json_of(result.bus_bandwidth(about.ranks))},
                    {"check", name_of(result.verdict)},
                    {"algorithm", result.algorithm}});
  return {{"ranks", about.ranks},
          {"type", traits_of(options.type).name},
          {"op", name_of(options.op)},
          {"in_place", options.in_place},
          {"allocated", options.allocated},
          {"root", options.root},
          {"transport", about.transport},
          {"cpu", about.cpu},
          {"system", about.system},
          {"date", about.date},
          {"results", rows}};
}

}  // namespace nupa::cli::collectives
