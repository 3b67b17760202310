// SPDX-License-Identifier: Apache-2.0
/// The turns of the engine: records are read, answers are written, and what comes up from time to time is done.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "core/seam/grh.h"
#include "core/seam/group_address.h"
#include "transport/pool/engine.h"
#include "transport/pool/medium/sleep.h"

namespace nupa::pool {
namespace {

/// Records that one look takes from a channel.
constexpr uint32_t kRecordsOfPoller = 4;
constexpr uint32_t kRecordsOfThread = 32;
/// Records after which answers are written even if more arrive.
constexpr uint32_t kAnswerEvery = 16;
/// When the thread writes answers that a program left for its next poll. Shorter times would wake the thread beside
/// each program that polls.
constexpr int64_t kForgottenNs = 1'000'000;
constexpr uint32_t kLargeRecord = 8192;

/// True if more records will probably follow soon although no program of this process sends anything: requests that the
/// engine answers alone, and parts of large messages. Nothing wakes nupa-pool, so it stays awake for them.
bool is_of_stream(const Record& record) {
  if (record.length >= kLargeRecord) return true;
  switch (record.kind) {
    case RecordKind::kRead:
    case RecordKind::kAtomic:
      return true;
    case RecordKind::kWrite:
    case RecordKind::kPlaced:
      return (record.flags & record_flag::kWhole) != record_flag::kWhole || !record.has(record_flag::kImmediate);
    case RecordKind::kSend:
    case RecordKind::kReadAnswer:
      return (record.flags & record_flag::kWhole) != record_flag::kWhole;
    default:
      return false;
  }
}

}  // namespace

Engine::Taken Engine::take_answers(Link& link, const Header& header, Hold& hold, int64_t now) {
  Answer answers[kMaxAnswers];
  const size_t number = decode_answers(header, answers);
  if (number == 0) return Taken::kGarbage;
  for (size_t i = link.applied; i < number; ++i) {
    if (answers[i].outcome == Outcome::kReturned) {
      grants_.returned(link.peer(), grant_of(answers[i]));
      continue;
    }
    Receiver* const receiver = find(answers[i].qp_num);
    if (receiver == nullptr) continue;
    if (!hold.take(*receiver)) {
      link.applied = i;
      return Taken::kBusy;
    }
    receiver->answered(answers[i], link, now);
    if (receiver->owes()) note_owing(*receiver);
  }
  link.applied = 0;
  return Taken::kYes;
}

Engine::Taken Engine::take_group_datagram(Link& link, const Record& record, const Payload& payload, Hold& hold,
                                          int64_t now) {
  Gid group;
  constexpr size_t kDestinationAt = 24;  // in the route header
  std::memcpy(&group, payload.pieces[0].data + kDestinationAt, sizeof group);
  std::vector<uint32_t> numbers;
  {
    std::lock_guard lock(groups_mutex_);
    for (const Member& member : members_)
      if (member.group == group) numbers.push_back(member.qp_num);
  }
  for (; next_member_ < numbers.size(); ++next_member_) {
    Receiver* const receiver = find(numbers[next_member_]);
    if (receiver == nullptr) continue;
    if (!hold.take(*receiver)) return Taken::kBusy;
    receiver->deliver(record, payload, link, now);
  }
  next_member_ = 0;
  return Taken::kYes;
}

void Engine::take_mad(const Link& link, const Record& record, const std::byte* payload) {
  const core::MadHandler& handler = record.is(record_trait::kForProbe) ? probe_handler_ : mad_handler_;
  if (!handler) return;
  core::MadDatagram datagram;
  std::memcpy(datagram.bytes.data(), payload, core::MadDatagram::kBytes);
  std::memcpy(&datagram.remote.address, payload + core::MadDatagram::kBytes, sizeof(Gid));
  std::memcpy(&datagram.local, payload + core::MadDatagram::kBytes + sizeof(Gid), sizeof(Gid));
  datagram.remote.port = mad_port_of(link.peer());
  datagram.interface = core::kPoolInterface;
  datagram.of_nupa = true;
  datagram.from_port = record.from_port;
  // An address that means another host elsewhere, such as a link-local one, does not lead back.
  const auto sender = mad_process(datagram.remote);
  if (!sender || !(*sender == link.peer())) datagram.remote.address = pool_.gid_of(link.peer().host);
  handler(datagram);
}

void Engine::note_absent(Link& link, const Record& record) {
  if (record.source_qp == 0 || record.kind == RecordKind::kDatagram) return;
  if (record.is_about_grant()) {
    // Nobody here places by it (any more).
    link.answers().push_back(word_of(return_of(record.source_qp, record.grant)));
    return;
  }
  const Answer answer{record.source_qp, record.sequence, Outcome::kAbsent, 0, 0};
  // One answer makes the requester go back to its oldest message.
  for (const uint64_t word : link.answers())
    if (const auto known = answer_of(word); known && known->qp_num == answer.qp_num && known->outcome == answer.outcome)
      return;
  link.answers().push_back(word_of(answer));
}

void Engine::note_owing(Receiver& receiver) {
  if (receiver.is_owing_) return;
  receiver.is_owing_ = true;
  owing_.push_back(&receiver);
}

Payload Engine::payload_of(Link& link, const Record& record) {
  Payload payload;
  payload.count = 1;
  payload.pieces[0] = {const_cast<std::byte*>(record.inlined), record.length};
  if (record.inlined != nullptr || record.length == 0 || record.kind == RecordKind::kPlaced) return payload;
  const bool is_data =
      record.kind == RecordKind::kSend || record.kind == RecordKind::kWrite || record.kind == RecordKind::kReadAnswer;
  // The engine looks into datagrams, and another process may copy what is for its memory (XRC): not from the ring.
  if (!is_data || record.is(record_trait::kXrc)) {
    link.channel().load(0, payload_.get(), record.length);
    payload.pieces[0].data = payload_.get();
    return payload;
  }
  const auto parts = link.channel().payload(record.length);
  for (size_t i = 0; i < parts.size(); ++i)
    payload.pieces[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
  payload.count = parts[1].empty() ? 1 : 2;
  return payload;
}

Engine::Taken Engine::take(Link& link, const Header& header, Hold& hold, int64_t now) {
  const auto kind = kind_of(header);
  if (!kind) return Taken::kGarbage;
  if (*kind == RecordKind::kAnswers) return take_answers(link, header, hold, now);
  const auto record = decode(header);
  if (!record) return Taken::kGarbage;
  const bool to_group = *kind == RecordKind::kDatagram && record->qp_num == core::kGroupQpn;
  Receiver* receiver = nullptr;
  if (*kind != RecordKind::kMad && !to_group) {
    receiver = find(record->qp_num);
    if (receiver == nullptr) {
      note_absent(link, *record);
      return Taken::kYes;
    }
    if (!hold.take(*receiver)) return Taken::kBusy;
  }
  const Payload payload = payload_of(link, *record);
  streams_ = is_of_stream(*record);
  if (*kind == RecordKind::kMad) {
    take_mad(link, *record, payload.pieces[0].data);
    return Taken::kYes;
  }
  if (to_group) return take_group_datagram(link, *record, payload, hold, now);
  if (!receiver->deliver(*record, payload, link, now)) note_absent(link, *record);
  if (receiver->owes()) note_owing(*receiver);
  return Taken::kYes;
}

uint32_t Engine::read(Link& link, Hold& hold, uint32_t most, TurnClock& clock) {
  Channel& channel = link.channel();
  uint32_t records = 0;
  link.is_drained = false;
  link.is_blocked = false;
  while (records < most) {
    Header header;
    const Channel::Look look = channel.look(&header);
    if (look == Channel::Look::kNothing) {
      link.is_drained = true;
      break;
    }
    const Taken taken = look == Channel::Look::kGarbage ? Taken::kGarbage : take(link, header, hold, clock.now());
    if (taken == Taken::kBusy) {
      link.is_blocked = true;
      break;
    }
    if (taken == Taken::kGarbage) {
      link.wrote_garbage = true;
      NUPA_WARN("pool: process %u of host %u wrote a record that is none; its queue pairs fail", link.peer().record,
                link.peer().host);
      break;
    }
    channel.pop();
    ++records;
    if (header.payload_lines * kLineBytes >= kLargeRecord) {
      // A thread that posts to the same queue pair gets its turn.
      hold.release();
      if (most == kRecordsOfPoller) break;
    }
  }
  link.records += records;
  return records;
}

bool Engine::answers_wait() const {
  return !owing_.empty() ||
         std::any_of(links_.begin(), links_.end(), [](const auto& link) { return !link->answers().empty(); });
}

void Engine::flush_answers() {
  unanswered_ = 0;
  for (const auto& link : links_)
    if (!link->answers().empty()) link->flush_answers();
  size_t kept = 0;
  for (Receiver* const receiver : owing_) {
    const auto link = receiver->link();
    if (link != nullptr && !link->is_lost() && link->answers().size() >= kMaxAnswers && !link->flush_answers()) {
      owing_[kept++] = receiver;  // no room: the answer stays cumulative meanwhile
      continue;
    }
    receiver->is_owing_ = false;
    const uint64_t owed = receiver->take_owed();
    if (owed != 0 && link != nullptr && !link->is_lost()) link->answers().push_back(owed);
  }
  owing_.resize(kept);
  for (const auto& link : links_)
    if (!link->answers().empty()) link->flush_answers();
}

void Engine::serve_waiters(Hold& hold, int64_t now) {
  for (const auto& link : links_) {
    // Each once: those that still wait are behind the others again.
    for (size_t left = link->waiters(); left > 0; --left) {
      Receiver* const receiver = link->next_waiter();
      if (receiver == nullptr) break;
      if (!hold.take(*receiver)) {
        link->wait_for_room(*receiver);
        continue;
      }
      receiver->transmit(now);
      if (receiver->owes()) note_owing(*receiver);
    }
  }
}

void Engine::run_timers(Hold& hold, int64_t now) {
  {
    std::lock_guard lock(due_mutex_);
    if (due_.empty()) return;
    due_now_.swap(due_);
    due_.clear();
    // From here on expect() adds them again.
    for (Receiver* const receiver : due_now_) receiver->is_due_.store(false);
  }
  for (Receiver* const receiver : due_now_) {
    if (receiver->deadline() <= now && hold.take(*receiver)) {
      receiver->on_timer(now);
      if (receiver->owes()) note_owing(*receiver);
    }
    if (receiver->deadline() != INT64_MAX) expect(*receiver, std::max(receiver->deadline(), now + kShortestPauseNs));
  }
}

void Engine::seek_links(Hold& hold, int64_t now) {
  std::vector<Receiver*> seekers;
  {
    std::lock_guard lock(due_mutex_);
    seekers = seekers_;
  }
  for (Receiver* const receiver : seekers) {
    hold.release();
    auto link = receiver->resolve();
    if (hold.take(*receiver)) receiver->resolved(std::move(link), now);
  }
  if (seekers.empty()) return;
  std::lock_guard lock(due_mutex_);
  std::erase_if(seekers_, [](const Receiver* receiver) { return !receiver->seeks_link(); });
}

template <class Visit>
void Engine::each_receiver(Visit&& visit) const {
  banks_.each([&](const Bank& bank) {
    for (const auto& place : bank.receivers)
      if (Receiver* const receiver = place.load(std::memory_order_acquire); receiver != nullptr) visit(*receiver);
  });
}

bool Engine::fail_link(const std::shared_ptr<Link>& link, Hold& hold, bool garbage, int64_t now) {
  bool all = true;
  each_receiver([&](Receiver& receiver) {
    if (receiver.link() != link) return;
    if (hold.take(receiver))
      receiver.peer_failed(*link, garbage, now);
    else
      all = false;
  });
  return all;
}

void Engine::look_at_lives(Hold& hold, int64_t now) {
  for (const auto& link : links_) {
    if (link->is_lost() || link->peer() == self_) continue;
    switch (pool_.life(link->peer())) {
      case Life::kAlive:
        if (std::exchange(link->is_silent, false)) grants_.revive(link->peer());
        if (now - link->made_ns >= kOpeningNs && !link->channel().is_open())
          each_receiver([&](Receiver& receiver) {
            if (receiver.link() == link && hold.take(receiver)) receiver.not_answered(*link, now);
          });
        break;
      case Life::kSilent:
        fail_link(link, hold, false, now);
        link->is_silent = true;
        grants_.abandon(link->peer());
        break;
      case Life::kEnded:
        // Records that it wrote before its end count. The last look may have come before them.
        if (link->has_ended && link->is_drained) link->lose();
        link->has_ended = true;
        break;
    }
  }
}

void Engine::drop_lost_links(Hold& hold, int64_t now) {
  for (size_t i = 0; i < links_.size();) {
    const std::shared_ptr<Link> link = links_[i];
    if (link->wrote_garbage) link->lose();
    if (!link->is_lost() || !fail_link(link, hold, link->wrote_garbage, now)) {
      ++i;
      continue;
    }
    {
      std::lock_guard lock(links_mutex_);
      links_.erase(links_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    auto channel = link->take_channel();
    if (channel != nullptr && !(link->peer() == self_)) pool_.close_channel(std::move(channel));
    give_up(link->peer());
  }
}

void Engine::ask_peers() {
  if (!grants_.has_unasked()) return;
  for (const Grant& grant : grants_.unasked()) {
    std::shared_ptr<Link> link;
    {
      std::lock_guard lock(links_mutex_);
      for (const auto& each : links_)
        if (each->peer() == grant.peer && !each->is_lost()) link = each;
    }
    Record record;
    record.kind = RecordKind::kAskBack;
    record.qp_num = grant.requester;
    record.source_qp = grant.qp_num;
    record.grant = grant.number;
    const Link::Wrote wrote = link == nullptr ? Link::Wrote::kLost : link->write(record, nullptr, 0);
    if (wrote == Link::Wrote::kLost) give_up(grant.peer);
    // Without room, the next turn tries again.
    if (wrote != Link::Wrote::kNotNow) grants_.asked(grant.number);
  }
}

void Engine::give_up(const ProcessId& peer) {
  if (!grants_.any()) return;
  if (pool_.life(peer) == Life::kEnded)
    grants_.ended(peer);
  else
    grants_.abandon(peer);
}

void Engine::free_returned() {
  for (const ProcessId& peer : grants_.abandoned()) give_up(peer);
  std::lock_guard lock(kept_blocks_mutex_);
  std::erase_if(kept_blocks_, [&](const Block& block) {
    if (grants_.covers(block.offset, block.bytes)) return false;
    pool_.free(block);
    return true;
  });
}

void Engine::write_kept_datagrams(int64_t now) {
  std::vector<OutDatagram> datagrams;
  {
    std::lock_guard lock(mads_mutex_);
    datagrams.swap(datagrams_);
  }
  std::vector<OutDatagram> kept;
  // A channel can open between two looks at it: what comes behind a datagram that waits for it waits, too.
  std::vector<ProcessId> opening;
  const auto is_opening = [&opening](const ProcessId& to) {
    return std::find(opening.begin(), opening.end(), to) != opening.end();
  };
  for (OutDatagram& datagram : datagrams) {
    const bool is_there = datagram.to == self_ || pool_.life(datagram.to) == Life::kAlive;
    const auto link = is_there ? link_to(datagram.to) : nullptr;
    const bool waits = is_opening(datagram.to) || (link != nullptr && !link->is_open());
    if (waits && now - datagram.since_ns < kOpeningNs) {
      if (!is_opening(datagram.to)) opening.push_back(datagram.to);
      kept.push_back(std::move(datagram));
      continue;
    }
    const base::Piece piece{datagram.payload.data(), datagram.payload.size()};
    if (link != nullptr) link->write(datagram.record, &piece, 1);
  }
  const size_t done = datagrams.size() - kept.size();
  if (!kept.empty()) {
    std::lock_guard lock(mads_mutex_);
    datagrams_.insert(datagrams_.begin(), std::make_move_iterator(kept.begin()), std::make_move_iterator(kept.end()));
    has_work_.store(true);
  }
  kept_.fetch_sub(done, std::memory_order_release);
}

void Engine::write_kept_mads() {
  std::vector<OutMad> mads;
  {
    std::lock_guard lock(mads_mutex_);
    if (mads_.empty()) return;
    mads.swap(mads_);
    for (const OutMad& mad : mads) mads_under_way_.push_back(mad.to);
  }
  std::vector<OutMad> kept;
  for (OutMad& mad : mads) {
    // Behind one that waits for the channel, the later ones wait, too.
    const bool waits = std::any_of(kept.begin(), kept.end(), [&mad](const OutMad& each) { return each.to == mad.to; });
    const bool is_there = mad.to == self_ || pool_.life(mad.to) == Life::kAlive;
    const auto link = is_there ? link_to(mad.to) : nullptr;
    if (link != nullptr && (waits || !write_mad(*link, mad.datagram, mad.from_probe))) kept.push_back(std::move(mad));
  }
  std::lock_guard lock(mads_mutex_);
  mads_under_way_.clear();
  if (kept.empty()) return;
  mads_.insert(mads_.begin(), std::make_move_iterator(kept.begin()), std::make_move_iterator(kept.end()));
  has_work_.store(true);
}

void Engine::open_wanted(int64_t now) {
  if (!has_work_.exchange(false)) return;
  std::vector<ProcessId> wanted;
  {
    std::lock_guard lock(links_mutex_);
    wanted.swap(wanted_);
  }
  for (const ProcessId& process : wanted)
    if (pool_.life(process) != Life::kEnded || process == self_) link_to(process);
  if (keeps_datagrams()) write_kept_datagrams(now);
  write_kept_mads();
}

void Engine::look_at_bells() {
  Pool::News news;
  if (pool_.poll_bells(&news))
    for (const ProcessId& peer : news.offered) link_to(peer);
}

int64_t Engine::bells_pause(int64_t now) {
  const bool opens = std::any_of(links_.begin(), links_.end(), [now](const auto& link) {
    return now - link->made_ns < kOpeningNs && !link->channel().is_open();
  });
  if (opens || has_work_.load(std::memory_order_relaxed)) return kOpeningBellsNs;
  if (receivers_.load(std::memory_order_relaxed) == 0 && !mad_handler_) return kQuietBellsNs;
  // A process that appears rings nobody, so queue pairs that seek theirs look for it.
  std::lock_guard lock(due_mutex_);
  const bool is_polled = is_polled_ || now - active_ns_ < kActiveNs;
  return is_rung_by_all_ && !is_polled && seekers_.empty() ? kQuietBellsNs : kBellsNs;
}

void Engine::keep_house(Hold& hold, int64_t now) {
  if (has_work_.load(std::memory_order_relaxed)) open_wanted(now);
  if (now < house_ns_) return;
  hold.release();
  if (now >= beat_ns_) {
    beat_ns_ = now + kBeatNs;
    pool_.beat(now);
    look_at_lives(hold, now);
    is_rung_by_all_ = pool_.is_rung_by_all();
    free_returned();
  }
  look_at_bells();
  seek_links(hold, now);
  drop_lost_links(hold, now);
  house_ns_ = now + bells_pause(now);
}

void Engine::arm(uint32_t packets, int64_t now) {
  const uint64_t records = records_.load(std::memory_order_relaxed);
  // A program that polls looks at the channels itself.
  const bool program_reads = records - thread_records_ > packets;
  thread_records_ = records;
  if (packets > 0) busy_ns_ = now;
  // As long as nothing has come: each pause is about twice as long as the one before.
  const int64_t pause = program_reads ? kLongestPauseNs : std::clamp(now - busy_ns_, kShortestPauseNs, kLongestPauseNs);
  if (std::exchange(is_polled_, false) || packets > 0 || program_reads) active_ns_ = now;
  rings_come_ = pool_.doorbell() >= 0 && now - active_ns_ >= kActiveNs &&
                std::all_of(links_.begin(), links_.end(), [](const auto& link) { return link->has_doorbells(); });
  poller_.alarm().forget();
  int64_t next = house_ns_;
  if (!rings_come_ && !links_.empty()) next = std::min(next, now + pause);
  bool waits = answers_wait();
  for (const auto& link : links_) waits = waits || link->has_waiters() || link->is_blocked;
  waits = waits || grants_.has_unasked();
  if (waits) next = std::min(next, now + kShortestPauseNs);
  {
    std::lock_guard lock(due_mutex_);
    for (const Receiver* const receiver : due_) next = std::min(next, std::max(receiver->deadline(), now));
  }
  constexpr int64_t kDozeNs = 100'000;
  dozes_.store(!rings_come_ && packets == 0 && !program_reads && pause > kDozeNs);
  poller_.expect(next);
}

void Engine::finish_turns() {
  if (closed_ || !answers_wait()) return;
  flush_answers();
  if (answers_wait()) poller_.expect(now_ns_() + kForgottenNs);
}

bool Engine::has_records() const {
  return !closed_ && std::any_of(links_.begin(), links_.end(), [](const auto& link) {
    Header header;
    return !link->is_lost() && !link->wrote_garbage && !link->is_blocked && link->channel().is_open() &&
           link->channel().look(&header) != Channel::Look::kNothing;
  });
}

void Engine::announce_sleep(bool sleeps) {
  if (sleeps)
    sleepers_.fetch_add(1);
  else
    sleepers_.fetch_sub(1);
  pool_.announce_sleep(sleeps);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool Engine::begin_sleep(progress::Receiver receiver) {
  if (pool_.doorbell() < 0) return true;
  const auto lock = poller_.claim();
  const bool is_thread = receiver == progress::Receiver::kThread;
  if (is_thread && !rings_come_) return true;  // it looks from time to time
  const auto has_come = [this] {
    look_at_bells();
    return has_records();
  };
  const bool sleeps = fall_asleep([this](bool sleeps) { announce_sleep(sleeps); }, has_come);
  if (is_thread) is_announced_ = sleeps;
  return sleeps;
}

void Engine::end_sleep(progress::Receiver receiver, bool ready) {
  if (pool_.doorbell() < 0) return;
  if (receiver != progress::Receiver::kThread || std::exchange(is_announced_, false)) announce_sleep(false);
  if (ready) pool_.take_rings();
}

bool Engine::take_turn(progress::Receiver receiver) {
  if (closed_) return false;
  const Turning turning(*this);
  const bool for_program = receiver != progress::Receiver::kThread;
  is_polled_ = is_polled_ || receiver == progress::Receiver::kPoller;
  Hold hold;
  const bool owed = answers_wait();
  if (owed && (quiet_ || unanswered_ >= kAnswerEvery)) flush_answers();
  const uint32_t most = for_program ? kRecordsOfPoller : kRecordsOfThread;
  TurnClock clock(now_ns_);
  uint32_t packets = 0;
  bool others_wait = false;
  bool is_left = false;  // a record that no bell rings for again
  for (size_t i = 0; i < links_.size(); ++i) {
    const std::shared_ptr<Link>& link = links_[i];
    if (link->is_lost() || link->wrote_garbage || !link->channel().is_open()) continue;
    packets += read(*link, hold, most, clock);
    others_wait = others_wait || link->has_waiters();
    is_left = is_left || !link->is_drained;
  }
  if (for_program && is_left && pool_.doorbell() >= 0) poller_.expect(clock.now() + kForgottenNs);
  if (others_wait) serve_waiters(hold, clock.now());
  ask_peers();
  quiet_ = packets == 0;
  unanswered_ += packets;
  if (packets > 0) {
    records_.store(records_.load(std::memory_order_relaxed) + packets, std::memory_order_relaxed);
    poller_.note_traffic();
  }
  using Step = progress::PollPolicy::Step;
  const Step step = poller_.after({for_program, packets, owed, streams_, others_wait});
  if (step == Step::kReturn) return false;
  if (step == Step::kProgramFirst) {
    hold.release();
    if (answers_wait()) poller_.expect(clock.now() + kForgottenNs);
    poller_.looked(clock.now());
    return true;
  }
  const int64_t now = now_ns_();
  if (for_program) poller_.looked(now);
  if (answers_wait() && (!for_program || quiet_ || unanswered_ >= kAnswerEvery)) flush_answers();
  run_timers(hold, now);
  keep_house(hold, now);
  hold.release();
  if (receiver == progress::Receiver::kThread) {
    arm(packets, now);
  } else if (answers_wait()) {
    poller_.expect(now + kForgottenNs);
  }
  return owed || packets > 0;
}

}  // namespace nupa::pool
