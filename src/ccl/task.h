#pragma once
/// What collectives are asked to do, as algorithms have it. Lengths and offsets are in bytes.
#include <cstddef>
#include <cstdint>

#include "ccl/reduce/reduce.h"

namespace nupa::ccl {

/// A program's own operator: result[i] = result[i] op next[i], for i < elements of `type`. It has to be associative.
using UserFunction = void (*)(void* result, const void* next, size_t elements, int type, void* argument);

/// How elements become one, as one rank says it.
struct Reducer {
  Reduction reduction;
  const void* factor = nullptr;     ///< kPremultipliedSum: this rank's, one element
  UserFunction function = nullptr;  ///< instead of the operator
  void* argument = nullptr;

  size_t element_bytes() const { return size_of(reduction.type); }
};

/// Which part of an array is which rank's.
struct Blocks {
  size_t each = 0;                  ///< where there are no lengths: of every rank's, one after the other
  const size_t* lengths = nullptr;  ///< by rank
  const size_t* offsets = nullptr;  ///< by rank; with lengths

  bool are_equal() const { return lengths == nullptr; }
  size_t length(uint32_t rank) const { return lengths == nullptr ? each : lengths[rank]; }
  size_t offset(uint32_t rank) const { return offsets == nullptr ? rank * each : offsets[rank]; }
  size_t longest(uint32_t ranks) const {
    size_t longest = lengths == nullptr ? each : 0;
    for (uint32_t rank = 0; lengths != nullptr && rank < ranks; ++rank)
      if (lengths[rank] > longest) longest = lengths[rank];
    return longest;
  }
};

struct BroadcastTask {
  uint32_t root;
  void* data;
  size_t bytes;
};

/// gather: `out` and `blocks` are the root's; all_gather: everybody's, and the same.
struct GatherTask {
  uint32_t root;  ///< gather
  const void* in;
  size_t bytes;  ///< of this rank
  void* out;
  Blocks blocks;
  bool equal;  ///< all ranks know that all blocks are as long as this one's
};

struct ScatterTask {
  uint32_t root;
  const void* in;  ///< the root's, with `blocks`
  Blocks blocks;
  void* out;
  size_t bytes;  ///< of this rank
  bool equal;
};

struct ExchangeTask {
  const void* in;
  Blocks in_blocks;
  void* out;
  Blocks out_blocks;
  bool equal;
};

/// reduce: `out` is the root's; reduce_scatter: `blocks` say which part of `in` is whose; scan: neither.
struct ReduceTask {
  Reducer reducer;
  const void* in;
  void* out;
  size_t elements;  ///< of `in`
  uint32_t root = 0;
  Blocks blocks{};
  bool exclusive = false;  ///< exscan

  size_t bytes() const { return elements * reducer.element_bytes(); }
};

}  // namespace nupa::ccl
