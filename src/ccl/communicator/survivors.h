#pragma once
#include <functional>
#include <mutex>
#include <vector>

#include "ccl/connect/endpoint.h"
#include "progress/condition.h"

namespace nupa::ccl {

/// How the ranks that are left of a communicator agree on who they are, by mail: each tells all others whom it knows to
/// be gone, until all who are not have told the same. A rank that has decided says so to whoever still asks, for one
/// that dies meanwhile may have been counted: then it is gone from the new communicator.
class Survivors final : public MailSink {
 public:
  /// Ranks by whether they are gone.
  using Gone = std::vector<bool>;

  Survivors(Endpoint& endpoint, const CommunicatorId& id, uint32_t rank, std::vector<RankCard> cards);
  ~Survivors() override;
  /// EEXIST: this rank does so already.
  int open();

  /// Once. `known`: asked for again and again; a rank that is in it later only counts while nothing is heard of it.
  /// Whoever is not heard of for `limit_ns` is gone, too; not while this rank itself was stopped, for then what was
  /// said waits to be read. ECONNABORTED: the others count this rank among them.
  Result<Gone> agree(const std::function<Gone()>& known, int64_t limit_ns);

  void on_mail(const Mail& mail) override;
  void on_completion(const WorkCompletion&) override {}

 private:
  /// How many are gone, and who: equal of equal sets.
  struct Sum {
    uint64_t count = 0;
    uint64_t hash = 0;
    bool operator==(const Sum&) const = default;
  };
  struct Peer {
    Sum told;
    Gone decided;           ///< as far as it is known
    int64_t silent_ns = 0;  ///< for how long this rank has listened in vain
    bool has_told = false;
  };

  static Sum sum_of(const Gone& gone);
  bool all_agree() const;
  /// Adds those that are known to be gone from elsewhere. `is_first`: from before ranks began to agree.
  void take_known(const Gone& known, bool is_first);
  void count_silent(int64_t listened_ns, int64_t limit_ns);
  void tell_all();
  void tell(uint32_t to, const Gone& gone, MailKind each, MailKind sum);
  void on_sum(Peer& peer, const Mail& mail);

  Endpoint& endpoint_;
  const CommunicatorId id_;
  const uint32_t rank_;
  const std::vector<RankCard> cards_;
  bool entered_ = false;

  std::mutex mutex_;
  progress::Condition changed_;
  uint64_t mails_ = 0;  ///< so many have come
  std::vector<Peer> peers_;
  Gone gone_;
  bool is_decided_ = false;
};

}  // namespace nupa::ccl
