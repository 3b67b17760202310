// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "ccl/error/cause.h"
#include "ccl/diagnostics/description.h"

namespace nupa::ccl {

/// The checking mode of a communicator: before each call, ranks exchange descriptions of it. All ranks get the same
/// table and therefore come to the same result.
class Checker {
 public:
  /// Runs a collective of the ranks without a check. Returns 0 or an errno value.
  using Run = std::function<int(Call& call)>;

  Checker(uint32_t rank, uint32_t ranks, Run run) : rank_(rank), ranks_(ranks), run_(std::move(run)) {}

  /// Compares the calls of all ranks. Returns no cause if they agree; EPROTO and the first rank that differs from most
  /// if they do not; otherwise the error of the exchange. When it returns EPROTO, all ranks have the text. One thread
  /// at a time.
  Cause check(const Call& call, uint64_t number);
  /// Describes the calls that do not agree, after check() has found some; otherwise empty. Thread-safe.
  std::string text() const;

 private:
  int exchange(const void* mine, void* all, size_t bytes);
  /// Compares the descriptions of all ranks. Returns no cause if they agree.
  Cause compare(const std::vector<Description>& table);
  bool counts_agree(const std::vector<Description>& table) const;
  /// Exchanges all counts, to name the ranks whose counts do not agree.
  Cause compare_counts(const Call& call, const Description& description);
  Cause disagree(uint32_t rank, std::string text);

  const uint32_t rank_;
  const uint32_t ranks_;
  const Run run_;
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace nupa::ccl
