// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Inputs that every rank can compute for all others, and the expected results.
#include <cstddef>
#include <string>
#include <vector>

#include "cli/ccl/call.h"

namespace nupa::cli::collectives {

/// An array repeats after this number of elements. It is not a power of two, so that a part in the wrong place is
/// found. It is short, so that large arrays are compared as fast as memory is read.
constexpr size_t kPeriod = 10007;

/// Returns the period of a rank's input. The values suit the operation: sums and products stay finite.
std::vector<std::byte> period_of(const Shape& shape, uint32_t rank);

/// The reduction of the inputs of ranks `begin` to `end`-1, over one period.
struct Reduced {
  std::vector<std::byte> period;
  std::vector<double> tolerance;  ///< for each element; empty: none
};
Reduced reduce_periods(const Shape& shape, uint32_t begin, uint32_t end, uint32_t ranks);

/// A call with a known result. The check uses the call's arrays as long as it lives.
class Check {
 public:
  /// `turn`: the number of this check, which changes the inputs so that the result of an earlier check is not correct
  /// by chance.
  Check(const Call& call, uint32_t rank, uint32_t ranks, uint64_t turn);

  /// Fills this rank's arrays for the call.
  void fill() const;
  /// Returns an error text after the call: the first wrong element, and the number of wrong ones. It is empty if all
  /// are correct.
  std::string verdict() const;

 private:
  /// A part of the result: the expected period, and the position in it where the part begins.
  struct Part {
    size_t at = 0;  ///< element of the output
    size_t count = 0;
    std::vector<std::byte> period;
    std::vector<double> tolerance;
    size_t start = 0;
  };
  std::vector<Part> parts() const;
  Part copied(uint32_t from, size_t at, size_t its_at) const;
  void compare(const Part& part, std::string* first, size_t* wrong) const;

  const Call& call_;
  uint32_t rank_;
  uint32_t ranks_;
  size_t start_;  ///< of all inputs, in their periods
};

}  // namespace nupa::cli::collectives
