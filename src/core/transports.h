// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/mad_router.h"
#include "core/transport_entry.h"

namespace nupa::core {

/// The transports that this process uses, in order of cost.
class Transports {
 public:
  /// The transports that NUPA_TRANSPORT names. EINVAL: it names an unknown one, or a setting of any transport is wrong,
  /// even of one that is not used.
  static Result<Transports> from_environment();

  /// Calls Transport::describe() of each.
  void describe(shm::SegmentHeader& header) const;
  /// Returns whether all transports may have the slot, except those that cannot run here.
  bool reserve(uint32_t slot);
  /// Calls Transport::reserve_further() of each. After true extend() may follow.
  Result<bool> reserve_further(uint32_t slot);
  void extend(uint32_t slot);
  /// Returns the reason why no slot was available: a transport's error if there is one, otherwise `error`.
  Error explain_no_slot(const Error& error) const;
  /// Opens the transports, and drops those that cannot run here.
  Result<void> open(ProcessContext& process);

  /// Calls Transport::connect() of the first transport that reaches the peer. If none does, the last one is called,
  /// whose error gives the reason.
  Result<std::unique_ptr<Endpoint>> connect(const DeviceEntry& device, QpContext& context, const QpAttr& attr);
  /// UD: the first transport that reaches a datagram's destination sends it.
  Result<std::unique_ptr<Endpoint>> datagrams(const DeviceEntry& device, QpContext& context);
  /// Calls Transport::join() of each. Fails only if all of them fail.
  int join(const DeviceEntry& device, uint32_t qp_num, const Gid& group);
  void leave(uint32_t qp_num, const Gid& group);
  /// The largest MTU of the transports.
  Result<Mtu> mtu(const DeviceEntry& device) const;
  /// The smallest MTU of the transports on the path to a host; none: the MTU of the port.
  Result<std::optional<Mtu>> mtu_to(const Gid& host, uint32_t scope) const;
  /// True if one of them reaches all processes of this user on this host through shared memory.
  bool share_memory() const;
  /// The same, for the transports other than `asking`.
  bool share_memory_beside(const Transport& asking) const;
  /// Constant after open().
  const std::vector<progress::Poller*>& pollers() const { return pollers_; }
  /// Called in a forked child, where the transports' sockets are closed: threads that poll do no work for them.
  void abandon_pollers() { pollers_.clear(); }
  /// The transports that carry management datagrams. Null: none does. Constant after open().
  MadCarrier* mads() const;
  /// See Transport::source_to().
  std::optional<Gid> source_to(const Gid& host) const;
  /// True if a transport other than `asking` leads from the device to other hosts.
  bool cover_network_beside(const Transport& asking, const DeviceEntry& device) const;
  /// Null: the transport is not used.
  Transport* find(std::string_view name) const;
  /// Calls Transport::revoked() of each.
  void revoked(uint32_t rkey) const;
  /// The memory that the device's own transport lends; null: it lends none.
  TransportMemory* memory(const DeviceEntry& device) const;
  /// The first memory of a transport that saves copies; null: none does.
  TransportMemory* lender() const;
  /// Memory that one of them has lent to another process of this host. See TransportMemory::borrow().
  std::shared_ptr<std::byte> borrow(const TransportMemory::Place& place, uint64_t bytes) const;

 private:
  struct Used {
    std::unique_ptr<Transport> transport;
    bool is_able = true;
  };
  std::vector<Used> used_;
  std::vector<progress::Poller*> pollers_;
  std::unique_ptr<MadRouter> mad_router_;  ///< if several transports carry management datagrams
  MadCarrier* mads_ = nullptr;
};

}  // namespace nupa::core
