// SPDX-License-Identifier: Apache-2.0
#include "cli/ccl/operations.h"

#include <algorithm>
#include <array>

namespace nupa::cli::collectives {
namespace {

using enum Operation;

constexpr std::array kTraits = {
    OperationTraits{"barrier", false, false},      OperationTraits{"broadcast", false, false},
    OperationTraits{"gather", true, false},        OperationTraits{"scatter", true, false},
    OperationTraits{"all_gather", true, false},    OperationTraits{"all_to_all", true, false},
    OperationTraits{"reduce", false, true},        OperationTraits{"all_reduce", false, true},
    OperationTraits{"reduce_scatter", true, true}, OperationTraits{"scan", false, true},
    OperationTraits{"exscan", false, true},
};
constexpr std::array kAll = {kBarrier, kBroadcast, kGather,        kScatter, kAllGather, kAllToAll,
                             kReduce,  kAllReduce, kReduceScatter, kScan,    kExscan};

constexpr std::array kTypes = {
    TypeTraits{NUPA_CCL_INT8, "int8", 1},
    TypeTraits{NUPA_CCL_UINT8, "uint8", 1},
    TypeTraits{NUPA_CCL_INT16, "int16", 2},
    TypeTraits{NUPA_CCL_UINT16, "uint16", 2},
    TypeTraits{NUPA_CCL_INT32, "int32", 4},
    TypeTraits{NUPA_CCL_UINT32, "uint32", 4},
    TypeTraits{NUPA_CCL_INT64, "int64", 8},
    TypeTraits{NUPA_CCL_UINT64, "uint64", 8},
    TypeTraits{NUPA_CCL_FLOAT16, "float16", 2},
    TypeTraits{NUPA_CCL_BFLOAT16, "bfloat16", 2},
    TypeTraits{NUPA_CCL_FLOAT32, "float32", 4},
    TypeTraits{NUPA_CCL_FLOAT64, "float64", 8},
    TypeTraits{NUPA_CCL_FLOAT8_E4M3, "float8_e4m3", 1},
    TypeTraits{NUPA_CCL_FLOAT8_E5M2, "float8_e5m2", 1},
};

struct NamedOp {
  nupa_ccl_builtin_op op;
  const char* name;
};
constexpr std::array kOps = {
    NamedOp{NUPA_CCL_SUM, "sum"},
    NamedOp{NUPA_CCL_PRODUCT, "product"},
    NamedOp{NUPA_CCL_MIN, "min"},
    NamedOp{NUPA_CCL_MAX, "max"},
    NamedOp{NUPA_CCL_AVERAGE, "average"},
    NamedOp{NUPA_CCL_BIT_AND, "bit_and"},
    NamedOp{NUPA_CCL_BIT_OR, "bit_or"},
    NamedOp{NUPA_CCL_BIT_XOR, "bit_xor"},
    NamedOp{NUPA_CCL_LOGICAL_AND, "logical_and"},
    NamedOp{NUPA_CCL_LOGICAL_OR, "logical_or"},
    NamedOp{NUPA_CCL_LOGICAL_XOR, "logical_xor"},
};

/// Returns the entry with this name, or the table's end.
template <class Table>
auto find(const Table& table, std::string_view name) {
  return std::find_if(table.begin(), table.end(), [&](const auto& entry) { return name == entry.name; });
}

template <class Table>
std::string names(const Table& table) {
  std::string all;
  for (const auto& entry : table) {
    if (!all.empty()) all += ", ";
    all += entry.name;
  }
  return all;
}

}  // namespace

const OperationTraits& traits_of(Operation operation) { return kTraits[static_cast<size_t>(operation)]; }

std::span<const Operation> all_operations() { return kAll; }

std::optional<double> bus_factor(Operation operation, uint32_t ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (operation) {
    case kAllReduce:
      return 2 * others;
    case kGather:
    case kScatter:
    case kAllGather:
    case kAllToAll:
    case kReduceScatter:
      return others;
    case kBroadcast:
    case kReduce:
      return 1;
    default:
      return {};
  }
}

const TypeTraits& traits_of(nupa_ccl_type type) { return kTypes[static_cast<size_t>(type)]; }

const char* name_of(nupa_ccl_builtin_op op) {
  return std::find_if(kOps.begin(), kOps.end(), [&](const NamedOp& named) { return named.op == op; })->name;
}

std::optional<Operation> operation_named(std::string_view name) {
  const auto found = find(kTraits, name);
  if (found == kTraits.end()) return {};
  return kAll[static_cast<size_t>(found - kTraits.begin())];
}

std::optional<nupa_ccl_type> type_named(std::string_view name) {
  const auto found = find(kTypes, name);
  if (found == kTypes.end()) return {};
  return found->type;
}

std::optional<nupa_ccl_builtin_op> op_named(std::string_view name) {
  const auto found = find(kOps, name);
  if (found == kOps.end()) return {};
  return found->op;
}

std::string operation_names() { return names(kTraits); }
std::string type_names() { return names(kTypes); }
std::string op_names() { return names(kOps); }

}  // namespace nupa::cli::collectives
