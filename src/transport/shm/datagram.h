// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/seam/endpoint.h"
#include "core/seam/qp_context.h"
#include "core/seam/shared_target.h"
#include "transport/shm/peers.h"

namespace nupa::shm_transport {

/// The requester's side of a UD queue pair (IBTA 9.8.3). Every request names its destination; a datagram that cannot be
/// delivered is silently dropped.
class Datagram final : public core::DatagramSender {
 public:
  /// `due`: holds the event of a receiver until the sender has its own completion.
  Datagram(Peers& peers, core::QpContext& context, host::DueEvent& due);

  Reach leads_to(const AddressVector& vector, uint32_t qp_num) override;
  std::optional<WcStatus> send(const core::Request& request) override;
  void on_process_exit(const host::Peer& process) override;

 private:
  /// The source GID, which the request's address handle names.
  const Gid& source_of(const core::Request& request) const;
  void deliver(core::SharedTarget& target, const core::Request& request, uint32_t qkey);
  /// Returns false if nothing was delivered, because a process may still answer.
  bool deliver_multicast(const core::Request& request, uint32_t qkey);
  /// A destination with the address that it was found by. Another address may not lead to it.
  struct Known {
    std::unique_ptr<core::SharedTarget> target;
    Gid gid;
    bool is_global = false;
    bool lies_at(const AddressVector& vector) const {
      return is_global == vector.is_global && (!is_global || gid == vector.dgid) && target->peer().alive();
    }
  };
  /// kYes: *target is the queue pair with that number and address. kNotYet: its process was asked, and may still
  /// answer.
  Reach find(uint32_t qpn, const AddressVector& vector, core::SharedTarget** target);
  Reach search(uint32_t qpn, const AddressVector& vector, Known** known);
  /// The wait for a process that is not connected yet: once, for as long as a running process takes to answer. A
  /// program that posts and destroys the queue pair has then sent what it posted.
  static constexpr std::chrono::milliseconds kFirstWait{5};
  std::chrono::milliseconds wait_for(uint32_t slot) const;
  /// Returns whether to wait for the process in a slot, which was asked and has not answered. A stopped process delays
  /// sends once, for a while.
  bool may_answer(uint32_t slot);
  /// Fills members_ with all processes. Returns false if one of them may still answer.
  bool meet_all();

  /// The number of cached destinations. When it is reached, all are looked up again.
  static constexpr size_t kMaxTargets = 1024;

  Peers& peers_;
  core::QpContext& context_;
  host::DueEvent& due_;
  const Gid* own_gids_;  ///< the GIDs of its device, shm::kMaxGids entries
  uint32_t last_qpn_ = 0;
  Known* last_ = nullptr;
  std::unordered_map<uint32_t, Known> targets_;
  std::unordered_map<uint32_t, int64_t> asked_;  ///< by slot: the time since which a process has not answered
  std::vector<host::PeerRef> members_;           ///< empty outside of a call
  host::PeerRef notified_;  ///< a member of a group whose event `due_` may hold until the sender's lock is released
};

}  // namespace nupa::shm_transport
