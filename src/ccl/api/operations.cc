// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>

#include "ccl/api/handles.h"
#include "ccl/api/operators.h"

namespace nupa::ccl {
namespace {

static_assert(NUPA_CCL_FLOAT8_E5M2 + 1 == kTypes);
static_assert(NUPA_CCL_LOGICAL_XOR + 1 == kOperators);
static_assert(NUPA_CCL_AVERAGE == static_cast<int>(Operator::kAverage));
static_assert(NUPA_CCL_BIT_AND == static_cast<int>(Operator::kBitAnd));

constexpr const char* kNoIn = "in is null, but its count is not 0";
constexpr const char* kNoOut = "out is null, but its count is not 0";
constexpr const char* kNoData = "data is null, but its count is not 0";

/// Builds a Call from the program's arguments. `wrong` describes the first argument that is not valid.
struct Asked {
  nupa_ccl_comm* comm;
  Call call;
  BlockLists* lists = nullptr;  ///< the call's lists while they are built
  const char* wrong = nullptr;

  Asked(nupa_ccl_comm* on, Operation operation, nupa_ccl_type type) : comm(on) {
    call.operation = operation;
    if (comm == nullptr)
      refuse("comm is null");
    else if (type < 0 || static_cast<uint32_t>(type) >= kTypes)
      refuse("unknown element type");
    else
      call.reducer.reduction.type = static_cast<Type>(type);
  }

  uint32_t ranks() const { return comm->communicator->ranks(); }
  uint32_t rank() const { return comm->communicator->rank(); }
  size_t size() const { return call.reducer.element_bytes(); }
  bool is_root() const { return rank() == call.root; }
  void refuse(const char* why) { wrong = wrong == nullptr ? why : wrong; }

  void set_elements(size_t count) {
    if (wrong != nullptr) return;
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, size() * ranks(), &bytes) || bytes > SIZE_MAX / 2)
      return refuse("a count or offset is too large");
    call.elements = count;
  }
  void set_root(uint32_t root) {
    if (wrong == nullptr && root >= ranks()) refuse("root is out of range: it must be less than the number of ranks");
    call.root = root;
  }
  /// Rejects a null array that has elements.
  void need(const void* array, size_t elements, const char* why) {
    if (array == nullptr && elements > 0) refuse(why);
  }
  void set_arrays(const void* in, size_t in_elements, void* out, size_t out_elements) {
    if (wrong != nullptr) return;
    need(in, in_elements, kNoIn);
    need(out, out_elements, kNoOut);
    call.in = in;
    call.out = out;
  }
  /// Without offsets, the blocks follow each other.
  void set_counts(Blocks BlockLists::*which, const size_t* counts, const size_t* offsets, bool has_offsets) {
    if (wrong != nullptr) return;
    if (counts == nullptr || (has_offsets && offsets == nullptr)) return refuse("counts or offsets are null");
    if (lists == nullptr) {
      auto made = std::make_shared<BlockLists>();
      // Lengths and offsets of `in`, then those of `out`.
      made->held.resize(4 * size_t{ranks()});
      lists = made.get();
      call.lists = std::move(made);
    }
    size_t* const made = lists->held.data() + (which == &BlockLists::in ? 0 : 2 * size_t{ranks()});
    const size_t most = SIZE_MAX / 4 / size();
    size_t end = 0;
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      const size_t offset = has_offsets ? offsets[rank] : end;
      if (counts[rank] > most || offset > most) return refuse("a count or offset is too large");
      made[rank] = counts[rank] * size();
      made[ranks() + rank] = offset * size();
      end = offset + counts[rank];
    }
    lists->*which = {0, made, made + ranks()};
  }

  /// Length of the longest block. Callers only check whether it is 0; a sum of all blocks may overflow a size_t.
  size_t largest_of(Blocks BlockLists::*which) const { return lists == nullptr ? 0 : (lists->*which).longest(ranks()); }

  void set_op(nupa_ccl_op op, bool gives_parts) {
    if (wrong != nullptr) return;
    Reduction& reduction = call.reducer.reduction;
    if (op >= kOperators || op == static_cast<uint32_t>(Operator::kPremultipliedSum)) return set_made_op(op);
    reduction.op = static_cast<Operator>(op);
    if (!is_defined(reduction.op, reduction.type)) return refuse("the operator is defined for integers only");
    if (reduction.op != Operator::kAverage) return;
    if (gives_parts) return refuse("the average operator is not defined for scan and exscan");
    reduction.divisor = ranks();
  }
  void set_made_op(nupa_ccl_op op) {
    const auto made = MadeOperators::all().find(op);
    if (!made) return refuse("unknown operator");
    if (made->function != nullptr) {
      call.reducer.function = made->function;
      call.reducer.argument = made->argument;
      return;
    }
    if (made->type != call.reducer.reduction.type)
      return refuse("the operator's factor has another type than the elements");
    call.reducer.reduction.op = Operator::kPremultipliedSum;
    call.reducer.factor = made->factor;
  }

  int run(nupa_ccl_request** request) {
    if (wrong != nullptr) [[unlikely]]
      return report(EINVAL, wrong);
    return run_or_start(*comm->communicator, call, request);
  }
};

