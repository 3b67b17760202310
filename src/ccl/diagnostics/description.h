// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "ccl/call/call.h"

namespace nupa::ccl {

/// A rank's call, as it is sent to the other ranks before the call runs. It fits into one cache line.
struct Description {
  /// The value of `op` for all functions of the program.
  static constexpr uint8_t kFunction = 0xff;

  uint64_t number = 0;    ///< of the call in its communicator, counted from 1
  uint64_t elements = 0;  ///< of this rank
  /// For lists of counts: sums of the hashes of (sender, receiver, bytes) of what this rank gives and takes. If the
  /// counts agree, the totals of both over all ranks are equal. For an operation in which all ranks pass the same list,
  /// `given` is the hash of that list.
  uint64_t given = 0;
  uint64_t taken = 0;
  uint32_t root = 0;
  Operation operation = Operation::kBarrier;
  Purpose purpose = Purpose::kItself;
  uint8_t type = 0;
  uint8_t op = 0;
  uint8_t equal = 1;
  uint8_t unused[23] = {};

  static Description of(const Call& call, uint64_t number, uint32_t rank, uint32_t ranks);
  /// Returns whether both may describe the same operation. The sums are not compared here.
  bool agrees_with(const Description& other) const;
  /// For error texts: "reduce of 100 float32, sum, root 1".
  std::string text() const;
  /// The number for error texts: "17th".
  std::string ordinal() const;
};
static_assert(sizeof(Description) == 64 && std::is_trivially_copyable_v<Description>);

/// Returns whether all ranks have to pass the same list of counts.
bool has_common_counts(const Description& description);

/// The bytes that a call of `rank` gives to each rank, then those that it takes from each rank: 2 * `ranks` values. If
/// all ranks pass the same list, the first half is that list.
std::vector<uint64_t> flows_of(const Call& call, uint32_t rank, uint32_t ranks);

}  // namespace nupa::ccl
