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
  bool saves_copies() const override { return engine_.pool().is_coherent(); }
  Result<Lent> allocate(uint64_t bytes) override {
    engine_.free_kept_blocks();
    const auto block = engine_.pool().allocate(bytes);
    if (!block) return fail(block.error().code() == ENOSPC ? ENOMEM : block.error().code(), block.error().what());
    return Lent{block->at, {engine_.self().instance, block->offset}};
  }
  void free(std::byte* memory, uint64_t bytes) override {
    if (const auto place = engine_.pool().place_of(memory, bytes)) engine_.free({place->offset, bytes, memory});
  }
  std::shared_ptr<std::byte> borrow(const Place& place, uint64_t bytes) override {
    return engine_.pool().borrow(place.owner, place.offset, bytes);
  }

 private:
  Engine& engine_;
};

}  // namespace nupa::pool
