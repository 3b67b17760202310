// SPDX-License-Identifier: Apache-2.0
#include "ccl/reduce/combine.h"

#include <algorithm>
#include <cstring>

namespace nupa::ccl {
namespace {

/// The largest block for a user-defined function, which works on a copy.
constexpr size_t kBlock = 8192;

void combine_by_function(const Reducer& reducer, std::byte* out, const Source* sources, uint32_t count,
                         size_t elements) {
  alignas(64) std::byte block[kBlock];
  const size_t size = reducer.element_bytes();
  const size_t at_once = kBlock / size;
  for (size_t at = 0; at < elements; at += at_once) {
    const size_t here = std::min(at_once, elements - at);
    std::memcpy(block, static_cast<const std::byte*>(sources[0].data) + at * size, here * size);
    for (uint32_t i = 1; i < count; ++i)
      reducer.function(block, static_cast<const std::byte*>(sources[i].data) + at * size, here,
                       static_cast<int>(reducer.reduction.type), reducer.argument);
    std::memcpy(out + at * size, block, here * size);
  }
}

}  // namespace

void combine(const Reducer& reducer, void* out, const Source* sources, uint32_t count, size_t elements) {
  if (reducer.function == nullptr)
    reduce(reducer.reduction, out, sources, count, elements);
  else if (count > 0)
    combine_by_function(reducer, static_cast<std::byte*>(out), sources, count, elements);
}

}  // namespace nupa::ccl
