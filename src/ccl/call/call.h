#pragma once
/// A collective as the program called it. It is the one form that a call has from the C function to the algorithm: C
/// functions fill it in, the executor queues it, the planner chooses by it, and algorithms read it. arrays.h says how
/// arrays are cut. One thread at a time.
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

/// For people: "all_reduce".
const char* name_of(Operation operation);
struct Call;
/// As the program called it: "all_gatherv", "comm_split".
const char* name_of(const Call& call);

/// What an operation is done for: the program called it, or it is part of another call.
enum class Purpose : uint8_t { kItself, kSplit, kDup, kDestroy };

/// Which part of an array is which rank's, in bytes.
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

/// The blocks of a call whose ranks do not all have equal ones.
struct BlockLists {
  Blocks in;
  Blocks out;
  std::vector<size_t> held;  ///< what they point to, unless somebody else holds it for as long as the call is there
};

/// Small and cheap to make: the smallest collectives take less time than it takes to clear a few cache lines.
struct Call {
  Operation operation = Operation::kBarrier;
  Purpose purpose = Purpose::kItself;
  /// Every rank knows by its own arguments how long all blocks are, for they are as long as its own.
  bool equal = true;
  uint8_t unused = 0;
  uint32_t root = 0;
  Reducer reducer{{Type::kUint8, Operator::kSum}};
  const void* in = nullptr;
  void* out = nullptr;  ///< broadcast: where `in` is
  size_t elements = 0;  ///< of one rank's array: what each rank gives, or, scatter, gets
  /// Null: all blocks are as long as this rank's array, one after the other; or they are another rank's to know.
  std::shared_ptr<const BlockLists> lists;

  /// scatter: the root's; all_to_all; reduce_scatter: which part of `in` is reduced for whom.
  Blocks in_blocks() const { return lists == nullptr ? Blocks{bytes()} : lists->in; }
  /// gather: the root's; all_gather; all_to_all.
  Blocks out_blocks() const { return lists == nullptr ? Blocks{bytes()} : lists->out; }
  size_t bytes() const { return elements * reducer.element_bytes(); }
  bool is_exclusive() const { return operation == Operation::kExscan; }
};

}  // namespace nupa::ccl
