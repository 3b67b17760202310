// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/process_group.h"

#include <optional>
#include <set>

namespace nupa::torch_backend {
namespace {

/// In bytes. From this size on, passing an operation to the group's thread costs less than a tenth of the operation.
constexpr size_t kLargeBytes = 1 << 20;

/// The process groups of this process. This is never freed, because some groups live until the process ends.
struct Alive {
  std::mutex mutex;
  std::set<ProcessGroupNupa*> groups;

  static Alive& all() {
    static auto* const alive = new Alive;
    return *alive;
  }
};

/// Rank 0 creates an id, and the others read it from the store. A program's next group with the same name may use the
/// same store, so each rank counts its calls.
nupa_ccl_unique_id exchange_id(c10d::Store& store, int rank) {
  const int64_t number = store.add("nupa/begun/" + std::to_string(rank), 1);
  const std::string key = "nupa/id/" + std::to_string(number);
  nupa_ccl_unique_id id;
  if (rank == 0) {
    TORCH_CHECK(nupa_ccl_get_unique_id(&id) == 0, "nupa: ", nupa_ccl_error_text());
    store.set(key, std::vector<uint8_t>(std::begin(id.bytes), std::end(id.bytes)));
    return id;
  }
  const std::vector<uint8_t> bytes = store.get(key);
  TORCH_CHECK(bytes.size() == sizeof id.bytes, "nupa: the unique id in the store has ", bytes.size(), " bytes");
  std::copy(bytes.begin(), bytes.end(), std::begin(id.bytes));
  return id;
}

std::vector<size_t> offsets_of(const std::vector<size_t>& counts) {
  std::vector<size_t> offsets;
  size_t end = 0;
  for (const size_t count : counts) {
    offsets.push_back(end);
    end += count;
  }
  return offsets;
}

/// Returns the number of elements of each part in a reduction.
std::vector<size_t> counts_of(const Flat& flat, const Reduction& reduction) {
  std::vector<size_t> counts;
  for (const at::Tensor& part : flat.parts())
    counts.push_back(static_cast<size_t>(part.numel()) * reduction.per_element);
  return counts;
}

void check_same_type(const char* call, const Flat& one, const Flat& other) {
  TORCH_CHECK_TYPE(one.type() == other.type(), "nupa: ", call, ": tensors have different types: ", one.type(), " and ",
                   other.type());
}

void check_elements(const char* call, const char* which, size_t elements, size_t wanted) {
  TORCH_CHECK_VALUE(elements == wanted, "nupa: ", call, ": ", which, " has ", elements, " elements, expected ", wanted);
}

/// Returns the bytes for each rank if a tensor is split along its first dimension.
std::vector<size_t> split_bytes(const char* call, const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                size_t ranks) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const size_t row_bytes = rows == 0 ? 0 : tensor.nbytes() / static_cast<size_t>(rows);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(static_cast<size_t>(rows) % ranks == 0, "nupa: ", call, ": ", rows,
                      " rows cannot be split equally among ", ranks, " ranks");
    return std::vector<size_t>(ranks, static_cast<size_t>(rows) / ranks * row_bytes);
  }
  TORCH_CHECK_VALUE(splits.size() == ranks, "nupa: ", call, ": ", splits.size(), " splits for ", ranks, " ranks");
  std::vector<size_t> bytes;
  int64_t sum = 0;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "nupa: ", call, ": a split is negative");
    bytes.push_back(static_cast<size_t>(split) * row_bytes);
    sum += split;
  }
  TORCH_CHECK_VALUE(sum == rows, "nupa: ", call, ": the splits sum to ", sum, " rows, the tensor has ", rows);
  return bytes;
}

