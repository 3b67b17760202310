// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The requester's side of placing (grants.h has the owner's). No I/O.

#include <array>
#include <cstddef>
#include <cstdint>

namespace nupa::pool {

/// Regions that one queue pair grants to another one.
inline constexpr size_t kMostGranted = 8;

/// The memory of the peer to which one requester may write. With the send lock of its queue pair held.
class Granted {
 public:
  struct Region {
    uint32_t number = 0;
    uint32_t rkey = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
    std::byte* at = nullptr;  ///< where this process reaches it
  };

  /// False: there is no room. The caller returns the grant.
  bool add(const Region& region);
  /// The peer asks for it back. From now on find() does not return it.
  void remove(uint32_t number);
  void clear() { count_ = 0; }
  /// The region that has the peer's bytes [address, address + length) by this key; null: none has.
  const Region* find(uint32_t rkey, uint64_t address, uint64_t length) const;
  bool empty() const { return count_ == 0; }

 private:
  std::array<Region, kMostGranted> regions_;
  size_t count_ = 0;
};

}  // namespace nupa::pool
