#pragma once
/// What there is to be measured: operations, types and operators by their names.
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
  const char* name;  ///< as the library's functions are called
  bool is_total;     ///< its size is that of all ranks' blocks together, as nccl-tests has it
  bool reduces;
};
const OperationTraits& traits_of(Operation operation);
std::span<const Operation> all_operations();

/// Bytes that one rank's link has to carry in the best case, over the operation's size: by this nccl-tests makes its
/// bus bandwidth of the algorithm's. None: nccl-tests knows no such operation.
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
/// "a, b, c", for whoever asked for something else.
std::string operation_names();
std::string type_names();
std::string op_names();

}  // namespace nupa::cli::collectives