Tensors joined(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

/// The plan of one call.
class ProcessGroupNupa::Plan {
 public:
  template <typename Options>
  Plan(c10d::OpType op, const char* name, const Options& options, size_t bytes)
      : type(op), call(name), at_once(is_async(options) && bytes >= kLargeBytes) {}

  c10d::OpType type;
  const char* call;
  bool at_once;  ///< it pays to begin before a thread waits
  Tensors results;
  Collective::Body body;
};

ProcessGroupNupa::ProcessGroupNupa(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   std::chrono::milliseconds timeout)
    : Base(rank, size), timeout_(timeout) {
  const nupa_ccl_unique_id id = exchange_id(*store, rank);
  std::string error;
  group_ = Group::join(id, static_cast<uint32_t>(rank), static_cast<uint32_t>(size), timeout, &error);
  if (group_ == nullptr) std::rethrow_exception(communication_error("nupa: " + error));
  Alive& alive = Alive::all();
  std::lock_guard lock(alive.mutex);
  alive.groups.insert(this);
}

ProcessGroupNupa::~ProcessGroupNupa() {
  shutdown();
  Alive& alive = Alive::all();
  std::lock_guard lock(alive.mutex);
  alive.groups.erase(this);
}

void ProcessGroupNupa::shut_all_down() {
  Alive& alive = Alive::all();
  std::lock_guard lock(alive.mutex);
  for (ProcessGroupNupa* const group : alive.groups) group->shutdown();
}

void ProcessGroupNupa::shutdown() {
  std::shared_ptr<Group> left;
  {
    std::lock_guard lock(mutex_);
    left.swap(group_);
  }
  if (left != nullptr) Group::retire(std::move(left));
}

void ProcessGroupNupa::abort() {
  std::lock_guard lock(mutex_);
  if (group_ != nullptr) group_->abort();
}

void ProcessGroupNupa::setTimeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK_NOT_IMPLEMENTED(timeout == timeout_,
                              "nupa: the timeout of a process group cannot be changed after its creation");
}

std::shared_ptr<Group> ProcessGroupNupa::group(const char* call) const {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(group_ != nullptr, "nupa: ", call, ": the process group was destroyed");
  return group_;
}

uint32_t ProcessGroupNupa::root(const char* call, int64_t rank) const {
  TORCH_CHECK_VALUE(rank >= 0 && rank < getSize(), "nupa: ", call, ": no such rank: ", rank);
  return static_cast<uint32_t>(rank);
}

ProcessGroupNupa::Work ProcessGroupNupa::begin(Plan plan) {
  const std::shared_ptr<Group> on = group(plan.call);
  auto operation = std::make_shared<Collective>(on, plan.call, std::move(plan.results), std::move(plan.body));
  sequence_.fetch_add(1, std::memory_order_relaxed);
  on->queue().add(operation);
  if (plan.at_once) on->queue().hasten();
  return c10::make_intrusive<NupaWork>(getRank(), plan.type, std::move(operation));
}

ProcessGroupNupa::Work ProcessGroupNupa::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  Flat flat(only("broadcast", tensors));
  Plan plan(c10d::OpType::BROADCAST, "broadcast", options, flat.bytes());
  plan.results = tensors;
  plan.body = [flat, root = root("broadcast", options.rootRank)](nupa_ccl_comm* comm) mutable {
    flat.load();
    const int error = nupa_ccl_broadcast(flat.data(), flat.bytes(), NUPA_CCL_UINT8, root, comm, nullptr);
    if (error == 0) flat.store();
    return error;
  };
  return begin(std::move(plan));
}

