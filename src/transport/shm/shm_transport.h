#pragma once
/// The shm transport, direct mode: both ends are processes of one user on one host. The initiator's thread does all
/// the work in post(): it plays the responder's part on the peer's shared objects and copies straight into or out
/// of the peer's memory. No other thread runs and, once the first request has found its way, no system call is made.

#include <chrono>

#include "core/seam/transport.h"

namespace nupa::shm_transport {

/// How long a process of this host may take to answer before it counts as one that is stopped.
constexpr std::chrono::milliseconds kAnswerLimit{100};

/// A queue pair of a process of this host.
struct Found {
  host::PeerRef peer;
  uint32_t qp_index;  ///< among the peer's queue_pairs(), mapped
};

class ShmTransport final : public core::Transport {
 public:
  static Result<std::unique_ptr<core::Transport>> create() { return std::make_unique<ShmTransport>(); }

  std::string_view name() const override { return "shm"; }
  void describe(shm::SegmentHeader& header) const override { header.shares_memory = 1; }
  Result<void> open(core::ProcessContext& process) override;
  bool reaches(const AddressVector& vector, uint32_t qp_num) override;
  Result<std::unique_ptr<core::Endpoint>> connect(const core::DeviceEntry& device, core::QpContext& context,
                                                  const QpAttr& attr, bool may_lower_mtu) override;
  Result<std::unique_ptr<core::DatagramSender>> datagrams(const core::DeviceEntry& device, core::QpContext& context,
                                                          host::DueEvent& due) override;
  Result<uint32_t> mtu_code(const core::DeviceEntry&) const override { return kMtuCode; }
  bool shares_memory() const override { return true; }

  /// Finds the process that owns queue pair `qpn` and has the GID of `vector` (if it names one); waits at most `wait`.
  /// EHOSTUNREACH, EACCES, ETIMEDOUT as host::Node::connect; ENOMEM: the queue pair's tables cannot be mapped.
  Result<Found> find_peer(uint32_t qpn, const AddressVector& vector, std::chrono::milliseconds wait);

  /// True if `gid` is one of this host's, as this process knows them.
  bool has_gid(const Gid& gid) const;
  host::Node& node() { return process_->node(); }
  host::PeerMemories& memories() { return process_->memories(); }

 private:
  static constexpr uint32_t kMtuCode = 5;  ///< 4,096 bytes: memory needs no packets

  core::ProcessContext* process_ = nullptr;
};

}  // namespace nupa::shm_transport
