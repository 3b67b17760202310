// SPDX-License-Identifier: Apache-2.0
#include "ccl/diagnostics/description.h"

#include "ccl/reduce/names.h"

namespace nupa::ccl {
namespace {

constexpr uint32_t kEverybody = UINT32_MAX;

/// The step and the finalizer of splitmix64. Sums of hashes are equal if the same triples were added, and hardly ever
/// otherwise.
uint64_t hash_of(uint32_t sender, uint32_t receiver, uint64_t bytes) {
  uint64_t value = (uint64_t{sender} << 32 | receiver) * 0x9e3779b97f4a7c15 + bytes;
  for (int round = 0; round < 2; ++round) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    value ^= value >> 31;
  }
  return value;
}

bool has_root(Operation operation) {
  return operation == Operation::kBroadcast || operation == Operation::kGather || operation == Operation::kScatter ||
         operation == Operation::kReduce;
}

/// Adds the hashes of what this rank exchanges with others; in gatherv and scatterv, the root with others.
void add_sums(const std::vector<uint64_t>& flows, uint32_t rank, uint32_t ranks, Description* description) {
  const bool gathers = description->operation == Operation::kGather;
  const bool rooted = gathers || description->operation == Operation::kScatter;
  for (uint32_t other = 0; other < ranks; ++other) {
    const bool gives = !rooted || (gathers ? other == description->root : rank == description->root);
    const bool takes = !rooted || (gathers ? rank == description->root : other == description->root);
    if (gives) description->given += hash_of(rank, other, flows[other]);
    if (takes) description->taken += hash_of(other, rank, flows[ranks + other]);
  }
}

}  // namespace

bool has_common_counts(const Description& description) {
  return description.operation == Operation::kAllGather || description.operation == Operation::kReduceScatter;
}

std::vector<uint64_t> flows_of(const Call& call, uint32_t rank, uint32_t ranks) {
  std::vector<uint64_t> flows(2 * size_t{ranks});
  const Blocks in = call.in_blocks();
  const Blocks out = call.out_blocks();
  const bool is_root = rank == call.root;
  for (uint32_t other = 0; other < ranks; ++other) {
    uint64_t& given = flows[other];
    uint64_t& taken = flows[ranks + other];
    if (call.operation == Operation::kGather) {
      if (other == call.root) given = call.bytes();
      if (is_root) taken = out.length(other);
    } else if (call.operation == Operation::kScatter) {
      if (is_root) given = in.length(other);
      if (other == call.root) taken = call.bytes();
    } else if (call.operation == Operation::kAllToAll) {
      given = in.length(other);
      taken = out.length(other);
    } else {
      given = (call.operation == Operation::kAllGather ? out : in).length(other);
    }
  }
  return flows;
}

Description Description::of(const Call& call, uint64_t number, uint32_t rank, uint32_t ranks) {
  Description made;
  made.number = number;
  made.elements = call.elements;
  made.root = call.root;
  made.operation = call.operation;
  made.purpose = call.purpose;
  made.type = static_cast<uint8_t>(call.reducer.reduction.type);
  made.op = call.reducer.function != nullptr ? kFunction : static_cast<uint8_t>(call.reducer.reduction.op);
  made.equal = call.equal ? 1 : 0;
  if (call.equal) return made;
  const std::vector<uint64_t> flows = flows_of(call, rank, ranks);
  if (has_common_counts(made))
    for (uint32_t other = 0; other < ranks; ++other) made.given += hash_of(other, kEverybody, flows[other]);
  else
    add_sums(flows, rank, ranks, &made);
  return made;
}

bool Description::agrees_with(const Description& other) const {
  return number == other.number && operation == other.operation && purpose == other.purpose && type == other.type &&
         op == other.op && equal == other.equal && root == other.root && (equal == 0 || elements == other.elements);
}

std::string Description::text() const {
  Call call;
  call.operation = operation;
  call.purpose = purpose;
  call.equal = equal != 0;
  std::string text = name_of(call);
  if (purpose != Purpose::kItself || operation == Operation::kBarrier) return text;
  text += " of ";
  if (equal != 0) text += std::to_string(elements) + " ";
  text += name_of(static_cast<Type>(type));
  if (reduces(operation))
    text += std::string(", ") + (op == kFunction ? "a user-defined operator" : name_of(static_cast<Operator>(op)));
  if (has_root(operation)) text += ", root " + std::to_string(root);
  return text;
}

std::string Description::ordinal() const {
  const uint64_t last = number % 10;
  const bool is_teen = number / 10 % 10 == 1;
  const char* const ending = is_teen || last == 0 || last > 3 ? "th" : last == 1 ? "st" : last == 2 ? "nd" : "rd";
  return std::to_string(number) + ending;
}

}  // namespace nupa::ccl
