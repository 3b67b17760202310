// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/seam/device_entry.h"
#include "core/seam/endpoint.h"
#include "transport/pool/engine.h"
#include "transport/pool/statistics.h"

namespace nupa::pool {

/// The multicasts that a UD queue pair sends by the pool.
enum class GroupReach : uint8_t {
  kNone,        ///< another transport delivers them
  kOtherHosts,  ///< another transport delivers them to the processes of this host
  kAll,
};

/// The endpoint of a UD queue pair (IBTA 9.8.3). A datagram has left when the post returns, as with an adapter:
/// programs destroy the queue pair at once. If the channel is not open yet, the engine keeps a copy. A datagram for
/// which the channel has no room is dropped.
class DatagramEndpoint final : public core::DatagramSender, public Receiver {
 public:
  DatagramEndpoint(Engine& engine, core::QpContext& context, const std::vector<GidEntry>& gids, GroupReach groups);

  Reach leads_to(const AddressVector& vector, uint32_t qp_num) override;
  std::optional<WcStatus> send(const core::Request& request) override;
  void withdraw() override { engine_.remove(*this); }

  // Receiver
  uint32_t number() const override { return context_.number(); }
  bool enter() override { return context_.try_enter(); }
  void leave() override { context_.leave(); }
  bool deliver(const Record& record, const Payload& payload, Link& link, TurnClock& clock) override;
  void answered(const Answer&, Link&, int64_t) override {}
  void transmit(int64_t) override {}
  void on_timer(int64_t) override {}
  void peer_failed(Link&, bool, int64_t) override {}
  std::shared_ptr<Link> link() const override { return nullptr; }

 private:
  /// A destination whose process was found.
  struct Known {
    Gid gid;
    bool is_global = false;
    ProcessId process;
    std::shared_ptr<Link> link;  ///< null: not open yet
  };
  /// Null: no process of the pool has it.
  Known* find(const AddressVector& vector, uint32_t qp_num);
  std::optional<WcStatus> send_to_group(const core::Request& request);
  /// Writes to the link, or has the engine keep the datagram until there is one and it is open. Returns kSuccess also
  /// if the datagram was dropped.
  WcStatus write(const ProcessId& to, Link* link, const core::Request& request, uint32_t qp_num);
  bool is_own(const Record& record, const Link& link) const;

  /// The number of cached destinations. When it is reached, all are looked up again.
  static constexpr size_t kMaxKnown = 1024;

  Engine& engine_;
  core::QpContext& context_;
  Statistics& statistics_;
  const std::vector<GidEntry> gids_;
  const GroupReach groups_;
  std::unordered_map<uint32_t, Known> known_;  ///< by number
};

}  // namespace nupa::pool
