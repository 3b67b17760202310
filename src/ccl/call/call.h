// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A collective as the program called it. It is the one form that a call has from the C function to the algorithm: C
/// functions fill it in, the executor queues it, the planner chooses by it, and algorithms read it. arrays.h divides
/// arrays among ranks. Not thread-safe.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ccl/reduce/reducer.h"

namespace nupa::ccl {

enum class Operation : uint8_t {
  kBarrier,
  kBroadcast,
  kGather,
  kScatter,
  kAllGather,
  kAllToAll,
  kReduce,
  kAllReduce,
  kReduceScatter,
  kScan,
  kExscan,
};
constexpr uint32_t kOperations = 11;
inline bool reduces(Operation operation) { return operation >= Operation::kReduce; }

/// The operation's name in messages: "all_reduce".
const char* name_of(Operation operation);
struct Call;
/// The name of the function that the program called: "all_gatherv", "comm_split".
const char* name_of(const Call& call);

/// Why an operation runs: the program called it (kItself), or it is part of another call.
enum class Purpose : uint8_t { kItself, kSplit, kDup, kDestroy };

/// Which part of an array belongs to which rank, in bytes.
struct Blocks {
  size_t each = 0;                  ///< length of every block where `lengths` is null; the blocks follow each other
  const size_t* lengths = nullptr;  ///< by rank
  const size_t* offsets = nullptr;  ///< by rank; set if `lengths` is set

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

/// The blocks of a call whose blocks may differ in length.
struct BlockLists {
  Blocks in;
  Blocks out;
  std::vector<size_t> held;  ///< the lists that `in` and `out` point to; empty if the caller keeps them
};

/// A call is small and cheap to construct: the smallest collectives take less time than clearing a few cache lines.
struct Call {
  Operation operation = Operation::kBarrier;
  Purpose purpose = Purpose::kItself;
  /// True if all blocks have the length of this rank's own, so that each rank can compute all lengths.
  bool equal = true;
  uint8_t unused = 0;
  uint32_t root = 0;
  Reducer reducer{{Type::kUint8, Operator::kSum}};
  const void* in = nullptr;
  void* out = nullptr;  ///< the same as `in` in a broadcast
  size_t elements = 0;  ///< of one rank's array: what this rank contributes or, in scatter, receives
  /// Null: all blocks have the length of this rank's array and follow each other, or only the root has the lists.
  std::shared_ptr<const BlockLists> lists;

  /// The blocks of `in`, for scatter (at the root), all_to_all, and reduce_scatter (the part that each rank receives
  /// reduced).
  Blocks in_blocks() const { return lists == nullptr ? Blocks{bytes()} : lists->in; }
  /// The blocks of `out`, for gather (at the root), all_gather and all_to_all.
  Blocks out_blocks() const { return lists == nullptr ? Blocks{bytes()} : lists->out; }
  size_t bytes() const { return elements * reducer.element_bytes(); }
  bool is_exclusive() const { return operation == Operation::kExscan; }
};

}  // namespace nupa::ccl
