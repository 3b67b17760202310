#pragma once
#include <cstdint>
#include <vector>

#include "ccl/task.h"

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

/// How many elements of an array are each rank's, and where they begin. Empty: `each`, one after the other.
struct Counts {
  size_t each = 0;
  std::vector<size_t> counts;
  std::vector<size_t> offsets;

  Blocks in_bytes() const {
    return {each, counts.empty() ? nullptr : counts.data(), counts.empty() ? nullptr : offsets.data()};
  }
};

/// A collective as the program called it, with its own copies of the program's lists. Counts and offsets are kept in
/// bytes.
struct Call {
  Operation operation = Operation::kBarrier;
  Reducer reducer{{Type::kUint8, Operator::kSum}};
  uint64_t factor = 0;  ///< what reducer.factor points to, where there is one
  const void* in = nullptr;
  void* out = nullptr;
  size_t elements = 0;  ///< of one rank's array: what each rank gives, or, scatter, gets
  uint32_t root = 0;
  Counts in_counts;
  Counts out_counts;
  bool equal =
      true;  ///< every rank knows by its own arguments how long all blocks are, for they are as long as its own

  Purpose purpose = Purpose::kItself;
  int64_t queued_ns = 0;  ///< when it came (CLOCK_MONOTONIC), of one that somebody observes and that is queued

  size_t bytes() const { return elements * reducer.element_bytes(); }
};

}  // namespace nupa::ccl
