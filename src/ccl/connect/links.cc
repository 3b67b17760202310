// SPDX-License-Identifier: Apache-2.0
#include "ccl/connect/links.h"

#include <nupa/connect.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "ccl/channel/arena.h"
#include "progress/words.h"

namespace nupa::ccl {
namespace {

constexpr uint32_t kAccess = access::kRemoteRead | access::kRemoteWrite;
/// Local ACK timeout, in the code of IBTA 9.7.6.1.3. With seven retries, of four timeouts each, a queue pair fails
/// after 4.3 s without an answer.
constexpr uint8_t kAckTimeout = 15;
/// Local ACK timeout to a process that this one can watch: the queue pair fails after 17 s. Such a peer is alive, but
/// may wait for a processor for several seconds where ranks outnumber cores.
constexpr uint8_t kWatchedAckTimeout = 17;
/// Local ACK timeout between ranks that share memory: none. A request to a process that has died fails there at once,
/// and a process that lives may take any time to connect.
constexpr uint8_t kForEver = 0;
/// Pause between two attempts to make a link, doubled each time.
constexpr int64_t kFirstPauseNs = 200'000;
constexpr int64_t kLongestPauseNs = 200'000'000;
/// The shortest time between two questions of this rank to the same rank. In communicators of more than
/// kRanksAtFullPace ranks the time grows with their number: all ranks may ask the same slow rank, which has at most one
/// processor.
constexpr int64_t kAskNs = 50'000'000;
constexpr int64_t kLongestAskNs = 1'000'000'000;
constexpr size_t kRanksAtFullPace = 8;
/// An answer is valid for this many pauses between questions: the rank that sent it may have been stopped since.
constexpr int64_t kFreshPauses = 8;

}  // namespace

Links::Links(Endpoint& endpoint, const CommunicatorId& id, uint32_t rank, const Places& places, const WaitRules& rules,
             OnEnd on_end)
    : endpoint_(endpoint),
      id_(id),
      rank_(rank),
      places_(places),
      rules_(rules),
      on_end_(std::move(on_end)),
      links_(places.peer_infos.size()),
      timer_(endpoint.loop(), [this](int64_t now_ns) { make_all(now_ns); }) {
  for (uint32_t i = 0; i < links_.size(); ++i) links_[i].rank = i;
}

Links::~Links() {
  if (entered_) endpoint_.leave(id_, rank_);
}

int Links::open() {
  const int error = endpoint_.enter(id_, rank_, this);
  entered_ = error == 0;
  return error;
}

void Links::want(uint32_t rank) {
  {
    std::lock_guard lock(mutex_);
    Link& link = links_[rank];
    if (link.wanted || rank == rank_) return;
    link.wanted = true;
    making_.push_back(rank);
  }
  if (entered_) timer_.run_soon();
}

Wait Links::ready(uint32_t rank) {
  Link& link = links_[rank];
  return {&link.ready, 1, rank, &link.sleepers};
}

std::byte* Links::arena_of(uint32_t rank) const {
  return rank == rank_ ? static_cast<std::byte*>(places_.arena.addr()) : links_[rank].arena.get();
}

Mail Links::mail_to(MailKind kind, const Link& link) const {
  Mail mail;
  mail.kind = kind;
  mail.communicator = id_;
  mail.from = rank_;
  mail.to = link.rank;
  mail.qp_num = link.qp == nullptr ? 0 : link.qp->number();
  mail.rkey = places_.arena.rkey();
  mail.arena = reinterpret_cast<uint64_t>(places_.arena.addr());
  mail.bytes = places_.arena.length();
  return mail;
}

int Links::make(Link& link) {
  const bool by_rdma = !shares_memory_with(link.rank);
  if (by_rdma)
    if (const int error = places_.rdma_port->grow(); error != 0) return error;
  CompletionQueue& cq = by_rdma ? places_.rdma_port->cq() : endpoint_.cq();
  QpOptions options{.type = QpType::kRc, .send_cq = &cq, .recv_cq = &cq};
  options.cap = {.max_send_wr = by_rdma ? places_.rdma_port->sends() : RdmaPort::kProbes,
                 .max_recv_wr = by_rdma ? places_.rdma_port->receives() : 0,
                 .max_send_sge = 1,
                 .max_recv_sge = 1,
                 .max_inline_data = 0};
  auto made = endpoint_.device().create_qp(&endpoint_.pd(), options);
  if (!made) return made.error().code();
  link.qp = std::move(*made);
  return 0;
}

uint8_t Links::ack_timeout_to(uint32_t rank) const {
  if (shares_memory_with(rank)) return kForEver;
  return places_.peer_infos[rank_].can_watch(places_.peer_infos[rank]) ? kWatchedAckTimeout : kAckTimeout;
}

int Links::connect_to(Link& link) {
  const ConnectOptions options{.dgid = endpoint_.address_of(places_.peer_infos[link.rank]),
                               .dest_qp_num = link.peer.qp_num,
                               .access_flags = kAccess,
                               .sgid_index = endpoint_.gid_index(),
                               .timeout = ack_timeout_to(link.rank)};
  if (const int error = connect(*link.qp, options); error != 0) return error;
  const int error = shares_memory_with(link.rank) ? 0 : connect_by_rdma(link);
  link.connected = error == 0;
  return error;
}

int Links::connect_by_rdma(Link& link) {
  auto* const here = static_cast<std::byte*>(places_.arena.addr()) + places_.channels_at;
  RdmaChannel* channels[kChannelKinds];
  for (uint32_t i = 0; i < kChannelKinds; ++i) {
    const auto kind = static_cast<ChannelKind>(i);
    const RdmaChannel::There there{link.peer.arena + places_.channels_at + places_.channels.offset(rank_, kind),
                                   link.peer.rkey};
    const RdmaChannel::Here ours{here + places_.channels.offset(link.rank, kind), places_.arena.lkey(),
                                 endpoint_.memory_lkey()};
    auto channel = std::make_unique<RdmaChannel>(*link.qp, kind, ours, there, link.rank, places_.channels);
    channels[i] = channel.get();
    link.channels[i] = std::move(channel);
  }
  return places_.rdma_port->add(*link.qp, link.rank, channels);
}

void Links::map_channels(Link& link) {
  auto* const here = static_cast<std::byte*>(places_.arena.addr()) + places_.channels_at;
  std::byte* const there = link.arena.get() + places_.channels_at;
  for (uint32_t i = 0; i < kChannelKinds; ++i) {
    const auto kind = static_cast<ChannelKind>(i);
    link.channels[i] =
        std::make_unique<ShmChannel>(here + places_.channels.offset(link.rank, kind),
                                     there + places_.channels.offset(rank_, kind), link.rank, places_.channels, rules_);
  }
}

int Links::finish(Link& link) {
  if (!shares_memory_with(link.rank)) return 0;
  auto mapped = link.qp->map_remote(link.peer.rkey, link.peer.arena, link.peer.bytes, kAccess);
  if (!mapped) return mapped.error().code();
  link.arena = std::move(*mapped);
  map_channels(link);
  return 0;
}

void Links::advance(Link& link) {
  if (link.ready.load() != 0) return;
  int error = link.qp == nullptr ? make(link) : 0;
  if (error == 0 && link.is_known && !link.connected) error = connect_to(link);
  if (error == 0 && link.connected && link.peer_connected) {
    error = finish(link);
    if (error == 0) {
      progress::count_up(link.ready, 1, link.sleepers, rules_.fences());
      std::erase(making_, link.rank);
      endpoint_.send(places_.peer_infos[link.rank], mail_to(MailKind::kAnswer, link));
      return;
    }
    if (error == ENOTCONN) error = 0;  // not possible yet: the timer tries again
  }
  if (error != 0) fail({error, link.rank});
}

void Links::receive(Link& link, const Mail& mail) {
  // All arenas need the same layout, because ranks compute addresses in the arenas of others.
  if (mail.bytes != places_.arena.length()) return fail({EPROTO, link.rank});
  if (!link.is_known) {
    link.is_known = true;
    link.peer = mail;
    if (!link.wanted) {
      link.wanted = true;
      making_.push_back(link.rank);
    }
  }
  link.next_ns = 0;
  link.pause_ns = 0;
  timer_.run_soon();
}

void Links::answer(Link& link) {
  if (!std::exchange(link.owes_answer, false)) return;
  endpoint_.send(places_.peer_infos[link.rank], mail_to(MailKind::kAnswer, link));
}

int64_t Links::ask_pause_ns() const {
  const auto many = static_cast<int64_t>(std::max<size_t>(links_.size() / kRanksAtFullPace, 1));
  return std::min(kAskNs * many, kLongestAskNs);
}

void Links::ask(Link& link, bool follow) {
  link.follows = link.follows || follow;
  const int64_t now = base::now_ns();
  if (link.rank == rank_ || ended_ || (link.asked_ns != 0 && now - link.asked_ns < ask_pause_ns())) return;
  link.asked_ns = now;
  endpoint_.send(places_.peer_infos[link.rank], mail_to(MailKind::kAsk, link));
}

void Links::hear_wait(Link& link, const Mail& mail) {
  link.answered_ns = base::now_ns();
  link.waits_for = mail.dead < links_.size() ? static_cast<uint32_t>(mail.dead) : kNoRank;
  const bool follows = std::exchange(link.follows, false);
  if (link.waits_for != kNoRank && follows) ask(links_[link.waits_for], true);
}

uint32_t Links::last_waited_for(uint32_t rank) {
  std::lock_guard lock(mutex_);
  const int64_t now = base::now_ns();
  uint32_t last = rank;
  for (size_t steps = 0; last < links_.size() && last != rank_; ++steps) {
    // Ranks that wait for each other in a circle have called different operations.
    if (steps == links_.size()) return rank;
    const Link& link = links_[last];
    if (link.waits_for == kNoRank || link.answered_ns == 0 || now - link.answered_ns > kFreshPauses * ask_pause_ns())
      return last;
    last = link.waits_for;
  }
  return rank;
}

void Links::on_mail(const Mail& mail) {
  {
    std::lock_guard lock(mutex_);
    if (mail.from >= links_.size() || mail.from == rank_) return;
    Link& link = links_[mail.from];
    if (mail.kind == MailKind::kEnd) {
      link.has_ended = link.has_ended || mail.cause != 0;
      if (mail.cause != 0) fail(Cause::unpacked(mail.cause));
    } else if (ended_) {
      Mail answer = mail_to(MailKind::kEnd, link);
      answer.cause = ended_.packed();
      endpoint_.send(places_.peer_infos[link.rank], answer);
    } else if (mail.kind == MailKind::kHello || mail.kind == MailKind::kAnswer) {
      receive(link, mail);
      if (mail.kind == MailKind::kAnswer) link.peer_connected = true;
      if (mail.kind == MailKind::kHello) link.owes_answer = true;
      if (link.connected) answer(link);
    } else if (mail.kind == MailKind::kAsk) {
      Mail answer = mail_to(MailKind::kWaits, link);
      answer.dead = waits_for_.load(std::memory_order_relaxed);
      endpoint_.send(places_.peer_infos[link.rank], answer);
    } else if (mail.kind == MailKind::kWaits) {
      hear_wait(link, mail);
    }
  }
  report();
}

void Links::make_all(int64_t now_ns) {
  int64_t next = INT64_MAX;
  {
    std::lock_guard lock(mutex_);
    const std::vector<uint32_t> making = making_;
    for (const uint32_t rank : making) {
      Link& link = links_[rank];
      if (now_ns >= link.next_ns) {
        advance(link);
        if (link.ready.load() != 0) continue;
        if (!ended_ && link.connected && link.owes_answer)
          answer(link);
        else if (!ended_ && link.qp != nullptr)
          endpoint_.send(places_.peer_infos[rank], mail_to(MailKind::kHello, link));
        link.pause_ns = std::clamp(2 * link.pause_ns, kFirstPauseNs, kLongestPauseNs);
        link.next_ns = now_ns + link.pause_ns;
      }
      next = std::min(next, link.next_ns);
    }
    if (ended_) next = INT64_MAX;
  }
  report();
  timer_.set_at_latest(next);
}

void Links::on_completion(const WorkCompletion& completion) {
  {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(links_.begin(), links_.end(), [&](const Link& link) {
      return link.qp != nullptr && link.qp->number() == completion.qp_num;
    });
    if (found == links_.end()) return;
    found->probing = false;
    if (completion.status != WcStatus::kSuccess) fail({ECONNRESET, found->rank});
  }
  report();
}

std::shared_ptr<std::byte> Links::map(uint32_t rank, uint32_t rkey, uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (links_[rank].arena == nullptr) return nullptr;
  auto mapped = links_[rank].qp->map_remote(rkey, address, bytes, kAccess);
  return mapped ? std::move(*mapped) : nullptr;
}

void Links::probe(uint32_t rank, bool follow) {
  if (rank != rank_ && places_.peer_infos[rank_].sees_end_of(places_.peer_infos[rank])) on_end_({ECONNRESET, rank});
  std::lock_guard lock(mutex_);
  Link& link = links_[rank];
  if (rank == rank_) return;
  ask(link, follow);
  if (!link.connected || link.probing) return;
  SendWr wr{.opcode = Opcode::kRdmaWrite, .flags = send_flag::kSignaled};
  wr.rkey = link.peer.rkey;
  wr.remote_addr = link.peer.arena;
  // The completion of an RDMA link goes to the RdmaPort, so that nothing is to be noted here. If the send queue is
  // full, the requests in it show as well whether the peer is alive.
  link.probing = link.qp->post_send(wr) == 0 && shares_memory_with(rank);
}

void Links::cancel_zero_copy_sends() {
  std::lock_guard lock(mutex_);
  QpAttr attr;
  attr.state = QpState::kErr;
  for (const Link& link : links_) {
    if (std::none_of(std::begin(link.channels), std::end(link.channels),
                     [](const auto& channel) { return channel != nullptr && channel->has_zero_copy_sends(); }))
      continue;
    // This rank closes the queue pair itself, which must not count as the death of the peer.
    places_.rdma_port->drop(*link.qp);
    link.qp->modify(attr, qp_attr::kState);
  }
}

bool Links::has_ended(uint32_t rank) {
  std::lock_guard lock(mutex_);
  return links_[rank].has_ended;
}

bool Links::end(const Cause& cause) {
  std::lock_guard lock(mutex_);
  if (ended_) return false;
  ended_ = cause;
  for (const Link& link : links_) {
    if (std::byte* const arena = arena_of(link.rank); arena != nullptr)
      end_arena(*reinterpret_cast<ArenaHead*>(arena), cause);
    progress::wake_all(link.ready);
    if (link.rank == rank_ || (link.rank == cause.rank && cause.error == ECONNRESET)) continue;
    Mail mail = mail_to(MailKind::kEnd, link);
    mail.cause = cause.packed();
    endpoint_.send(places_.peer_infos[link.rank], mail);
  }
  return true;
}

void Links::report() {
  Cause failure;
  {
    std::lock_guard lock(mutex_);
    std::swap(failure, failure_);
  }
  if (failure) on_end_(failure);
}

}  // namespace nupa::ccl
