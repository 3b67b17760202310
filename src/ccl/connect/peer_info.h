#pragma once
#include <nupa/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

/// What a rank tells all others of itself when they meet.
struct RankCard {
  static constexpr size_t kMaxProcessors = 1024;
  using Processors = std::array<uint64_t, kMaxProcessors / 64>;

  Gid gid;
  uint32_t mailbox = 0;            ///< number of its datagram queue pair
  MemoryDomain memory_domain{};    ///< Device::memory_domain()
  std::array<uint8_t, 16> host{};  ///< by which ranks know that they run on the same processors
  Processors processors{};         ///< those it may run on
  uint32_t process = 0;
  uint64_t process_space = 0;  ///< in which `process` is a number
  std::string host_name;

  Card encode() const;
  /// EPROTO.
  static Result<RankCard> decode(const Card& card);
  /// For people: "process 123 on host".
  std::string text() const;

  /// Whether this process can notice when the other process exits: both run on one host, in one PID namespace.
  bool can_watch(const RankCard& other) const;
  /// Whether this process can see that the other one has ended; false: it lives, or cannot be seen from here.
  bool sees_end_of(const RankCard& other) const;

  bool shares_memory_with(const RankCard& other) const {
    return memory_domain != MemoryDomain{} && memory_domain == other.memory_domain;
  }
};

/// Of this process: everything but the addresses.
RankCard card_of_this_process();

}  // namespace nupa::ccl
