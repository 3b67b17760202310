// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

/// The peer info of a rank, which all other ranks receive in the rendezvous.
struct PeerInfo {
  static constexpr size_t kMaxProcessors = 1024;
  using Processors = std::array<uint64_t, kMaxProcessors / 64>;

  Gid gid;                         ///< its address in networks
  Gid pool_gid;                    ///< its address in a pool; all zero: it has no pool
  uint32_t mailbox = 0;            ///< number of its datagram queue pair
  MemoryDomain memory_domain{};    ///< Device::memory_domain()
  std::array<uint8_t, 16> host{};  ///< equal for ranks that run on the same processors
  Processors processors{};         ///< a bit for each processor that it may run on
  uint32_t process = 0;
  uint64_t process_space = 0;  ///< PID namespace of `process`; 0: unknown
  std::string host_name;

  PeerInfoBytes encode() const;
  /// EPROTO: it is not peer info of this version.
  static Result<PeerInfo> decode(const PeerInfoBytes& peer_info);
  /// For error texts: "process 123 on host".
  std::string text() const;

  /// Returns whether this process can notice the exit of the other: both run on one host, in one PID namespace.
  bool can_watch(const PeerInfo& other) const;
  /// Returns whether the other process has exited. False also if this process cannot find out.
  bool sees_end_of(const PeerInfo& other) const;

  bool shares_memory_with(const PeerInfo& other) const {
    return memory_domain != MemoryDomain{} && memory_domain == other.memory_domain;
  }
};

/// The peer info of this process, without addresses, mailbox and memory_domain.
PeerInfo peer_info_of_this_process();

}  // namespace nupa::ccl
