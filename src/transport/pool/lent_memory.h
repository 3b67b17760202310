// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cerrno>

#include "core/seam/transport_memory.h"
#include "transport/pool/engine.h"

namespace nupa::pool {

/// Memory of programs in the territory of this host.
class LentMemory final : public core::TransportMemory {
 public:
  explicit LentMemory(Engine& engine) : engine_(engine) {}

  uint64_t available() override { return engine_.pool().largest_allocation(); }
  Result<std::byte*> allocate(uint64_t bytes) override {
    const auto block = engine_.pool().allocate(bytes);
    if (!block) return fail(block.error().code() == ENOSPC ? ENOMEM : block.error().code(), block.error().what());
    return block->at;
  }
  void free(std::byte* memory, uint64_t bytes) override {
    if (const auto place = engine_.pool().place_of(memory, bytes)) engine_.free({place->offset, bytes, memory});
  }

 private:
  Engine& engine_;
};

}  // namespace nupa::pool
