// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Calls as tests give them to algorithms. An algorithm reads its call until it is done: KeptCalls holds them
/// meanwhile.
#include <deque>
#include <memory>
#include <utility>

#include "ccl/call/call.h"

namespace nupa::ccl {

/// Null where blocks are equal: then they are as long as the call says. What the lists point to has to stay.
inline std::shared_ptr<const BlockLists> lists_of(const Blocks& in, const Blocks& out) {
  if (in.are_equal() && out.are_equal()) return nullptr;
  return std::make_shared<BlockLists>(BlockLists{in, out, {}});
}

inline Call broadcast_call(uint32_t root, void* data, size_t bytes) {
  Call call;
  call.operation = Operation::kBroadcast;
  call.root = root;
  call.in = data;
  call.out = data;
  call.elements = bytes;
  return call;
}

inline Call gather_call(uint32_t root, const void* in, size_t bytes, void* out, Blocks blocks, bool equal = true) {
  Call call;
  call.operation = Operation::kGather;
  call.root = root;
  call.in = in;
  call.elements = bytes;
  call.out = out;
  call.lists = lists_of({}, blocks);
  call.equal = equal;
  return call;
}

inline Call scatter_call(uint32_t root, const void* in, Blocks blocks, void* out, size_t bytes, bool equal = true) {
  Call call;
  call.operation = Operation::kScatter;
  call.root = root;
  call.in = in;
  call.lists = lists_of(blocks, {});
  call.out = out;
  call.elements = bytes;
  call.equal = equal;
  return call;
}

inline Call exchange_call(const void* in, Blocks in_blocks, void* out, Blocks out_blocks, bool equal = true) {
  Call call;
  call.operation = Operation::kAllToAll;
  call.in = in;
  call.out = out;
  call.elements = in_blocks.each;
  call.lists = lists_of(in_blocks, out_blocks);
  call.equal = equal;
  return call;
}

inline Call reduce_call(const Reducer& reducer, const void* in, void* out, size_t elements, uint32_t root = 0,
                        Blocks blocks = {}, Operation operation = Operation::kAllReduce) {
  Call call;
  call.operation = operation;
  call.reducer = reducer;
  call.in = in;
  call.out = out;
  call.elements = elements;
  call.root = root;
  call.lists = lists_of(blocks, {});
  return call;
}

class KeptCalls {
 public:
  const Call& keep(Call call) { return calls_.emplace_back(std::move(call)); }

 private:
  std::deque<Call> calls_;
};

}  // namespace nupa::ccl
