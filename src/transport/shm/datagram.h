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

/// The initiator's side of a UD queue pair (IBTA 9.8.3): every request names its own destination, a datagram that
/// cannot be delivered is lost without a word.
class Datagram final : public core::DatagramSender {
 public:
  /// `due`: the event of a receiver, which is raised when the sender has its own completion.
  Datagram(Peers& peers, core::QpContext& context, host::DueEvent& due);

  Reach leads_to(const AddressVector& vector, uint32_t qp_num) override;
  std::optional<WcStatus> send(const core::Request& request) override;
  void on_process_gone(const host::Peer& process) override;

 private:
  /// The GID that the request's address handle names, as the source.
  const Gid& source_of(const core::Request& request) const;
  void deliver(core::SharedTarget& target, const core::Request& request, uint32_t qkey);
  /// False: nothing was delivered, since a process may answer still.
  bool deliver_multicast(const core::Request& request, uint32_t qkey);
  /// A destination under the address that it was found by: another one may not lead to it.
  struct Known {
    std::unique_ptr<core::SharedTarget> target;
    Gid gid;
    bool is_global = false;
    bool lies_at(const AddressVector& vector) const {
      return is_global == vector.is_global && (!is_global || gid == vector.dgid) && target->peer().alive();
    }
  };
  /// kYes: *target is what has the number and the address. kNotYet: its process was asked, and may answer still.
  Reach find(uint32_t qpn, const AddressVector& vector, core::SharedTarget** target);
  Reach search(uint32_t qpn, const AddressVector& vector, Known** known);
  /// How long a process that was not met is waited for: once, for as long as one that lives takes to answer. Whoever
  /// posts and destroys the queue pair has then sent what it posted.
  static constexpr std::chrono::milliseconds kFirstWait{5};
  std::chrono::milliseconds wait_for(uint32_t slot) const;
  /// Of the process in a slot, which was asked and has not answered: whether it is waited for. One that is stopped
  /// delays what is sent for a while, once.
  bool may_answer(uint32_t slot);
  /// Fills members_ with all processes. False: one of them may answer still.
  bool meet_all();

  /// Destinations remembered; beyond this many all are looked up anew.
  static constexpr size_t kMaxTargets = 1024;

  Peers& peers_;
  core::QpContext& context_;
  host::DueEvent& due_;
  const Gid* own_gids_;  ///< of its device, shm::kMaxGids
  uint32_t last_qpn_ = 0;
  Known* last_ = nullptr;
  std::unordered_map<uint32_t, Known> targets_;
  std::unordered_map<uint32_t, int64_t> asked_;  ///< by slot: since when a process has not answered
  std::vector<host::PeerRef> members_;           ///< empty but within a call
  host::PeerRef told_;  ///< a member of a group, whose event `due_` may have until the sender's lock is let go
};

}  // namespace nupa::shm_transport
