// SPDX-License-Identifier: Apache-2.0
#include "loopback/loopback_transport.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/memory_fault.h"
#include "core/seam/grh.h"
#include "core/seam/group_address.h"

namespace nupa::loopback {

using core::Piece;
using core::Posted;
using core::Request;
using core::Verdict;
using Responder = core::Responder<core::ContextTarget>;

namespace {

/// The pause before a queue pair that another thread holds is tried again.
constexpr int64_t kHeldPauseNs = 20'000;

bool is_send(Opcode opcode) {
  return opcode == Opcode::kSend || opcode == Opcode::kSendWithImm || opcode == Opcode::kSendWithInv;
}
bool is_write(Opcode opcode) { return opcode == Opcode::kRdmaWrite || opcode == Opcode::kRdmaWriteWithImm; }

core::AtomicOp atomic_op(Opcode opcode) {
  return opcode == Opcode::kCompareSwap ? core::AtomicOp::kCompareSwap
         : opcode == Opcode::kFetchAdd  ? core::AtomicOp::kFetchAdd
                                        : core::AtomicOp::kWrite;
}

core::Inbound inbound_of(const SendWr& wr, uint32_t from) {
  core::Inbound inbound;
  inbound.src_qp = from;
  inbound.solicited = (wr.flags & send_flag::kSolicited) != 0;
  if (wr.opcode == Opcode::kSendWithImm || wr.opcode == Opcode::kRdmaWriteWithImm)
    inbound.wc_flags = wc_flag::kWithImm;
  else if (wr.opcode == Opcode::kSendWithInv)
    inbound.wc_flags = wc_flag::kWithInv;
  if (inbound.wc_flags != 0) inbound.imm_data = wr.imm_or_rkey;
  if (wr.opcode == Opcode::kRdmaWriteWithImm) inbound.opcode = WcOpcode::kRecvRdmaWithImm;
  return inbound;
}

std::vector<std::byte> gather(const Request& request, size_t before = 0) {
  std::vector<std::byte> bytes(before + request.length);
  std::byte* to = bytes.data() + before;
  for (uint32_t i = 0; i < request.piece_count; ++i) {
    if (request.pieces[i].data != nullptr) std::memcpy(to, request.pieces[i].data, request.pieces[i].length);
    to += request.pieces[i].length;
  }
  return bytes;
}

void scatter(const Request& request, const std::byte* from, uint64_t length) {
  for (uint32_t i = 0; i < request.piece_count && length > 0; ++i) {
    const uint64_t step = std::min(length, request.pieces[i].length);
    if (request.pieces[i].data != nullptr) std::memcpy(request.pieces[i].data, from, step);
    from += step;
    length -= step;
  }
}

}  // namespace

// ---- Connected queue pairs.

LoopbackEndpoint::LoopbackEndpoint(LoopbackTransport& transport, core::QpContext& context, const QpAttr& attr)
    : Endpoint({.batches = true, .copies_in_post = true}),
      transport_(transport),
      context_(context),
      remote_qpn_(attr.dest_qp_num),
      read_depth_(attr.max_dest_rd_atomic) {
  std::lock_guard lock(transport_.work_mutex_);
  transport_.endpoints_[context.number()] = this;
}

Posted LoopbackEndpoint::post(const Request& request) {
  const bool begins = sends_.empty() && !paused_;
  core::DeferredSend* const kept = sends_.keep(request);
  if (kept == nullptr) return Posted::no_memory();
  if (begins) kept->first_try_ns = base::now_ns();
  return Posted::taken();
}

void LoopbackEndpoint::send() { transport_.schedule(context_.number(), 0); }

void LoopbackEndpoint::set_attributes(const QpAttr& attr) { limits_ = {attr.timeout, attr.retry_cnt, attr.rnr_retry}; }

void LoopbackEndpoint::pause(bool paused) {
  paused_ = paused;
  if (!paused) send();
}

void LoopbackEndpoint::flush() {
  ++life_;
  sends_.flush(context_);
}

void LoopbackEndpoint::withdraw() {
  std::lock_guard lock(transport_.work_mutex_);
  const auto known = transport_.endpoints_.find(context_.number());
  if (known != transport_.endpoints_.end() && known->second == this) transport_.endpoints_.erase(known);
}

void LoopbackEndpoint::end(WcStatus status, uint64_t length) {
  const auto ended = sends_.take();
  context_.complete_send(ended->wr, ended->position, status, length);
  if (status != WcStatus::kSuccess) flush();
}

bool LoopbackEndpoint::begin(int64_t now_ns, Message* message) {
  while (!sends_.empty()) {
    const QpState state = context_.state();
    if (state == QpState::kErr || state == QpState::kSqe) {
      flush();
      return false;
    }
    core::DeferredSend& oldest = sends_.front();
    if (paused_ && !oldest.begun()) return false;
    const WcStatus fault = sends_.run_front(
        context_,
        [&](const Request& request) {
          if (core::is_local(request.wr.opcode)) return WcStatus::kSuccess;
          message->length = request.length;
          if (!core::writes_own_list(request.wr.opcode)) message->data = gather(request);
          return WcStatus::kSuccess;
        },
        [](WcStatus status) { return status; });
    if (fault == WcStatus::kSuccess && !core::is_local(oldest.wr.opcode)) {
      if (!oldest.begun()) oldest.first_try_ns = now_ns;
      message->wr = oldest.wr;
      message->life = life_;
      return true;
    }
    end(fault != WcStatus::kSuccess ? fault : context_.run_local(oldest.wr), 0);
  }
  return false;
}

int64_t LoopbackEndpoint::finish(Message& message, int64_t now_ns) {
  if (message.life != life_ || sends_.empty()) return 0;  // flushed meanwhile
  const bool not_ready = message.answered && (message.verdict.is_not_ready() || message.verdict.is_later());
  if (!message.answered || (not_ready && is_reliable())) {
    const auto reason = not_ready ? core::DeferredSend::Reason::kNotReady : core::DeferredSend::Reason::kNoAnswer;
    WcStatus status = WcStatus::kSuccess;
    if (const int64_t next = sends_.postpone(reason, message.rnr_timer, limits_, now_ns, &status); next != 0)
      return next;
    end(status, 0);
    return 0;
  }
  WcStatus status = WcStatus::kSuccess;
  if (message.verdict.is_refused() && is_reliable()) {
    status = core::rule_of(message.verdict.refusal()).requester;
  } else if (message.verdict.is_accepted() && core::writes_own_list(message.wr.opcode)) {
    const std::byte* const from =
        core::is_atomic(message.wr.opcode) ? reinterpret_cast<const std::byte*>(&message.operand) : message.data.data();
    const uint64_t length = core::is_atomic(message.wr.opcode) ? core::kAtomicBytes : message.length;
    status = sends_.run_front(
        context_,
        [&](const Request& request) {
          scatter(request, from, length);
          return WcStatus::kSuccess;
        },
        [](WcStatus fault) { return fault; });
  }
  end(status, message.length);
  return 0;
}

// ---- Datagrams.

LoopbackDatagrams::LoopbackDatagrams(LoopbackTransport& transport, const core::DeviceEntry& device,
                                     core::QpContext& context)
    : transport_(transport), gids_(device.gids), context_(context) {
  std::lock_guard lock(transport_.work_mutex_);
  transport_.datagram_ends_[context.number()] = &context;
}

core::DatagramSender::Reach LoopbackDatagrams::leads_to(const AddressVector& vector, uint32_t qp_num) {
  return transport_.reaches(vector, qp_num) ? Reach::kYes : Reach::kNo;
}

std::optional<WcStatus> LoopbackDatagrams::send(const Request& request) {
  const AddressVector& vector = *request.vector;
  if (vector.is_global && core::names_group(vector.dgid)) return WcStatus::kSuccess;
  LoopbackTransport::Datagram datagram{request.wr.remote_qpn, request.wr.remote_qkey,
                                       inbound_of(request.wr, context_.number()), gather(request, core::kGrhBytes)};
  if ((datagram.qkey & 0x80000000u) != 0) datagram.qkey = context_.qkey();  // IBTA 10.2.5
  const Gid& source = gids_[std::min<size_t>(vector.sgid_index, gids_.size() - 1)].gid;
  const auto header = core::make_route_header(vector, source, vector.dgid, request.length);
  std::copy(header.begin(), header.end(), datagram.bytes.begin());
  datagram.inbound.sl = vector.sl;
  datagram.inbound.slid = vector.is_global ? 0 : vector.dlid;
  if (vector.is_global) datagram.inbound.wc_flags |= wc_flag::kGrh;
  {
    std::lock_guard lock(transport_.queue_mutex_);
    transport_.datagrams_.push_back(std::move(datagram));
  }
  transport_.schedule(0, 0);
  return WcStatus::kSuccess;
}

void LoopbackDatagrams::withdraw() {
  std::lock_guard lock(transport_.work_mutex_);
  transport_.datagram_ends_.erase(context_.number());
}

// ---- The transport.

LoopbackTransport::~LoopbackTransport() {
  {
    std::lock_guard lock(queue_mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<void> LoopbackTransport::open(core::ProcessContext& process) {
  process_ = &process;
  process.count_thread(true);
  thread_ = std::thread([this] { run(); });
  return {};
}

bool LoopbackTransport::reaches(const AddressVector& vector, uint32_t qp_num) {
  host::Node& node = process_->node();
  if (!shm::claims_slot(*node.self().tables().header, shm::slot_of(qp_num))) return false;
  return !vector.is_global || shm::has_gid(*node.segment().tables().header, vector.dgid);
}

Result<std::unique_ptr<core::Endpoint>> LoopbackTransport::connect(const core::DeviceEntry&, core::QpContext& context,
                                                                   const QpAttr& attr, bool) {
  return std::make_unique<LoopbackEndpoint>(*this, context, attr);
}

Result<std::unique_ptr<core::DatagramSender>> LoopbackTransport::datagrams(const core::DeviceEntry& device,
                                                                           core::QpContext& context, host::DueEvent&) {
  return std::make_unique<LoopbackDatagrams>(*this, device, context);
}

void LoopbackTransport::schedule(uint32_t qp_num, int64_t when_ns) {
  {
    std::lock_guard lock(queue_mutex_);
    due_.emplace(when_ns, qp_num);
    warm_.store(true, std::memory_order_relaxed);
  }
  changed_.notify_one();
}

void LoopbackTransport::run() {
  for (;;) {
    {
      std::unique_lock lock(queue_mutex_);
      const auto is_due = [&] { return !due_.empty() && due_.begin()->first <= base::now_ns(); };
      while (!stops_ && !is_due()) {
        if (due_.empty())
          changed_.wait(lock);
        else
          changed_.wait_for(lock, std::chrono::nanoseconds(due_.begin()->first - base::now_ns()));
      }
      if (stops_) return;
    }
    std::lock_guard work_lock(work_mutex_);
    work();
  }
}

void LoopbackTransport::poll() {
  std::unique_lock lock(work_mutex_, std::try_to_lock);
  if (lock.owns_lock()) work();
}

bool LoopbackTransport::work() {
  std::vector<uint32_t> numbers;
  std::deque<Datagram> arrived;
  const int64_t now = base::now_ns();
  {
    std::lock_guard lock(queue_mutex_);
    const auto end = due_.upper_bound(now);
    for (auto each = due_.begin(); each != end; ++each)  // what was posted first is done first
      if (std::ranges::find(numbers, each->second) == numbers.end()) numbers.push_back(each->second);
    due_.erase(due_.begin(), end);
    arrived.swap(datagrams_);
    warm_.store(!due_.empty(), std::memory_order_relaxed);
  }
  while (!arrived.empty() && deliver(arrived.front())) arrived.pop_front();
  if (!arrived.empty()) {
    {
      std::lock_guard lock(queue_mutex_);
      datagrams_.insert(datagrams_.begin(), std::make_move_iterator(arrived.begin()),
                        std::make_move_iterator(arrived.end()));
    }
    schedule(0, now + kHeldPauseNs);
  }
  for (const uint32_t number : numbers) {
    const auto from = endpoints_.find(number);
    if (from == endpoints_.end()) continue;
    if (const int64_t next = serve(*from->second, now); next != INT64_MAX) schedule(number, next);
  }
  return !numbers.empty();
}

int64_t LoopbackTransport::serve(LoopbackEndpoint& from, int64_t now_ns) {
  LoopbackEndpoint::Message message;
  while (!from.context_.try_enter()) std::this_thread::yield();
  const bool begun = from.begin(now_ns, &message);
  from.context_.leave();
  if (!begun) return INT64_MAX;
  // No thread holds two send locks: the target is entered while the initiator is not.
  const auto to = endpoints_.find(from.remote_qpn_);
  if (to != endpoints_.end()) {
    while (!to->second->context_.try_enter()) std::this_thread::yield();
    if (to->second->remote_qpn_ == from.context_.number()) answer(message, *to->second);
    to->second->context_.leave();
  }
  while (!from.context_.try_enter()) std::this_thread::yield();
  const int64_t next = from.finish(message, base::now_ns());
  from.context_.leave();
  return next;
}

void LoopbackTransport::answer(LoopbackEndpoint::Message& message, LoopbackEndpoint& to) {
  const QpState state = to.context_.state();
  if (state < QpState::kRtr || state == QpState::kErr) return;
  const SendWr& wr = message.wr;
  core::ContextTarget target(to.context_);
  Responder responder(target, to.is_reliable());
  Responder::Message received;
  core::Inbound inbound = inbound_of(wr, to.remote_qpn_);
  const Piece piece{message.data.data(), message.data.size()};
  message.answered = true;
  if (is_send(wr.opcode)) {
    message.verdict = responder.send(
        {true, true, &piece, 1, piece.length, wr.remote_srqn, wr.opcode == Opcode::kSendWithInv, wr.imm_or_rkey},
        &inbound, &received);
  } else if (is_write(wr.opcode)) {
    message.verdict = responder.write({true, true, wr.opcode == Opcode::kRdmaWriteWithImm, false, &piece, 1,
                                       piece.length, piece.length, wr.remote_addr, wr.rkey, wr.remote_srqn},
                                      &inbound, &received);
  } else if (wr.opcode == Opcode::kRdmaRead) {
    core::ContextTarget::Range range;
    message.verdict =
        responder.read(wr.remote_srqn, wr.rkey, wr.remote_addr, message.length, 0, to.read_depth_, &range);
    message.data.resize(message.length);
    if (message.verdict.is_accepted() && message.length > 0 && range.at == nullptr)
      message.verdict = Verdict::not_served();
    if (message.verdict.is_accepted() && message.length > 0 && !base::try_access(range.at, message.length, [&] {
          std::memcpy(message.data.data(), range.at, message.length);
        }))
      message.verdict = responder.refuse(core::Refusal::kRemoteOperation);
  } else if (wr.opcode == Opcode::kAtomicWrite && piece.length != 0 && piece.length != core::kAtomicBytes) {
    message.verdict = responder.refuse(core::Refusal::kInvalidRequest);
  } else {
    message.operand = wr.compare_add;
    if (piece.length != 0) std::memcpy(&message.operand, piece.data, core::kAtomicBytes);
    message.verdict = responder.atomic(atomic_op(wr.opcode), wr.remote_srqn, wr.rkey, wr.remote_addr, &message.operand,
                                       wr.swap, 0, to.read_depth_);
  }
  if (message.verdict.is_not_served()) {  // all anew, as if the request had been lost on its way
    responder.give_back(&received);
    message.answered = false;
  }
  message.rnr_timer = to.context_.rnr_timer();
  if (message.verdict.is_accepted() && !to.established_) {
    to.context_.established();
    to.established_ = true;
  }
}

bool LoopbackTransport::deliver(Datagram& datagram) {
  const auto found = datagram_ends_.find(datagram.to);
  if (found == datagram_ends_.end()) return true;
  core::QpContext& context = *found->second;
  if (!context.try_enter()) return false;
  const QpState state = context.state();
  if (state >= QpState::kRtr && state != QpState::kErr && context.qkey() == datagram.qkey) {
    core::ContextTarget target(context);
    Responder::Message received;
    const Piece piece{datagram.bytes.data(), datagram.bytes.size()};
    Responder(target, false).send({true, true, &piece, 1, piece.length, 0, false, 0}, &datagram.inbound, &received);
  }
  context.leave();
  return true;
}

}  // namespace nupa::loopback