namespace {

Collective::Body all_reduce_body(const char* call, const at::Tensor& tensor, const c10d::ReduceOp& op) {
  Flat flat(tensor);
  auto reduction = std::make_shared<Reduction>(call, op, flat.type());
  return [flat, reduction](nupa_ccl_comm* comm) mutable {
    flat.load();
    const int error = nupa_ccl_all_reduce(flat.data(), flat.data(), flat.elements() * reduction->per_element,
                                          reduction->type, reduction->op, comm, nullptr);
    if (error == 0) flat.store();
    return error;
  };
}

Collective::Body all_gather_body(const char* call, const Tensors& outputs, const at::Tensor& input, size_t rank) {
  Flat out(outputs);
  Flat in(input);
  check_same_type(call, out, in);
  check_elements(call, "the input", in.elements(), static_cast<size_t>(outputs[rank].numel()));
  const bool is_equal = out.parts_are_equal();
  return [out, in, is_equal](nupa_ccl_comm* comm) mutable {
    in.load();
    int error = 0;
    if (is_equal) {
      error = nupa_ccl_all_gather(in.data(), out.data(), in.bytes(), NUPA_CCL_UINT8, comm, nullptr);
    } else {
      const std::vector<size_t> counts = out.sizes();
      error = nupa_ccl_all_gatherv(in.data(), out.data(), counts.data(), offsets_of(counts).data(), NUPA_CCL_UINT8,
                                   comm, nullptr);
    }
    if (error == 0) out.store();
    return error;
  };
}

Collective::Body all_gather_into_body(const char* call, const at::Tensor& output, const at::Tensor& input,
                                      size_t ranks) {
  check(call, output);
  check(call, input);
  Flat out(output);
  Flat in(input);
  check_same_type(call, out, in);
  check_elements(call, "the output", out.elements(), in.elements() * ranks);
  return [out, in](nupa_ccl_comm* comm) mutable {
    in.load();
    const int error = nupa_ccl_all_gather(in.data(), out.data(), in.bytes(), NUPA_CCL_UINT8, comm, nullptr);
    if (error == 0) out.store();
    return error;
  };
}

/// `inputs` has a tensor for each rank, or one tensor with the elements for all ranks.
Collective::Body reduce_scatter_body(const char* call, const at::Tensor& output, const Tensors& inputs,
                                     const c10d::ReduceOp& op) {
  Flat out(output);
  Flat in(inputs);
  check_same_type(call, out, in);
  auto reduction = std::make_shared<Reduction>(call, op, out.type());
  const bool is_equal = in.parts_are_equal();
  return [out, in, reduction, is_equal](nupa_ccl_comm* comm) mutable {
    in.load();
    int error = 0;
    if (is_equal)
      error = nupa_ccl_reduce_scatter(in.data(), out.data(), out.elements() * reduction->per_element, reduction->type,
                                      reduction->op, comm, nullptr);
    else
      error = nupa_ccl_reduce_scatterv(in.data(), out.data(), counts_of(in, *reduction).data(), reduction->type,
                                       reduction->op, comm, nullptr);
    if (error == 0) out.store();
    return error;
  };
}

Collective::Body reduce_scatter_from_body(const char* call, const at::Tensor& output, const at::Tensor& input,
                                          const c10d::ReduceOp& op, size_t ranks) {
  check(call, output);
  check(call, input);
  check_elements(call, "the input", static_cast<size_t>(input.numel()), static_cast<size_t>(output.numel()) * ranks);
  return reduce_scatter_body(call, output, {input}, op);
}

/// Runs the bodies one after the other.
Collective::Body in_turn(std::vector<Collective::Body> bodies) {
  return [bodies = std::move(bodies)](nupa_ccl_comm* comm) {
    for (const Collective::Body& body : bodies)
      if (const int error = body(comm); error != 0) return error;
    return 0;
  };
}

}  // namespace

