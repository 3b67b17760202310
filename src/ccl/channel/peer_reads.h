#pragma once
#include <cstddef>
#include <cstdint>

namespace nupa::ccl {

/// Reads of other ranks' ordinary memory, which the system copies from one process to the other.
class Reads {
 public:
  virtual ~Reads() = default;
  /// From where `address` is in the process of `rank` of the group. 0 or an errno value.
  virtual int read(uint32_t rank, void* to, uint64_t address, size_t bytes) = 0;
};

}  // namespace nupa::ccl