/// True if the caller waits for the call and the type is valid: then the call may run inline, as an InlineCall.
bool is_waited_for(nupa_ccl_comm* comm, nupa_ccl_type type, nupa_ccl_request** request) {
  return request == nullptr && comm != nullptr && t_group_depth == 0 && type >= 0 &&
         static_cast<uint32_t>(type) < kTypes;
}

/// Runs the call inline. Returns false, with nothing done, if it is too large or cannot run inline now.
bool done_at_once(nupa_ccl_comm* comm, const InlineCall& call, int* result) {
  if (!call.fits()) return false;
  const Communicator& communicator = *comm->communicator;
  *result = comm->communicator->run_line(call);
  if (*result > 0) [[unlikely]]
    report(communicator, *result);
  return *result != Communicator::kNotNow;
}

/// Returns false unless it is a built-in operator without a factor that is defined for the type.
bool set_plain_op(Reduction* reduction, nupa_ccl_op op, uint32_t ranks) {
  reduction->op = static_cast<Operator>(op);
  if (reduction->op == Operator::kAverage) reduction->divisor = ranks;
  return op < kOperators && reduction->op != Operator::kPremultipliedSum && is_defined(reduction->op, reduction->type);
}

}  // namespace
}  // namespace nupa::ccl

using namespace nupa::ccl;

