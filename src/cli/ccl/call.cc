// SPDX-License-Identifier: Apache-2.0
#include "cli/ccl/call.h"

#include <cerrno>

namespace nupa::cli::collectives {

Buffers::Memory Buffers::allocate(size_t bytes, bool shared) {
  if (shared) return {static_cast<std::byte*>(nupa_ccl_alloc(bytes)), [](std::byte* memory) { nupa_ccl_free(memory); }};
  constexpr size_t kPage = 4096;
  return {static_cast<std::byte*>(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage)),
          [](std::byte* memory) { std::free(memory); }};
}

std::unique_ptr<Buffers> Buffers::of(size_t bytes, bool shared) {
  std::unique_ptr<Buffers> made(new Buffers(allocate(bytes, shared), allocate(bytes, shared)));
  return made->first_ != nullptr && made->second_ != nullptr ? std::move(made) : nullptr;
}

Call::Call(const Shape& shape, const Rank& rank, const Buffers& buffers)
    : shape_(shape), comm_(rank.comm()), rank_(rank.rank()) {
  const bool is_root = rank_ == shape.root;
  const size_t all = shape.count * rank.ranks();
  in_count_ = out_count_ = shape.count;
  switch (shape.operation) {
    case Operation::kBarrier:
      in_count_ = out_count_ = 0;
      break;
    case Operation::kBroadcast:
      in_count_ = is_root ? shape.count : 0;
      break;
    case Operation::kGather:
      out_count_ = is_root ? all : 0;
      break;
    case Operation::kScatter:
      in_count_ = is_root ? all : 0;
      break;
    case Operation::kAllGather:
      out_count_ = all;
      break;
    case Operation::kAllToAll:
      in_count_ = out_count_ = all;
      break;
    case Operation::kReduce:
      out_count_ = is_root ? shape.count : 0;
      break;
    case Operation::kReduceScatter:
      in_count_ = all;
      break;
    default:
      break;
  }
  place(buffers);
}

void Call::place(const Buffers& buffers) {
  in_ = buffers.first();
  out_ = buffers.second();
  if (shape_.operation == Operation::kBroadcast) out_ = in_;
  if (!shape_.in_place) return;
  // The smaller array is this rank's block of the larger one.
  const size_t block = rank_ * shape_.block_bytes();
  out_ = in_;
  if (in_count_ > out_count_ && out_count_ > 0) out_ += block;
  if (out_count_ > in_count_ && in_count_ > 0) in_ += block;
}

int Call::run() const {
  const auto& [operation, type, op, root, in_place, count] = shape_;
  switch (operation) {
    case Operation::kBarrier:
      return nupa_ccl_barrier(comm_, nullptr);
    case Operation::kBroadcast:
      return nupa_ccl_broadcast(in_, count, type, root, comm_, nullptr);
    case Operation::kGather:
      return nupa_ccl_gather(in_, out_, count, type, root, comm_, nullptr);
    case Operation::kScatter:
      return nupa_ccl_scatter(in_, out_, count, type, root, comm_, nullptr);
    case Operation::kAllGather:
      return nupa_ccl_all_gather(in_, out_, count, type, comm_, nullptr);
    case Operation::kAllToAll:
      return nupa_ccl_all_to_all(in_, out_, count, type, comm_, nullptr);
    case Operation::kReduce:
      return nupa_ccl_reduce(in_, out_, count, type, op, root, comm_, nullptr);
    case Operation::kAllReduce:
      return nupa_ccl_all_reduce(in_, out_, count, type, op, comm_, nullptr);
    case Operation::kReduceScatter:
      return nupa_ccl_reduce_scatter(in_, out_, count, type, op, comm_, nullptr);
    case Operation::kScan:
      return nupa_ccl_scan(in_, out_, count, type, op, comm_, nullptr);
    case Operation::kExscan:
      return nupa_ccl_exscan(in_, out_, count, type, op, comm_, nullptr);
  }
  return EINVAL;
}

}  // namespace nupa::cli::collectives
