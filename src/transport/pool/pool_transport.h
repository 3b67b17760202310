// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The pool transport: records through memory that hosts share (docs/design/pool.md).

#include <cerrno>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/seam/transport.h"
#include "transport/pool/datagram_endpoint.h"
#include "transport/pool/engine.h"
#include "transport/pool/lent_memory.h"

namespace nupa::pool {

class PoolTransport final : public core::Transport, public core::MadCarrier {
 public:
  /// The error of a process without a pool: nothing is logged.
  static constexpr int kNoPool = ENODEV;
  /// Opens the pool.
  using OpenPool = Result<std::unique_ptr<Pool>> (*)();

  explicit PoolTransport(OpenPool open_pool) : open_pool_(open_pool) {}

  std::string_view name() const override { return kTransportName; }
  Slot reserve(uint32_t slot) override;
  Result<void> explain_no_slot() const override;
  Result<void> open(core::ProcessContext& process) override;
  Result<bool> reserve_further(uint32_t slot) override;
  void extend(uint32_t slot) override;
  bool reaches(const AddressVector& vector, uint32_t qp_num) override;
  Result<std::unique_ptr<core::Endpoint>> connect(const core::DeviceEntry& device, core::QpContext& context,
                                                  const QpAttr& attr, bool may_lower_mtu) override;
  Result<std::unique_ptr<core::DatagramSender>> datagrams(const core::DeviceEntry& device, core::QpContext& context,
                                                          host::DueEvent& due) override;
  int join(const core::DeviceEntry& device, uint32_t qp_num, const Gid& group) override;
  void leave(uint32_t qp_num, const Gid& group) override;
  void revoked(uint32_t rkey) override {
    if (engine_ != nullptr) engine_->take_back({.rkey = rkey, .qp_num = 0});
  }
  /// The largest one: memory needs no packets.
  Result<Mtu> mtu(const core::DeviceEntry&) const override { return Mtu::k4096; }
  std::optional<Gid> source_to(const Gid& host) const override;
  progress::Poller* poller() override { return engine_ == nullptr ? nullptr : &engine_->poller(); }
  core::MadCarrier* mads() override { return engine_ == nullptr ? nullptr : this; }
  core::TransportMemory* memory() override { return memory_ ? &*memory_ : nullptr; }

  Result<void> listen(core::MadHandler handler) override;
  void unlisten() override;
  bool send(const core::MadDatagram& datagram) override;
  core::HostWay way_to_host(const core::DeviceEntry& device, uint32_t gid_index, const Gid& address) const override;
  bool leads_to(const Gid& address) const override;
  bool has_interface(uint32_t interface) const override { return interface == core::kPoolInterface; }
  // Each process passes on what is for another one.
  bool receives_for_host() const override { return true; }
  Result<std::unique_ptr<core::MadSocket>> open_host_socket() override;
  bool probes() const override { return true; }
  Result<std::unique_ptr<core::MadSocket>> open_probe_socket() override;

 private:
  bool is_taken(uint32_t slot);
  GroupReach group_reach(const core::DeviceEntry& device) const;
  /// Publishes the groups of members_.
  Result<void> publish_groups();

  const OpenPool open_pool_;
  std::unique_ptr<Pool> pool_;
  std::optional<Error> error_;  ///< why there is no pool
  core::ProcessContext* process_ = nullptr;
  std::unique_ptr<Engine> engine_;  ///< destroyed before the pool
  std::optional<LentMemory> memory_;
  std::mutex groups_mutex_;  ///< held in join() and leave(); inside it Engine::describe_mutex_
  struct Member {
    uint32_t qp_num;
    Gid group;
    bool published;
  };
  std::vector<Member> members_;
};

}  // namespace nupa::pool