extern "C" {

NUPA_EXPORT int nupa_ccl_barrier(nupa_ccl_comm* comm, nupa_ccl_request** request) {
  int result = 0;
  if (is_waited_for(comm, NUPA_CCL_UINT8, request) && done_at_once(comm, {.operation = Operation::kBarrier}, &result))
    return result;
  return Asked(comm, Operation::kBarrier, NUPA_CCL_UINT8).run(request);
}

NUPA_EXPORT int nupa_ccl_broadcast(void* data, size_t count, nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm,
                                   nupa_ccl_request** request) {
  if (is_waited_for(comm, type, request) && root < comm->communicator->ranks()) {
    int result = 0;
    const Reduction moved{static_cast<Type>(type), Operator::kSum};
    if (done_at_once(comm, {Operation::kBroadcast, data, data, count, moved, root}, &result)) return result;
  }
  Asked asked(comm, Operation::kBroadcast, type);
  asked.set_elements(count);
  asked.set_root(root);
  asked.need(data, count, kNoData);
  asked.set_arrays(data, count, data, count);
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_gather(const void* in, void* out, size_t count, nupa_ccl_type type, uint32_t root,
                                nupa_ccl_comm* comm, nupa_ccl_request** request) {
  Asked asked(comm, Operation::kGather, type);
  asked.set_elements(count);
  asked.set_root(root);
  if (asked.wrong == nullptr) asked.set_arrays(in, count, out, asked.is_root() ? count : 0);
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_gatherv(const void* in, size_t count, void* out, const size_t* counts, const size_t* offsets,
                                 nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm, nupa_ccl_request** request) {
  Asked asked(comm, Operation::kGather, type);
  asked.set_elements(count);
  asked.set_root(root);
  asked.call.equal = false;
  if (asked.wrong == nullptr && asked.is_root()) asked.set_counts(&BlockLists::out, counts, offsets, true);
  asked.set_arrays(in, count, out, asked.largest_of(&BlockLists::out));
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_scatter(const void* in, void* out, size_t count, nupa_ccl_type type, uint32_t root,
                                 nupa_ccl_comm* comm, nupa_ccl_request** request) {
  Asked asked(comm, Operation::kScatter, type);
  asked.set_elements(count);
  asked.set_root(root);
  if (asked.wrong == nullptr) asked.set_arrays(in, asked.is_root() ? count : 0, out, count);
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_scatterv(const void* in, const size_t* counts, const size_t* offsets, void* out, size_t count,
                                  nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm, nupa_ccl_request** request) {
  Asked asked(comm, Operation::kScatter, type);
  asked.set_elements(count);
  asked.set_root(root);
  asked.call.equal = false;
  if (asked.wrong == nullptr && asked.is_root()) asked.set_counts(&BlockLists::in, counts, offsets, true);
  asked.set_arrays(in, asked.largest_of(&BlockLists::in), out, count);
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_all_gather(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_comm* comm,
                                    nupa_ccl_request** request) {
  if (is_waited_for(comm, type, request)) {
    int result = 0;
    const Reduction moved{static_cast<Type>(type), Operator::kSum};
    if (done_at_once(comm, {Operation::kAllGather, in, out, count, moved, 0}, &result)) return result;
  }
  Asked asked(comm, Operation::kAllGather, type);
  asked.set_elements(count);
  asked.set_arrays(in, count, out, count);
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_all_gatherv(const void* in, void* out, const size_t* counts, const size_t* offsets,
                                     nupa_ccl_type type, nupa_ccl_comm* comm, nupa_ccl_request** request) {
  Asked asked(comm, Operation::kAllGather, type);
  asked.set_counts(&BlockLists::out, counts, offsets, true);
  if (asked.wrong == nullptr) asked.set_elements(counts[asked.rank()]);
  asked.call.equal = false;
  asked.set_arrays(in, asked.call.elements, out, asked.largest_of(&BlockLists::out));
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_all_to_all(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_comm* comm,
                                    nupa_ccl_request** request) {
  Asked asked(comm, Operation::kAllToAll, type);
  asked.set_elements(count);
  asked.set_arrays(in, count, out, count);
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_all_to_allv(const void* in, const size_t* in_counts, const size_t* in_offsets, void* out,
                                     const size_t* out_counts, const size_t* out_offsets, nupa_ccl_type type,
                                     nupa_ccl_comm* comm, nupa_ccl_request** request) {
  Asked asked(comm, Operation::kAllToAll, type);
  asked.call.equal = false;
  asked.set_counts(&BlockLists::in, in_counts, in_offsets, true);
  asked.set_counts(&BlockLists::out, out_counts, out_offsets, true);
  asked.set_arrays(in, asked.largest_of(&BlockLists::in), out, asked.largest_of(&BlockLists::out));
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_reduce(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op,
                                uint32_t root, nupa_ccl_comm* comm, nupa_ccl_request** request) {
  Asked asked(comm, Operation::kReduce, type);
  asked.set_elements(count);
  asked.set_root(root);
  asked.set_op(op, false);
  if (asked.wrong == nullptr) asked.set_arrays(in, count, out, asked.is_root() ? count : 0);
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_all_reduce(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op,
                                    nupa_ccl_comm* comm, nupa_ccl_request** request) {
  if (is_waited_for(comm, type, request)) {
    int result = 0;
    InlineCall line{Operation::kAllReduce, in, out, count, {static_cast<Type>(type), Operator::kSum}, 0};
    if (set_plain_op(&line.reduction, op, comm->communicator->ranks()) && done_at_once(comm, line, &result))
      return result;
  }
  Asked asked(comm, Operation::kAllReduce, type);
  asked.set_elements(count);
  asked.set_op(op, false);
  asked.set_arrays(in, count, out, count);
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_reduce_scatter(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op,
                                        nupa_ccl_comm* comm, nupa_ccl_request** request) {
  Asked asked(comm, Operation::kReduceScatter, type);
  asked.set_elements(count);
  asked.set_op(op, false);
  asked.set_arrays(in, count, out, count);
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_reduce_scatterv(const void* in, void* out, const size_t* counts, nupa_ccl_type type,
                                         nupa_ccl_op op, nupa_ccl_comm* comm, nupa_ccl_request** request) {
  Asked asked(comm, Operation::kReduceScatter, type);
  asked.set_counts(&BlockLists::in, counts, nullptr, false);
  if (asked.wrong == nullptr) asked.set_elements(counts[asked.rank()]);
  asked.set_op(op, false);
  asked.call.equal = false;
  asked.set_arrays(in, asked.largest_of(&BlockLists::in), out, asked.call.elements);
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_scan(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op,
                              nupa_ccl_comm* comm, nupa_ccl_request** request) {
  Asked asked(comm, Operation::kScan, type);
  asked.set_elements(count);
  asked.set_op(op, true);
  asked.set_arrays(in, count, out, count);
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_exscan(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op,
                                nupa_ccl_comm* comm, nupa_ccl_request** request) {
  Asked asked(comm, Operation::kExscan, type);
  asked.set_elements(count);
  asked.set_op(op, true);
  if (asked.wrong == nullptr) asked.set_arrays(in, count, out, asked.rank() == 0 ? 0 : count);
  return asked.run(request);
}

NUPA_EXPORT int nupa_ccl_op_create(nupa_ccl_function function, void* argument, nupa_ccl_op* op) {
  if (function == nullptr || op == nullptr) return report(EINVAL, "function or op is null");
  const int error = MadeOperators::all().add({.function = function, .argument = argument}, op);
  return error == 0 ? 0 : report(error, "too many operators: nupa_ccl_op_destroy() frees one");
}

NUPA_EXPORT int nupa_ccl_op_create_premultiplied_sum(const void* factor, nupa_ccl_type type, nupa_ccl_op* op) {
  if (factor == nullptr || op == nullptr) return report(EINVAL, "factor or op is null");
  if (type < 0 || static_cast<uint32_t>(type) >= kTypes) return report(EINVAL, "unknown element type");
  MadeOperator made{.type = static_cast<Type>(type)};
  __builtin_memcpy(&made.factor, factor, size_of(made.type));
  const int error = MadeOperators::all().add(made, op);
  return error == 0 ? 0 : report(error, "too many operators: nupa_ccl_op_destroy() frees one");
}

NUPA_EXPORT int nupa_ccl_op_destroy(nupa_ccl_op op) {
  return MadeOperators::all().remove(op) ? 0 : report(EINVAL, "unknown operator");
}

}  // extern "C"