ProcessGroupNupa::Work ProcessGroupNupa::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  Plan plan(c10d::OpType::ALLREDUCE, "all_reduce", options, tensor.nbytes());
  plan.results = tensors;
  plan.body = all_reduce_body("all_reduce", tensor, options.reduceOp);
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::allreduce_coalesced(Tensors& tensors,
                                                             const c10d::AllreduceCoalescedOptions& options) {
  Plan plan(c10d::OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", options, kLargeBytes);
  plan.results = tensors;
  std::vector<Collective::Body> bodies;
  for (const at::Tensor& tensor : tensors) {
    check("all_reduce_coalesced", tensor);
    bodies.push_back(all_reduce_body("all_reduce_coalesced", tensor, options.reduceOp));
  }
  plan.body = in_turn(std::move(bodies));
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Flat flat(only("reduce", tensors));
  Plan plan(c10d::OpType::REDUCE, "reduce", options, flat.bytes());
  plan.results = tensors;
  auto reduction = std::make_shared<Reduction>("reduce", options.reduceOp, flat.type());
  const uint32_t to = root("reduce", options.rootRank);
  plan.body = [flat, reduction, to, is_root = options.rootRank == getRank()](nupa_ccl_comm* comm) mutable {
    flat.load();
    const int error =
        nupa_ccl_reduce(flat.data(), is_root ? flat.data() : nullptr, flat.elements() * reduction->per_element,
                        reduction->type, reduction->op, to, comm, nullptr);
    if (error == 0 && is_root) flat.store();
    return error;
  };
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::allgather(TensorLists& outputs, Tensors& inputs,
                                                   const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only("all_gather", inputs);
  TORCH_CHECK_VALUE(outputs.size() == 1, "nupa: all_gather: expected one list of outputs");
  check_list("all_gather", outputs[0], static_cast<size_t>(getSize()));
  Plan plan(c10d::OpType::ALLGATHER, "all_gather", options, input.nbytes());
  plan.results = outputs[0];
  plan.body = all_gather_body("all_gather", outputs[0], input, static_cast<size_t>(getRank()));
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                         const c10d::AllgatherOptions& options) {
  Plan plan(c10d::OpType::_ALLGATHER_BASE, "all_gather_into_tensor", options, input.nbytes());
  plan.results = {output};
  plan.body = all_gather_into_body("all_gather_into_tensor", output, input, static_cast<size_t>(getSize()));
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                             const c10d::AllgatherOptions& options) {
  constexpr const char* kCall = "all_gather_coalesced";
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(getSize()), "nupa: ", kCall,
                    ": expected a list of outputs for each rank");
  Plan plan(c10d::OpType::ALLGATHER_COALESCED, kCall, options, kLargeBytes);
  plan.results = joined(outputs);
  std::vector<Collective::Body> bodies;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_ranks;
    for (const Tensors& list : outputs) {
      TORCH_CHECK_VALUE(list.size() == inputs.size(), "nupa: ", kCall, ": got ", list.size(), " outputs for ",
                        inputs.size(), " inputs");
      of_ranks.push_back(list[i]);
    }
    check(kCall, inputs[i]);
    check_list(kCall, of_ranks, outputs.size());
    bodies.push_back(all_gather_body(kCall, of_ranks, inputs[i], static_cast<size_t>(getRank())));
  }
  plan.body = in_turn(std::move(bodies));
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                         const c10d::AllgatherOptions& options) {
  constexpr const char* kCall = "all_gather_into_tensor_coalesced";
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "nupa: ", kCall, ": got ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
  Plan plan(c10d::OpType::ALLGATHER_COALESCED, kCall, options, kLargeBytes);
  plan.results = outputs;
  std::vector<Collective::Body> bodies;
  for (size_t i = 0; i < inputs.size(); ++i)
    bodies.push_back(all_gather_into_body(kCall, outputs[i], inputs[i], static_cast<size_t>(getSize())));
  plan.body = in_turn(std::move(bodies));
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::gather(TensorLists& outputs, Tensors& inputs,
                                                const c10d::GatherOptions& options) {
  Flat in(only("gather", inputs));
  Plan plan(c10d::OpType::GATHER, "gather", options, in.bytes());
  const uint32_t to = root("gather", options.rootRank);
  std::optional<Flat> out;
  if (options.rootRank == getRank()) {
    TORCH_CHECK_VALUE(outputs.size() == 1, "nupa: gather: expected one list of outputs at the root");
    check_list("gather", outputs[0], static_cast<size_t>(getSize()));
    out.emplace(outputs[0]);
    check_same_type("gather", *out, in);
    for (const at::Tensor& part : outputs[0])
      check_elements("gather", "an output", static_cast<size_t>(part.numel()), in.elements());
    plan.results = outputs[0];
  }
  plan.body = [in, out, to](nupa_ccl_comm* comm) mutable {
    in.load();
    const int error =
        nupa_ccl_gather(in.data(), out ? out->data() : nullptr, in.bytes(), NUPA_CCL_UINT8, to, comm, nullptr);
    if (error == 0 && out) out->store();
    return error;
  };
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::scatter(Tensors& outputs, TensorLists& inputs,
                                                 const c10d::ScatterOptions& options) {
  Flat out(only("scatter", outputs));
  Plan plan(c10d::OpType::SCATTER, "scatter", options, out.bytes());
  plan.results = outputs;
  const uint32_t from = root("scatter", options.rootRank);
  std::optional<Flat> in;
  if (options.rootRank == getRank()) {
    TORCH_CHECK_VALUE(inputs.size() == 1, "nupa: scatter: expected one list of inputs at the root");
    check_list("scatter", inputs[0], static_cast<size_t>(getSize()));
    in.emplace(inputs[0]);
    check_same_type("scatter", out, *in);
    for (const at::Tensor& part : inputs[0])
      check_elements("scatter", "an input", static_cast<size_t>(part.numel()), out.elements());
  }
  plan.body = [in, out, from](nupa_ccl_comm* comm) mutable {
    if (in) in->load();
    const int error =
        nupa_ccl_scatter(in ? in->data() : nullptr, out.data(), out.bytes(), NUPA_CCL_UINT8, from, comm, nullptr);
    if (error == 0) out.store();
    return error;
  };
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                        const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only("reduce_scatter", outputs);
  TORCH_CHECK_VALUE(inputs.size() == 1, "nupa: reduce_scatter: expected one list of inputs");
  check_list("reduce_scatter", inputs[0], static_cast<size_t>(getSize()));
  check_elements("reduce_scatter", "the output", static_cast<size_t>(output.numel()),
                 static_cast<size_t>(inputs[0][static_cast<size_t>(getRank())].numel()));
  Plan plan(c10d::OpType::REDUCE_SCATTER, "reduce_scatter", options, output.nbytes());
  plan.results = outputs;
  plan.body = reduce_scatter_body("reduce_scatter", output, inputs[0], options.reduceOp);
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                              const c10d::ReduceScatterOptions& options) {
  Plan plan(c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", options, output.nbytes());
  plan.results = {output};
  plan.body = reduce_scatter_from_body("reduce_scatter_tensor", output, input, options.reduceOp,
                                       static_cast<size_t>(getSize()));
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                         const c10d::ReduceScatterOptions& options) {
  constexpr const char* kCall = "reduce_scatter_tensor_coalesced";
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "nupa: ", kCall, ": got ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
  Plan plan(c10d::OpType::REDUCE_SCATTER, kCall, options, kLargeBytes);
  plan.results = outputs;
  std::vector<Collective::Body> bodies;
  for (size_t i = 0; i < inputs.size(); ++i)
    bodies.push_back(
        reduce_scatter_from_body(kCall, outputs[i], inputs[i], options.reduceOp, static_cast<size_t>(getSize())));
  plan.body = in_turn(std::move(bodies));
  return begin(std::move(plan));
}

namespace {

/// Uses the call for different sizes, because no rank can see whether the sizes of the others are equal.
Collective::Body all_to_all_body(const char* call, Flat out, Flat in, const std::vector<size_t>& out_bytes,
                                 const std::vector<size_t>& in_bytes) {
  check_same_type(call, out, in);
  return [=](nupa_ccl_comm* comm) mutable {
    in.load();
    const int error =
        nupa_ccl_all_to_allv(in.data(), in_bytes.data(), offsets_of(in_bytes).data(), out.data(), out_bytes.data(),
                             offsets_of(out_bytes).data(), NUPA_CCL_UINT8, comm, nullptr);
    if (error == 0) out.store();
    return error;
  };
}

}  // namespace

ProcessGroupNupa::Work ProcessGroupNupa::alltoall_base(at::Tensor& output, at::Tensor& input, Splits& output_splits,
                                                       Splits& input_splits, const c10d::AllToAllOptions& options) {
  constexpr const char* kCall = "all_to_all_single";
  check(kCall, output);
  check(kCall, input);
  const auto ranks = static_cast<size_t>(getSize());
  Plan plan(c10d::OpType::ALLTOALL_BASE, kCall, options, input.nbytes());
  plan.results = {output};
  plan.body = all_to_all_body(kCall, Flat(output), Flat(input), split_bytes(kCall, output, output_splits, ranks),
                              split_bytes(kCall, input, input_splits, ranks));
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::alltoall(Tensors& outputs, Tensors& inputs,
                                                  const c10d::AllToAllOptions& options) {
  check_list("all_to_all", outputs, static_cast<size_t>(getSize()));
  check_list("all_to_all", inputs, static_cast<size_t>(getSize()));
  Flat out(outputs);
  Flat in(inputs);
  Plan plan(c10d::OpType::ALLTOALL, "all_to_all", options, in.bytes());
  plan.results = outputs;
  plan.body = all_to_all_body("all_to_all", out, in, out.sizes(), in.sizes());
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::barrier(const c10d::BarrierOptions& options) {
  Plan plan(c10d::OpType::BARRIER, "barrier", options, 0);
  plan.body = [](nupa_ccl_comm* comm) { return nupa_ccl_barrier(comm, nullptr); };
  return begin(std::move(plan));
}

ProcessGroupNupa::Work ProcessGroupNupa::send(Tensors& tensors, int rank, int tag) {
  return c10::make_intrusive<NupaWork>(getRank(), c10d::OpType::SEND,
                                       Message::send(group("send"), only("send", tensors), root("send", rank), tag));
}

ProcessGroupNupa::Work ProcessGroupNupa::recv(Tensors& tensors, int rank, int tag) {
  return c10::make_intrusive<NupaWork>(getRank(), c10d::OpType::RECV,
                                       Message::receive(group("recv"), only("recv", tensors), root("recv", rank), tag));
}

ProcessGroupNupa::Work ProcessGroupNupa::recvAnysource(Tensors& tensors, int tag) {
  return c10::make_intrusive<NupaWork>(getRank(), c10d::OpType::RECVANYSOURCE,
                                       Message::receive(group("recv"), only("recv", tensors), NUPA_CCL_ANY_RANK, tag));
}

}  // namespace nupa::torch_backend
