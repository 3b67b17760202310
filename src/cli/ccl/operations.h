// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The operations, types and operators that can be measured, by name.
#include <nupa/ccl.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nupa::cli::collectives {

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

struct OperationTraits {
  const char* name;  ///< the name of the library's function
  bool is_total;     ///< its size is the sum of all ranks' blocks, as in nccl-tests
  bool reduces;
};
const OperationTraits& traits_of(Operation operation);
std::span<const Operation> all_operations();

/// Returns the bytes that one rank's link carries in the best case, divided by the operation's size. nccl-tests
/// multiplies the algorithm's bandwidth by it to get the bus bandwidth. Returns nothing if nccl-tests does not have the
/// operation.
std::optional<double> bus_factor(Operation operation, uint32_t ranks);

struct TypeTraits {
  nupa_ccl_type type;
  const char* name;
  size_t size;
};
const TypeTraits& traits_of(nupa_ccl_type type);
inline bool is_integer(nupa_ccl_type type) { return type <= NUPA_CCL_UINT64; }

const char* name_of(nupa_ccl_builtin_op op);

std::optional<Operation> operation_named(std::string_view name);
std::optional<nupa_ccl_type> type_named(std::string_view name);
std::optional<nupa_ccl_builtin_op> op_named(std::string_view name);
/// Return "a, b, c", for the error text about an unknown name.
std::string operation_names();
std::string type_names();
std::string op_names();

}  // namespace nupa::cli::collectives
