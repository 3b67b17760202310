// SPDX-License-Identifier: Apache-2.0
#include "pool_traffic.h"

#include <algorithm>
#include <cstring>

#include "core/seam/grh.h"

namespace nupa::pool::sim {
namespace {

/// Bytes that follow from a number, different everywhere.
void fill_bytes(std::byte* to, size_t length, uint64_t number) {
  for (size_t i = 0; i < length; ++i) {
    const uint64_t mixed = (number + i / 8) * 0x9e3779b97f4a7c15;
    to[i] = static_cast<std::byte>(mixed >> (i % 8 * 8));
  }
}

}  // namespace

// ---- the core -------------------------------------------------------------------------------------------------------

CoreSide::CoreSide(Process& process, QpType type, uint32_t index) : process_(process) {
  identity_.number = shm::number_of(process.slot(), index);
  identity_.type = type;
  identity_.cap = {.max_send_wr = 32, .max_recv_wr = 64, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64};
  identity_.shared = &shared_;
  identity_.statistics = &statistics_;
  set_state(QpState::kRts);
}

void CoreSide::fault(const std::string& text) {
  if (!process_.is_dead()) process_.world().fault(text);
}

bool CoreSide::locate(const Sge& sge, uint32_t, std::byte** data) {
  *data = reinterpret_cast<std::byte*>(sge.addr);
  return true;
}

bool CoreSide::take_receive() {
  if (process_.is_dead() || receives == 0) return false;
  --receives;
  placed_.assign(kRoom, std::byte{0});
  return true;
}

bool CoreSide::place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) {
  if (process_.is_dead()) return false;
  std::memcpy(placed_.data() + offset, data, length);
  if (behind != nullptr) *behind = placed_.data() + offset + length;
  return true;
}

void CoreSide::return_receive() { ++receives; }

// ---- connections ----------------------------------------------------------------------------------------------------

ConnectionEnd::ConnectionEnd(Process& process, QpType type, uint32_t index)
    : CoreSide(process, type, index), memory_(kWritesAt + kWriteBytes) {
  fill_bytes(memory_.data(), kConstantBytes, uint64_t{number()} << 32);
  process.last_work.push_back([this] { destroy(); });
  process.clean_up.push_back([this] { endpoint_.reset(); });
}

void ConnectionEnd::connect(QpAttr attr) {
  attr.dest_qp_num = peer_->number();
  attr.av.is_global = true;
  attr.av.dgid = process_.pool().gid_of(peer_->process_.host());
  Engine& engine = process_.engine();
  endpoint_.emplace(engine, *this, attr, engine.claim_link(attr.av, attr.dest_qp_num));
  endpoint_->set_attributes(attr);
  endpoint_->start(attr.sq_psn);
}

void ConnectionEnd::post_receives(uint32_t number) { receives += number; }

uint64_t ConnectionEnd::receives_before(size_t index) const {
  return static_cast<uint64_t>(std::count_if(sent_.begin(), sent_.begin() + static_cast<std::ptrdiff_t>(index),
                                             [](const Sent& sent) { return sent.has_receive(); }));
}

void ConnectionEnd::choose_atomic(Sent& sent, SendWr& wr) {
  World& world = process_.world();
  uint64_t& word = words_[world.below(kWords)];
  sent.offset = kConstantBytes + 8 * static_cast<uint64_t>(&word - words_.data());
  sent.length = core::kAtomicBytes;
  sent.bytes.resize(sizeof word);
  std::memcpy(sent.bytes.data(), &word, sizeof word);
  if (world.one_in(2)) {
    sent.opcode = Opcode::kFetchAdd;
    wr.compare_add = world.below(UINT64_MAX);
    word += wr.compare_add;
  } else {
    sent.opcode = Opcode::kCompareSwap;
    wr.compare_add = world.one_in(3) ? ~word : word;
    wr.swap = world.below(UINT64_MAX);
    if (wr.compare_add == word) word = wr.swap;
  }
}

