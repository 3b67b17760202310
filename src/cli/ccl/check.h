#pragma once
/// Inputs that every rank knows of all others, and what has to come of them.
#include <cstddef>
#include <string>
#include <vector>

#include "cli/ccl/call.h"

namespace nupa::cli::collectives {

/// One element every so many comes again in an array. No power of two, so that a piece that arrives in another's place
/// is seen; and short, so that large arrays are compared as fast as memory is read.
constexpr size_t kPeriod = 10007;

/// The period of a rank's input, as the operation `shape` needs it: sums and products that stay numbers.
std::vector<std::byte> period_of(const Shape& shape, uint32_t rank);

/// What comes of the inputs of ranks `begin` to `end`-1, over one period.
struct Reduced {
  std::vector<std::byte> period;
  std::vector<double> tolerance;  ///< of each element; empty: none
};
Reduced reduce_periods(const Shape& shape, uint32_t begin, uint32_t end, uint32_t ranks);

/// A call whose result is known. As long as it lives its arrays are the check's.
class Check {
 public:
  /// `turn`: of all checks, so that what is left of an earlier one is not right by chance.
  Check(const Call& call, uint32_t rank, uint32_t ranks, uint64_t turn);

  /// This rank's arrays as they have to be before the call.
  void fill() const;
  /// What is wrong with them after it: the first wrong element, and how many; empty: nothing.
  std::string verdict() const;

 private:
  /// A part of the result: whose period it shows, beginning where in it.
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
