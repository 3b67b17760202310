#pragma once
/// What was measured, as rank 0 shows it.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/ccl/call.h"
#include "cli/ccl/measure.h"
#include "cli/ccl/options.h"

namespace nupa::cli::collectives {

enum class Verdict : uint8_t { kNotChecked, kRight, kWrong };

/// One size of one operation.
struct Result {
  Operation operation;
  size_t bytes;
  size_t count;
  Timing timing;
  Verdict verdict;
  std::string algorithm;  ///< "slots: why", as the library says it

  /// GB/s (10^9 bytes). None: of a barrier, or nccl-tests knows none.
  std::optional<double> algorithm_bandwidth() const;
  std::optional<double> bus_bandwidth(uint32_t ranks) const;
};

/// The circumstances of all results.
struct About {
  uint32_t ranks;
  std::string cpu;
  std::string system;
  std::string date;
  std::string transport;  ///< as NUPA_TRANSPORT says

  static About here(uint32_t ranks);
};

const char* name_of(Verdict verdict);
/// "float32, sum, in place".
std::string text_of(const BenchOptions& options);
/// Exact: "4 KiB", "4100 B".
std::string size_text(size_t bytes);
/// "slots".
std::string algorithm_name(const std::string& algorithm);

std::string table_head(const BenchOptions& options, const About& about);
std::string table_head(Operation operation);
std::string table_row(const Result& result, const About& about);
nlohmann::json json_of(const BenchOptions& options, const About& about, const std::vector<Result>& results);

}  // namespace nupa::cli::collectives