void ConnectionEnd::choose_operation(Sent& sent, SendWr& wr) {
  World& world = process_.world();
  static constexpr Opcode kSends[] = {Opcode::kSend, Opcode::kSendWithImm, Opcode::kRdmaWrite,
                                      Opcode::kRdmaWriteWithImm};
  sent.opcode = kSends[world.below(std::size(kSends))];
  if (is_reliable() && world.one_in(3)) {
    if (world.one_in(2)) return choose_atomic(sent, wr);
    sent.opcode = Opcode::kRdmaRead;
  }
  // Responses are often longer than the ring, so that they are written in several turns.
  const bool is_long = world.one_in(sent.opcode == Opcode::kRdmaRead ? 2 : 8);
  const uint64_t most = is_long ? kMaxLength : world.one_in(4) ? 600 : 60;
  sent.length = static_cast<uint32_t>(world.below(most));
  // The content of a message of an unreliable connection names it.
  if (!is_reliable()) sent.length = std::max<uint32_t>(sent.length, 8);
  sent.immediate = static_cast<uint32_t>(sent_.size());
  if (sent.opcode == Opcode::kRdmaRead) {
    sent.offset = world.below(kConstantBytes - sent.length + 1);
    sent.bytes.assign(peer_->memory_.begin() + static_cast<std::ptrdiff_t>(sent.offset),
                      peer_->memory_.begin() + static_cast<std::ptrdiff_t>(sent.offset + sent.length));
    return;
  }
  if (sent.is_write() && writes_at_ + sent.length > kWriteBytes) sent.opcode = Opcode::kSend;
  sent.bytes.resize(sent.length);
  fill_bytes(sent.bytes.data(), sent.length, uint64_t{number()} << 32 | (sent_.size() + 1) << 16);
  if (!sent.is_write()) return;
  sent.offset = kWritesAt + writes_at_;
  writes_at_ += sent.length;
}

void ConnectionEnd::post_random() {
  if (!endpoint_ || has_failed_ || is_destroyed_ || state() != QpState::kRts || sent_.size() - completed_ >= kQueue)
    return;
  SendWr wr;
  Sent next;
  choose_operation(next, wr);
  wr.wr_id = sent_.size();
  Sent& sent = sent_.emplace_back(std::move(next));
  wr.opcode = sent.opcode;
  wr.imm_or_rkey = sent.immediate;
  wr.rkey = kKey;
  wr.remote_addr = kBase + sent.offset;
  if (sent.is_answered()) sent.result.resize(sent.length);
  std::byte* const data = sent.is_answered() ? sent.result.data() : sent.bytes.data();
  if (process_.world().one_in(8)) wr.flags |= send_flag::kFence;
  Sge list[2];
  const auto first = static_cast<uint32_t>(process_.world().below(sent.length + 1));
  list[0] = {reinterpret_cast<uint64_t>(data), first, kKey};
  list[1] = {reinterpret_cast<uint64_t>(data + first), sent.length - first, kKey};
  wr.sg_list = list;
  wr.num_sge = 2;
  // The queue pair's thread is this one: nobody else has its lock.
  if (!try_enter()) return fault("the send lock is held between turns");
  endpoint_->post({wr, nullptr, nullptr, 0, sent.length, static_cast<uint32_t>(wr.wr_id), WcStatus::kSuccess});
  endpoint_->send();
  leave();
}

bool ConnectionEnd::owes_response() const {
  const auto& sent = peer_->sent_;
  const auto oldest = sent.begin() + static_cast<std::ptrdiff_t>(peer_->completed_);
  return !is_destroyed_ && !process_.is_dead() && oldest != sent.end() &&
         std::all_of(oldest, sent.end(), [](const Sent& each) { return each.is_answered(); });
}

void ConnectionEnd::destroy() {
  if (!endpoint_ || is_destroyed_) return;
  is_destroyed_ = is_disturbed_ = true;
  if (peer_ != nullptr) peer_->is_disturbed_ = true;
  set_state(QpState::kErr);
  if (!try_enter()) return fault("the send lock is held between turns");
  endpoint_->stop();
  leave();
  endpoint_->withdraw();
}

