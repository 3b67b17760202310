// SPDX-License-Identifier: Apache-2.0
#include "ccl/communicator/shrink_agreement.h"

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "ccl/communicator/derived_id.h"

namespace nupa::ccl {
namespace {

/// Pause between two rounds of mail, doubled each time.
constexpr int64_t kFirstSendPauseNs = 500'000;
constexpr int64_t kLongestSendPauseNs = 50'000'000;
/// A longer time between two rounds counts as this long only: the process or the machine was stopped.
constexpr int64_t kLongestListeningNs = 200'000'000;
/// A rank whose queue pair breaks during the agreement may have closed it itself and be alive. It counts as dead only
/// after this time without mail; a rank that is alive sends mail more often.
constexpr int64_t kSilenceNs = 500'000'000;

}  // namespace

ShrinkAgreement::ShrinkAgreement(Endpoint& endpoint, const CommunicatorId& id, uint32_t rank,
                                 std::vector<PeerInfo> peer_infos)
    : endpoint_(endpoint),
      id_(id),
      rank_(rank),
      peer_infos_(std::move(peer_infos)),
      peers_(peer_infos_.size()),
      dead_(peer_infos_.size(), false) {
  for (Peer& peer : peers_) peer.decided.resize(peer_infos_.size());
}

ShrinkAgreement::~ShrinkAgreement() {
  if (entered_) endpoint_.leave(id_, rank_);
}

int ShrinkAgreement::open() {
  const int error = endpoint_.enter(id_, rank_, this);
  entered_ = error == 0;
  return error;
}

ShrinkAgreement::Sum ShrinkAgreement::sum_of(const DeadRanks& dead) {
  Sum sum;
  for (uint32_t rank = 0; rank < dead.size(); ++rank) {
    if (!dead[rank]) continue;
    ++sum.count;
    sum.hash = derive({sum.hash, sum.count}, rank, 0)[0];
  }
  return sum;
}

bool ShrinkAgreement::all_agree() const {
  const Sum own = sum_of(dead_);
  for (uint32_t rank = 0; rank < peers_.size(); ++rank)
    if (rank != rank_ && !dead_[rank] && !(peers_[rank].has_reported && peers_[rank].reported == own)) return false;
  return true;
}

void ShrinkAgreement::count_silent(int64_t listened_ns, int64_t limit_ns) {
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    peers_[rank].silent_ns += listened_ns;
    if (rank != rank_ && peers_[rank].silent_ns >= limit_ns) dead_[rank] = true;
  }
}

void ShrinkAgreement::take_known(const DeadRanks& known, bool is_first) {
  for (uint32_t rank = 0; rank < dead_.size(); ++rank)
    if (known[rank] && rank != rank_ && (is_first || peers_[rank].silent_ns >= kSilenceNs)) dead_[rank] = true;
}

void ShrinkAgreement::send(uint32_t to, const DeadRanks& dead, MailKind each, MailKind sum) {
  Mail mail;
  mail.communicator = id_;
  mail.from = rank_;
  mail.to = to;
  mail.kind = each;
  for (uint32_t rank = 0; rank < dead.size(); ++rank) {
    if (!dead[rank]) continue;
    mail.dead = rank;
    endpoint_.send(peer_infos_[to], mail);
  }
  const Sum own = sum_of(dead);
  mail.kind = sum;
  mail.dead = own.count;
  mail.hash = own.hash;
  endpoint_.send(peer_infos_[to], mail);
}

void ShrinkAgreement::send_to_all() {
  for (uint32_t rank = 0; rank < peers_.size(); ++rank)
    if (rank != rank_ && !dead_[rank]) send(rank, dead_, MailKind::kDead, MailKind::kDeadSum);
}

Result<ShrinkAgreement::DeadRanks> ShrinkAgreement::agree(const std::function<DeadRanks()>& known, int64_t limit_ns) {
  std::unique_lock lock(mutex_);
  bool is_first = true;
  int64_t looked = base::now_ns();
  progress::Backoff pauses(kFirstSendPauseNs, kLongestSendPauseNs);
  while (!is_decided_) {
    lock.unlock();
    const DeadRanks more = known();
    lock.lock();
    if (is_decided_) break;
    take_known(more, is_first);
    is_first = false;
    const int64_t now = base::now_ns();
    count_silent(std::min(now - looked, kLongestListeningNs), limit_ns);
    looked = now;
    // Sent in every round, also in the last one here: other ranks may still wait for this rank's set.
    send_to_all();
    if (dead_[rank_]) return fail(ECONNABORTED, "the other ranks shrank the communicator without this rank");
    is_decided_ = all_agree();
    if (is_decided_) break;
    changed_.wait(
        lock, [this, seen = mails_] { return mails_ != seen; }, progress::Deadline::in_ns(pauses.next_ns()));
  }
  if (dead_[rank_]) return fail(ECONNABORTED, "the other ranks shrank the communicator without this rank");
  return dead_;
}

void ShrinkAgreement::on_sum(Peer& peer, const Mail& mail) {
  const Sum sum{mail.dead, mail.hash};
  if (mail.kind == MailKind::kDeadSum) {
    peer.reported = sum;
    peer.has_reported = true;
    if (is_decided_) send(mail.from, dead_, MailKind::kDecided, MailKind::kDecidedSum);
  } else if (!is_decided_ && sum_of(peer.decided) == sum) {
    dead_ = peer.decided;
    is_decided_ = true;
  }
}

void ShrinkAgreement::on_mail(const Mail& mail) {
  std::lock_guard lock(mutex_);
  if (mail.from >= peers_.size() || mail.from == rank_) return;
  Peer& peer = peers_[mail.from];
  peer.silent_ns = 0;
  switch (mail.kind) {
    case MailKind::kDead:
      if (mail.dead < dead_.size() && !is_decided_) dead_[mail.dead] = true;
      break;
    case MailKind::kDecided:
      if (mail.dead < dead_.size()) peer.decided[mail.dead] = true;
      break;
    case MailKind::kDeadSum:
    case MailKind::kDecidedSum:
      on_sum(peer, mail);
      break;
    default:
      return;
  }
  ++mails_;
  changed_.notify_all();
}

}  // namespace nupa::ccl
