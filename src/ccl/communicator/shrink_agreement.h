// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <mutex>
#include <vector>

#include "ccl/connect/endpoint.h"
#include "progress/condition.h"

namespace nupa::ccl {

/// How the surviving ranks of a communicator agree by mail on which ranks have died. Each rank sends the set of dead
/// ranks that it knows to all others, until all survivors have sent the same set. A rank that has decided sends its
/// decision to ranks that still ask. A rank that dies meanwhile may have been counted as alive; then the new
/// communicator finds that it is dead.
class ShrinkAgreement final : public MailSink {
 public:
  /// By rank: whether it has died.
  using DeadRanks = std::vector<bool>;

  ShrinkAgreement(Endpoint& endpoint, const CommunicatorId& id, uint32_t rank, std::vector<PeerInfo> peer_infos);
  ~ShrinkAgreement() override;
  /// Starts to receive mail. EEXIST: this rank has already started the same agreement.
  int open();

  /// Runs the agreement and returns the dead ranks. To be called once. `known` is called repeatedly and returns the
  /// ranks that have died as far as this process can see; a rank that it adds later counts only if no mail comes from
  /// it. A rank that sends no mail for `limit_ns` counts as dead, too. Time in which this process was stopped does not
  /// count, because mail may wait to be read then. ECONNABORTED: the others count this rank as dead.
  Result<DeadRanks> agree(const std::function<DeadRanks()>& known, int64_t limit_ns);

  void on_mail(const Mail& mail) override;
  void on_completion(const WorkCompletion&) override {}

 private:
  /// Number and hash of the dead ranks. Equal sets have equal sums.
  struct Sum {
    uint64_t count = 0;
    uint64_t hash = 0;
    bool operator==(const Sum&) const = default;
  };
  struct Peer {
    Sum reported;
    DeadRanks decided;      ///< the dead ranks of its decision, as far as received
    int64_t silent_ns = 0;  ///< time without mail from it
    bool has_reported = false;
  };

  static Sum sum_of(const DeadRanks& dead);
  bool all_agree() const;
  /// Adds the ranks that `known` of agree() has returned. `is_first`: they died before the agreement began.
  void take_known(const DeadRanks& known, bool is_first);
  void count_silent(int64_t listened_ns, int64_t limit_ns);
  void send_to_all();
  void send(uint32_t to, const DeadRanks& dead, MailKind each, MailKind sum);
  void on_sum(Peer& peer, const Mail& mail);

  Endpoint& endpoint_;
  const CommunicatorId id_;
  const uint32_t rank_;
  const std::vector<PeerInfo> peer_infos_;
  bool entered_ = false;

  std::mutex mutex_;
  progress::Condition changed_;
  uint64_t mails_ = 0;  ///< number of mails received
  std::vector<Peer> peers_;
  DeadRanks dead_;
  bool is_decided_ = false;
};

}  // namespace nupa::ccl
