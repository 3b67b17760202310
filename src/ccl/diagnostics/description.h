#pragma once
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "ccl/call/call.h"

namespace nupa::ccl {

/// What a rank has called, as it tells the others before it does it: the words of one cache line.
struct Description {
  /// An operator of the program, whatever it is.
  static constexpr uint8_t kFunction = 0xff;

  uint64_t number = 0;    ///< the communicator's calls are counted from 1 on
  uint64_t elements = 0;  ///< of this rank
  /// Sums of a hash of (sender, receiver, bytes), of what this rank gives and takes, where counts are lists. Over all
  /// ranks both are the same, or counts do not agree. Where all ranks have one list: `given` of that.
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
  /// Whether both may be of one operation, but for what sums over all ranks tell.
  bool agrees_with(const Description& other) const;
  /// "reduce of 100 float32, sum, to root 1".
  std::string text() const;
  /// "17th".
  std::string ordinal() const;
};
static_assert(sizeof(Description) == 64 && std::is_trivially_copyable_v<Description>);

/// Whether all ranks have to have one list of counts.
bool has_common_counts(const Description& description);

/// How many bytes one rank gives to each rank and takes from each, as its call says it: `ranks` of the one, then as
/// many of the other. Where all ranks have one list it is in the first half.
std::vector<uint64_t> flows_of(const Call& call, uint32_t rank, uint32_t ranks);

}  // namespace nupa::ccl