void ConnectionEnd::stop_soon() {
  if (std::exchange(stops_, true)) return;
  set_state(QpState::kErr);
  World& world = process_.world();
  process_.at(world.now_ns() + static_cast<int64_t>(world.below(300'000)), [this] {
    if (is_destroyed_ || !try_enter()) return;
    endpoint_->stop();
    leave();
  });
}

void ConnectionEnd::refuse(std::optional<EventType>) {
  if (process_.is_dead()) return;
  fault("a request was refused: " + describe());
}

std::byte* ConnectionEnd::reach(uint32_t, uint32_t rkey, uint64_t address, uint64_t length, uint32_t) {
  if (process_.is_dead() || rkey != kKey || address < kBase || address - kBase > memory_.size() ||
      length > memory_.size() - (address - kBase))
    return nullptr;
  return memory_.data() + (address - kBase);
}

bool ConnectionEnd::is_written(const Sent& sent) const {
  return std::equal(sent.bytes.begin(), sent.bytes.end(),
                    peer_->memory_.begin() + static_cast<std::ptrdiff_t>(sent.offset));
}

void ConnectionEnd::check_success(const Sent& sent, size_t index) {
  const auto text = [&] { return " (message " + std::to_string(index) + " of " + describe() + ")"; };
  if (sent.is_answered() && sent.result != sent.bytes) return fault("a response has other bytes" + text());
  if (!is_reliable()) return;
  if (sent.has_receive() && peer_->received_ <= receives_before(index))
    return fault("a message has completed before it arrived" + text());
  if (sent.is_write() && !is_written(sent)) return fault("a WRITE has completed before its data" + text());
}

void ConnectionEnd::complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t) {
  if (process_.is_dead()) return;
  if (completed_ >= sent_.size()) return fault("more completions than requests");
  if (wr.wr_id != completed_ || position != completed_) return fault("completions out of order");
  const Sent& sent = sent_[completed_];
  const size_t index = completed_++;
  if (status == WcStatus::kSuccess) {
    ++succeeded_;
    if (has_failed_) fault("a success after a failure");
    return check_success(sent, index);
  }
  const std::string text = " with status " + std::to_string(static_cast<int>(status)) + ": " + describe();
  if (!is_disturbed() && !peer_->is_disturbed()) return fault("a request has failed without a reason" + text);
  if (status == WcStatus::kWrFlushErr) {
    if (!has_failed_ && state() != QpState::kErr) fault("a request was flushed before one has failed" + text);
    return;
  }
  if (has_failed_) return fault("a second failure" + text);
  if (status != WcStatus::kRetryExcErr) fault("a request has failed" + text);
  has_failed_ = is_disturbed_ = true;
  stop_soon();
}

void ConnectionEnd::complete_receive(const core::Inbound& message, WcStatus status) {
  if (process_.is_dead()) return;
  if (status != WcStatus::kSuccess) {
    if (!is_disturbed() && !peer_->is_disturbed()) fault("a receive was flushed without a reason: " + describe());
    return;
  }
  const auto fits = [&](const Sent& sent) {
    const bool has_immediate = sent.opcode == Opcode::kSendWithImm || sent.opcode == Opcode::kRdmaWriteWithImm;
    const WcOpcode opcode = sent.is_write() ? WcOpcode::kRecvRdmaWithImm : WcOpcode::kRecv;
    if (!sent.has_receive() || message.opcode != opcode || message.byte_len != sent.length) return false;
    if (message.wc_flags != (has_immediate ? wc_flag::kWithImm : 0)) return false;
    if (has_immediate && message.imm_data != sent.immediate) return false;
    return sent.is_write() ? peer_->is_written(sent)
                           : std::equal(sent.bytes.begin(), sent.bytes.end(), placed_.begin());
  };
  std::deque<Sent>& sent = peer_->sent_;
  while (next_ < sent.size() && !(is_reliable() ? sent[next_].has_receive() : fits(sent[next_]))) ++next_;
  if (next_ == sent.size() || !fits(sent[next_]))
    return fault("a message that was not sent, or out of order, or twice, or not whole: " + describe());
  ++next_;
  ++received_;
}

void ConnectionEnd::check_at_the_end() {
  if (!is_reliable() || is_disturbed() || peer_->is_disturbed()) return;
  const uint64_t with_receive = receives_before(sent_.size());
  if (peer_->received_ != with_receive)
    return fault(std::to_string(peer_->received_) + " of " + std::to_string(with_receive) +
                 " messages arrived: " + describe());
  for (const Sent& sent : sent_)
    if (sent.is_write() && !is_written(sent)) return fault("a WRITE is not there at the end: " + describe());
  for (uint64_t i = 0; i < kWords; ++i)
    if (std::memcmp(&words_[i], peer_->memory_.data() + kConstantBytes + 8 * i, 8) != 0)
      return fault("another number of atomics was executed: " + describe());
}

