// SPDX-License-Identifier: Apache-2.0
/// The turns of the engine: records are read, and answers are written.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "core/seam/grh.h"
#include "core/seam/group_address.h"
#include "transport/pool/engine.h"

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
    case RecordKind::kFlush:
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

Engine::Taken Engine::take_answers(Link& link, const Header& header, Hold& hold, TurnClock& clock) {
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
    receiver->answered(answers[i], link, clock.now());
    if (receiver->owes()) note_owing(*receiver);
  }
  link.applied = 0;
  return Taken::kYes;
}

Engine::Taken Engine::take_group_datagram(Link& link, const Record& record, const Payload& payload, Hold& hold,
                                          TurnClock& clock) {
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
    receiver->deliver(record, payload, link, clock);
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

Engine::Taken Engine::take(Link& link, const Header& header, Hold& hold, TurnClock& clock) {
  const auto kind = kind_of(header);
  if (!kind) return Taken::kGarbage;
  if (*kind == RecordKind::kAnswers) return take_answers(link, header, hold, clock);
  Record record;
  if (!decode(header, &record)) return Taken::kGarbage;
  const bool to_group = *kind == RecordKind::kDatagram && record.qp_num == core::kGroupQpn;
  Receiver* receiver = nullptr;
  if (*kind != RecordKind::kMad && !to_group) {
    receiver = find(record.qp_num);
    if (receiver == nullptr) {
      note_absent(link, record);
      return Taken::kYes;
    }
    if (!hold.take(*receiver)) return Taken::kBusy;
  }
  const Payload payload = payload_of(link, record);
  streams_ = is_of_stream(record);
  if (*kind == RecordKind::kMad) {
    take_mad(link, record, payload.pieces[0].data);
    return Taken::kYes;
  }
  if (to_group) return take_group_datagram(link, record, payload, hold, clock);
  if (!receiver->deliver(record, payload, link, clock)) note_absent(link, record);
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
    const Taken taken = look == Channel::Look::kGarbage ? Taken::kGarbage : take(link, header, hold, clock);
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

void Engine::finish_turns() {
  if (closed_ || !answers_wait()) return;
  flush_answers();
  if (answers_wait()) poller_.expect(now_ns_() + kForgottenNs);
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
    if (link->is_lost() || link->wrote_garbage) continue;
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
    if (answers_wait()) expect_forgotten(clock);
    // Otherwise the next poll puts the look off.
    if (owed) poller_.looked(clock.now());
    return true;
  }
  const int64_t now = now_ns_();
  turned_ns_ = now;
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

void Engine::expect_forgotten(TurnClock& clock) {
  // The clock takes as long as the rest of a turn that delivers a message. Mostly the thread takes a turn by then
  // anyway.
  if (poller_.wanted_at() <= turned_ns_ + kForgottenNs) return;
  turned_ns_ = clock.now();
  poller_.expect(turned_ns_ + kForgottenNs);
}

}  // namespace nupa::pool
