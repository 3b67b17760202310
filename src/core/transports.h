// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "core/transport_entry.h"

namespace nupa::core {

/// The transports that this process uses, in order of cost.
class Transports {
 public:
  /// Those that NUPA_TRANSPORT names. EINVAL (logged): it names none, or a setting of a transport is wrong, of one that
  /// is not used too.
  static Result<Transports> from_environment();

  /// As Transport::describe(), of each.
  void describe(shm::SegmentHeader& header) const;
  /// Whether all may have the slot, those left out that cannot run here.
  bool reserve(uint32_t slot);
  /// As Transport::reserve_further(), of all. After true extend() may follow.
  Result<bool> reserve_further(uint32_t slot);
  void extend(uint32_t slot);
  /// Why no slot could be had, if a transport knows better than `error`.
  Error explain_no_slot(const Error& error) const;
  /// After this only those are used that can run here.
  Result<void> open(ProcessContext& process);

  /// As Transport::connect(), by the first that leads there; if none does, by the last one, whose error says why.
  Result<std::unique_ptr<Endpoint>> connect(const DeviceEntry& device, QpContext& context, const QpAttr& attr);
  /// UD: each datagram goes by the first that leads to its destination.
  Result<std::unique_ptr<Endpoint>> datagrams(const DeviceEntry& device, QpContext& context);
  /// As Transport::join(), if none of the transports can.
  int join(const DeviceEntry& device, uint32_t qp_num, const Gid& group);
  void leave(uint32_t qp_num, const Gid& group);
  /// The largest of theirs.
  Result<uint32_t> mtu_code(const DeviceEntry& device) const;
  /// The smallest of theirs on the way to a host; 0: none is narrower than its port.
  Result<uint32_t> mtu_code_to(const Gid& host, uint32_t scope) const;
  /// One of them leads to any process of this user on this host by memory that they share.
  bool share_memory() const;
  /// The same of one beside `asking`.
  bool share_memory_beside(const Transport& asking) const;
  /// Constant after open().
  const std::vector<progress::Poller*>& pollers() const { return pollers_; }
  /// In a forked child, where the transports' sockets are closed: threads that poll do no work of theirs.
  void abandon_pollers() { pollers_.clear(); }
  /// The first that carries datagrams to queue pair 1. Null: none does.
  MadCarrier* mads() const;
  /// Null: it is not used.
  Transport* find(std::string_view name) const;

 private:
  struct Used {
    std::unique_ptr<Transport> transport;
    bool is_able = true;
  };
  std::vector<Used> used_;
  std::vector<progress::Poller*> pollers_;
};

}  // namespace nupa::core