std::string ConnectionEnd::describe() const {
  const char* const service = is_reliable() ? "RC " : "UC ";
  return service + std::to_string(process_.host()) + " to " + std::to_string(peer_->process_.host()) + ", " +
         std::to_string(completed_) + " of " + std::to_string(sent_.size()) + " done, " +
         std::to_string(peer_->received_) + " received";
}

// ---- datagrams ------------------------------------------------------------------------------------------------------

DatagramEnd::DatagramEnd(Process& process, uint32_t index) : CoreSide(process, QpType::kUd, index) {
  shared().qkey.store(kQkey);
  process.last_work.push_back([this] {
    if (!endpoint_) return;
    endpoint_->withdraw();
    process_.engine().set_mad_handler(nullptr);
  });
  process.clean_up.push_back([this] { endpoint_.reset(); });
}

void DatagramEnd::open() {
  GidEntry entry;
  entry.gid = process_.pool().gid_of(process_.host());
  endpoint_.emplace(process_.engine(), *this, std::vector<GidEntry>{entry}, GroupReach::kAll);
  process_.engine().set_mad_handler([this](const core::MadDatagram& datagram) { take_mad(datagram); });
}

void DatagramEnd::send_mad(const DatagramEnd& to) {
  if (!endpoint_ || !to.process_.has_joined() || to.process_.has_ended()) return;
  const ProcessId peer = to.process_.id();
  core::MadDatagram datagram;
  const Mad mad{number(), ++mads_};
  fill_bytes(datagram.bytes.data(), datagram.bytes.size(), mads_);
  std::memcpy(datagram.bytes.data(), &mad, sizeof mad);
  datagram.local = process_.pool().gid_of(process_.host());
  datagram.remote = {process_.pool().gid_of(peer.host), Engine::mad_port_of(peer)};
  process_.engine().send_mad(peer, datagram, false);
}

void DatagramEnd::take_mad(const core::MadDatagram& datagram) {
  Mad mad;
  std::memcpy(&mad, datagram.bytes.data(), sizeof mad);
  auto expected = datagram.bytes;
  fill_bytes(expected.data(), expected.size(), mad.number);
  std::memcpy(expected.data(), &mad, sizeof mad);
  if (expected != datagram.bytes) return fault("a management datagram is not whole");
  check_order(next_mads_, mad.sender, mad.number);
}

void DatagramEnd::check_order(std::map<uint32_t, uint32_t>& next, uint32_t sender, uint32_t number) {
  uint32_t& least = next[sender];
  if (number < least) fault("a datagram came twice, or behind a later one");
  least = number + 1;
}

void DatagramEnd::send(const DatagramEnd& to) {
  if (!endpoint_) return;
  World& world = process_.world();
  // The number of the datagram, and bytes that follow from it.
  std::vector<std::byte> bytes(sizeof sent_ + world.below(world.one_in(4) ? 500 : 20));
  ++sent_;
  fill_bytes(bytes.data(), bytes.size(), sent_);
  std::memcpy(bytes.data(), &sent_, sizeof sent_);
  AddressVector vector;
  vector.is_global = true;
  vector.dgid = process_.pool().gid_of(to.process_.host());
  SendWr wr;
  wr.remote_qpn = to.number();
  wr.remote_qkey = kQkey;
  const base::Piece piece{bytes.data(), bytes.size()};
  if (!try_enter()) return fault("the send lock is held between turns");
  endpoint_->send({wr, &vector, &piece, 1, bytes.size(), 0, WcStatus::kSuccess});
  leave();
}

void DatagramEnd::complete_receive(const core::Inbound& message, WcStatus status) {
  if (process_.is_dead() || status != WcStatus::kSuccess) return;
  uint32_t number = 0;
  if (message.byte_len < core::kGrhBytes + sizeof number) return fault("a short datagram");
  std::vector<std::byte> expected(message.byte_len - core::kGrhBytes);
  std::memcpy(&number, placed_.data() + core::kGrhBytes, sizeof number);
  fill_bytes(expected.data(), expected.size(), number);
  std::memcpy(expected.data(), &number, sizeof number);
  if (!std::equal(expected.begin(), expected.end(), placed_.begin() + core::kGrhBytes))
    return fault("a datagram is not whole");
  check_order(next_, message.src_qp, number);
  ++received_;
}

}  // namespace nupa::pool::sim
