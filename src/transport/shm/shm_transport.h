// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The shm transport: both peers are processes of one user on one host. The requester's thread does all the work in
/// post(): it acts as the responder on the peer's shared objects and copies directly to or from the peer's memory. No
/// other thread runs. After the first request has found the peer, no system call is made. A copy engine, if there is
/// one, copies the data of large requests.

#include <memory>
#include <optional>
#include <utility>

#include "copy/choice.h"
#include "copy/copy_engine.h"
#include "core/seam/transport.h"
#include "transport/shm/peers.h"

namespace nupa::shm_transport {

class ShmTransport final : public core::Transport {
 public:
  /// EINVAL: a setting of the copy engine has a wrong value.
  static Result<std::unique_ptr<core::Transport>> create();
  explicit ShmTransport(const copy::Choice& choice = {.kind = copy::Kind::kNone}) : choice_(choice) {}

  std::string_view name() const override { return "shm"; }
  void describe(shm::SegmentHeader& header) const override { header.shares_memory = 1; }
  Result<void> open(core::ProcessContext& process) override;
  bool reaches(const AddressVector& vector, uint32_t qp_num) override;
  Result<std::unique_ptr<core::Endpoint>> connect(const core::DeviceEntry& device, core::QpContext& context,
                                                  const QpAttr& attr, bool may_lower_mtu) override;
  Result<std::unique_ptr<core::DatagramSender>> datagrams(const core::DeviceEntry& device, core::QpContext& context,
                                                          host::DueEvent& due) override;
  /// The largest one: memory needs no packets.
  Result<Mtu> mtu(const core::DeviceEntry&) const override { return Mtu::k4096; }
  bool shares_memory() const override { return true; }

  /// Tests: queue pairs that are connected after this call use `engine` from `least_bytes` on.
  void use_engine(std::unique_ptr<copy::CopyEngine> engine, uint64_t least_bytes) {
    engine_ = std::move(engine);
    choice_.least_bytes = least_bytes;
  }

 private:
  copy::Choice choice_;
  std::optional<Peers> peers_;                ///< set by open()
  std::unique_ptr<copy::CopyEngine> engine_;  ///< set by open(); null: the posting thread copies
};

}  // namespace nupa::shm_transport
