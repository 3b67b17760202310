// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The output of measurements, which rank 0 prints.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/ccl/call.h"
#include "cli/ccl/measure.h"
#include "cli/ccl/options.h"

namespace nupa::cli::collectives {

enum class Verdict : uint8_t { kNotChecked, kRight, kWrong };

/// The result of one operation at one size.
struct Result {
  Operation operation;
  size_t bytes;
  size_t count;
  Timing timing;
  Verdict verdict;
  std::string algorithm;  ///< "slots: why", from the library

  /// Return GB/s (10^9 bytes), or nothing for a barrier and for operations that nccl-tests does not have.
  std::optional<double> algorithm_bandwidth() const;
  std::optional<double> bus_bandwidth(uint32_t ranks) const;
};

/// The environment of all results.
struct About {
  uint32_t ranks;
  std::string cpu;
  std::string system;
  std::string date;
  std::string transport;  ///< value of NUPA_TRANSPORT

  static About here(uint32_t ranks);
};

const char* name_of(Verdict verdict);
/// Returns a text such as "float32, sum, in place".
std::string text_of(const BenchOptions& options);
/// Returns the exact size: "4 KiB", "4100 B".
std::string size_text(size_t bytes);
/// Returns the name only: "slots".
std::string algorithm_name(const std::string& algorithm);

std::string table_head(const BenchOptions& options, const About& about);
std::string table_head(Operation operation);
std::string table_row(const Result& result, const About& about);
nlohmann::json json_of(const BenchOptions& options, const About& about, const std::vector<Result>& results);

}  // namespace nupa::cli::collectives
