// SPDX-License-Identifier: Apache-2.0
#include "loopback/loopback_transport.h"

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/clock.h"
#include "base/memory_fault.h"
#include "core/seam/deferred_sends.h"
#include "core/seam/grh.h"
#include "core/seam/group_address.h"
#include "core/seam/whole_message.h"

namespace nupa::loopback {
namespace {

using core::Piece;
using core::Request;
using core::Verdict;
using Responder = core::Responder<core::ContextTarget>;

/// Holds the send lock of a queue pair. No thread holds two: the target is entered while the sender is not.
auto enter(core::QpContext& context) {
  while (!context.try_enter()) std::this_thread::yield();
  return std::unique_ptr<core::QpContext, decltype([](core::QpContext* held) { held->leave(); })>(&context);
}

/// A request on its way to its target and back.
struct Message {
  SendWr wr{};
  core::Inbound inbound{};
  uint64_t length = 0;             ///< of the request's list
  std::vector<std::byte> data{};   ///< to the target; of a READ or an atomic: back to the sender
  std::optional<uint32_t> qkey{};  ///< of a datagram
  uint64_t life = 0;               ///< of the sender when the request began
  // Of the answer.
  Verdict verdict = Verdict::not_served();  ///< not_served(): nobody answers now
  uint8_t rnr_timer = 0;
};

/// One queue pair. It is served and receives without a send lock, by one thread at a time.
class End {
 public:
  explicit End(core::QpContext& context) : context_(context) {}
  virtual ~End() = default;
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  /// Brings something to its target.
  virtual void serve() = 0;
  /// Is the target of the message. With the send lock, in a state in which a queue pair receives.
  virtual void receive(Message& message) = 0;
  core::QpContext& context() const { return context_; }

 protected:
  core::QpContext& context_;

 private:
  friend class Loopback;
  std::list<End*> place_{this};  ///< its node while it is not in Loopback::ready_
};

class Loopback final : public core::Transport, public progress::Poller {
 public:
  std::string_view name() const override { return "loopback"; }
  Result<void> open(core::ProcessContext& process) override;
  bool reaches(const AddressVector& vector, uint32_t qp_num) override;
  Result<std::unique_ptr<core::Endpoint>> connect(const core::DeviceEntry& device, core::QpContext& context,
                                                  const QpAttr& attr, bool may_lower_mtu) override;
  Result<std::unique_ptr<core::DatagramSender>> datagrams(const core::DeviceEntry& device, core::QpContext& context,
                                                          host::DueEvent& due) override;
  Result<Mtu> mtu(const core::DeviceEntry&) const override { return Mtu::k4096; }
  progress::Poller* poller() override { return this; }

  void poll() override;
  void finish_poll() override {}
  void program_sleeps() override {}

  // Without a send lock.
  void add(End& end);
  void remove(End& end);
  // Any thread.
  /// The end has something to bring.
  void schedule(End& end);
  /// Within End::serve(). Nothing comes back from a queue pair that is not there.
  void bring(Message& message, uint32_t to);

 private:
  void run(const std::stop_token& stop);
  /// Serves what is scheduled by now. `working`: the lock of work_mutex_.
  void work(std::unique_lock<std::mutex> working);

  core::ProcessContext* process_ = nullptr;
  std::mutex work_mutex_;                    ///< of the thread that works, and of one that adds or removes a queue pair
  std::unordered_map<uint32_t, End*> ends_;  ///< by number; under work_mutex_
  std::mutex queue_mutex_;                   ///< taken with a send lock, or with work_mutex_
  std::condition_variable_any changed_;
  std::list<End*> ready_;  ///< in order, each once; under queue_mutex_
  std::jthread thread_;    ///< ends before the rest
};

// ---- Connected queue pairs.

/// RC, UC, XRC. One request is under way at a time: the oldest that waits.
class LoopbackEndpoint final : public core::Endpoint, public End {
 public:
  LoopbackEndpoint(Loopback& transport, core::QpContext& context, const QpAttr& attr)
      : Endpoint({.batches = true, .copies_in_post = true}),
        End(context),
        transport_(transport),
        remote_qpn_(attr.dest_qp_num),
        read_depth_(attr.max_dest_rd_atomic) {
    transport.add(*this);
  }

  core::Posted post(const Request& request) override {
    const bool begins = sends_.empty() && !paused_;
    core::DeferredSend* const kept = sends_.keep(request);
    if (kept == nullptr) return core::Posted::no_memory();
    if (begins) kept->first_try_ns = base::now_ns();
    return core::Posted::taken();
  }
  void send() override { transport_.schedule(*this); }
  int64_t progress(int64_t now_ns) override {
    if (now_ns < next_try_ns_) return next_try_ns_;
    send();
    return INT64_MAX;
  }
  void start(uint32_t) override { paused_ = false; }
  void set_attributes(const QpAttr& attr) override { limits_ = {attr.timeout, attr.retry_cnt, attr.rnr_retry}; }
  void pause(bool paused) override {
    paused_ = paused;
    if (!paused) send();
  }
  bool drained() const override { return sends_.empty() || !sends_.front().begun(); }
  void flush() override {
    ++life_;
    sends_.flush(context_);
  }
  void withdraw() override { transport_.remove(*this); }
  std::string_view name() const override { return transport_.name(); }

  void serve() override {
    Message message;
    if (const auto entered = enter(context_); !begin(&message)) return;
    transport_.bring(message, remote_qpn_);
    const auto entered = enter(context_);
    if (message.life == life_) finish(message);
  }
  void receive(Message& message) override {
    if (message.qkey || message.inbound.src_qp != remote_qpn_) return;
    context_.established();
    message.verdict = execute(message);
    message.rnr_timer = context_.rnr_timer();
  }

 private:
  bool is_reliable() const { return context_.type() != QpType::kUc; }
  /// Begins the oldest request. False: nothing is to be brought to the target.
  bool begin(Message* message);
  /// Handles the answer.
  void finish(const Message& message);
  void end(WcStatus status, uint64_t length);
  Verdict execute(Message& message);
  Verdict read(Message& message, Responder responder);
  Verdict run_atomic(Message& message, Responder responder);

  Loopback& transport_;
  const uint32_t remote_qpn_;
  const uint8_t read_depth_;  ///< as a target
  core::RetryLimits limits_;
  core::DeferredSends sends_;
  bool paused_ = false;
  int64_t next_try_ns_ = 0;
  uint64_t life_ = 0;  ///< counts flushes: what began before one has no request any more
};

bool LoopbackEndpoint::begin(Message* message) {
  while (!sends_.empty()) {
    if (context_.state() == QpState::kErr || context_.state() == QpState::kSqe) {
      flush();
      return false;
    }
    core::DeferredSend& oldest = sends_.front();
    if (paused_ && !oldest.begun()) return false;
    const bool local = core::is_local(oldest.wr.opcode);
    const WcStatus status = sends_.run_front(context_, [&](const Request& request) {
      if (local) return context_.run_local(request.wr);
      *message = {.wr = request.wr,
                  .inbound = core::inbound_of(request.wr, context_.number()),
                  .length = request.length,
                  .life = life_};
      if (!core::writes_own_list(request.wr.opcode)) message->data = core::gathered(request);
      return WcStatus::kSuccess;
    });
    if (status == WcStatus::kSuccess && !local) {
      if (!oldest.begun()) oldest.first_try_ns = base::now_ns();
      return true;
    }
    end(status, 0);
  }
  return false;
}

void LoopbackEndpoint::finish(const Message& message) {
  using Reason = core::DeferredSend::Reason;
  const Verdict verdict = message.verdict;
  const bool not_ready = verdict.is_not_ready() || verdict.is_later();
  WcStatus status = WcStatus::kSuccess;
  if (verdict.is_not_served() || (not_ready && is_reliable())) {
    const Reason reason = not_ready ? Reason::kNotReady : Reason::kNoAnswer;
    next_try_ns_ = sends_.postpone(reason, message.rnr_timer, limits_, base::now_ns(), &status);
    if (next_try_ns_ != 0) return context_.wake_at(next_try_ns_);
  } else if (verdict.is_refused() && is_reliable()) {
    status = core::rule_of(verdict.refusal()).requester;
  } else if (verdict.is_accepted() && core::writes_own_list(message.wr.opcode)) {
    status = sends_.run_front(context_, [&](const Request& request) {
      core::scatter(request, message.data.data(), message.data.size());
      return WcStatus::kSuccess;
    });
  }
  end(status, message.length);
  send();
}

void LoopbackEndpoint::end(WcStatus status, uint64_t length) {
  sends_.end_front(context_, status, length);
  if (status != WcStatus::kSuccess) flush();
}

Verdict LoopbackEndpoint::execute(Message& message) {
  const SendWr& wr = message.wr;
  core::ContextTarget target(context_);
  Responder responder(target, is_reliable());
  if (wr.opcode == Opcode::kRdmaRead) return read(message, responder);
  if (wr.opcode == Opcode::kFlush) return responder.flush(core::flush_of(wr), read_depth_);
  if (core::is_atomic(wr.opcode) || wr.opcode == Opcode::kAtomicWrite) return run_atomic(message, responder);
  const Piece piece{message.data.data(), message.data.size()};
  const bool writes = wr.opcode == Opcode::kRdmaWrite || wr.opcode == Opcode::kRdmaWriteWithImm;
  Responder::Message received;
  const Verdict verdict =
      writes ? responder.write(core::whole_write(wr, &piece, 1, piece.length), &message.inbound, &received)
             : responder.send(core::whole_send(wr, &piece, 1, piece.length), &message.inbound, &received);
  if (verdict.is_not_served()) responder.give_back(&received);  // the next try takes a receive again
  return verdict;
}

Verdict LoopbackEndpoint::read(Message& message, Responder responder) {
  const SendWr& wr = message.wr;
  core::ContextTarget::Range range;
  const Verdict verdict =
      responder.read(wr.remote_srqn, wr.rkey, wr.remote_addr, message.length, 0, read_depth_, &range);
  if (!verdict.is_accepted() || message.length == 0) return verdict;
  if (range.at == nullptr) return Verdict::not_served();  // its owner, another process, has not copied it yet
  message.data.resize(message.length);
  const auto copy = [&] { std::memcpy(message.data.data(), range.at, message.length); };
  return base::try_access(range.at, message.length, copy) ? verdict : responder.refuse(core::Refusal::kRemoteOperation);
}

Verdict LoopbackEndpoint::run_atomic(Message& message, Responder responder) {
  const SendWr& wr = message.wr;
  uint64_t operand = wr.compare_add;
  // The value of an ATOMIC_WRITE is in a list, or, as the builder has it, in the request itself.
  if (!message.data.empty()) {
    if (message.data.size() != core::kAtomicBytes) return responder.refuse(core::Refusal::kInvalidRequest);
    std::memcpy(&operand, message.data.data(), core::kAtomicBytes);
  }
  const Verdict verdict = responder.atomic(core::atomic_op_of(wr.opcode), wr.remote_srqn, wr.rkey, wr.remote_addr,
                                           &operand, wr.swap, 0, read_depth_);
  const auto* const found = reinterpret_cast<const std::byte*>(&operand);
  message.data.assign(found, found + core::kAtomicBytes);
  return verdict;
}

// ---- Datagrams.

/// UD. Groups are left to the other transports, or members would get each datagram twice.
class LoopbackDatagrams final : public core::DatagramSender, public End {
 public:
  LoopbackDatagrams(Loopback& transport, const core::DeviceEntry& device, core::QpContext& context)
      : End(context), transport_(transport), gids_(device.gids) {
    transport.add(*this);
  }

  Reach leads_to(const AddressVector& vector, uint32_t qp_num) override {
    return transport_.reaches(vector, qp_num) ? Reach::kYes : Reach::kNo;
  }
  std::optional<WcStatus> send(const Request& request) override {
    const AddressVector& vector = *request.vector;
    if (vector.is_global && core::names_group(vector.dgid)) return WcStatus::kSuccess;
    const Gid& source = gids_[std::min<size_t>(vector.sgid_index, gids_.size() - 1)].gid;
    const core::RouteHeader header = core::make_route_header(vector, source, vector.dgid, request.length);
    Message& message = leaving_.emplace_back(Message{
        .wr = request.wr,
        .inbound = core::inbound_of(request.wr, context_.number()),
        .data = core::gathered(request, header.size()),
        .qkey = core::qkey_of(request.wr, context_),
    });
    std::ranges::copy(header, message.data.begin());
    message.inbound.sl = vector.sl;
    message.inbound.slid = vector.is_global ? 0 : vector.dlid;
    if (vector.is_global) message.inbound.wc_flags |= wc_flag::kGrh;
    transport_.schedule(*this);
    return WcStatus::kSuccess;
  }
  void withdraw() override { transport_.remove(*this); }

  void serve() override {
    auto entered = enter(context_);
    std::list<Message> leaving = std::move(leaving_);
    leaving_.clear();
    entered.reset();
    for (Message& message : leaving) transport_.bring(message, message.wr.remote_qpn);
  }
  void receive(Message& message) override {
    if (message.qkey != context_.qkey()) return;
    core::ContextTarget target(context_);
    const Piece piece{message.data.data(), message.data.size()};
    Responder::Message received;
    Responder(target, false).send(core::whole_datagram(&piece, 1, piece.length), &message.inbound, &received);
  }

 private:
  Loopback& transport_;
  const std::vector<GidEntry> gids_;
  std::list<Message> leaving_;  ///< under the send lock
};

// ---- The transport.

Result<void> Loopback::open(core::ProcessContext& process) {
  process_ = &process;
  process.count_thread(true);
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  return {};
}

bool Loopback::reaches(const AddressVector& vector, uint32_t qp_num) {
  host::Node& node = process_->node();
  if (!shm::claims_slot(*node.self().tables().header, shm::slot_of(qp_num))) return false;
  return !vector.is_global || shm::has_gid(*node.segment().tables().header, vector.dgid);
}

Result<std::unique_ptr<core::Endpoint>> Loopback::connect(const core::DeviceEntry&, core::QpContext& context,
                                                          const QpAttr& attr, bool) {
  return std::make_unique<LoopbackEndpoint>(*this, context, attr);
}

Result<std::unique_ptr<core::DatagramSender>> Loopback::datagrams(const core::DeviceEntry& device,
                                                                  core::QpContext& context, host::DueEvent&) {
  return std::make_unique<LoopbackDatagrams>(*this, device, context);
}

void Loopback::add(End& end) {
  std::lock_guard lock(work_mutex_);
  ends_[end.context().number()] = &end;
}

void Loopback::remove(End& end) {
  std::lock_guard work_lock(work_mutex_);
  end.serve();  // a datagram leaves before its queue pair
  std::lock_guard lock(queue_mutex_);
  ready_.remove(&end);
  const auto known = ends_.find(end.context().number());
  if (known != ends_.end() && known->second == &end) ends_.erase(known);
}

void Loopback::schedule(End& end) {
  {
    std::lock_guard lock(queue_mutex_);
    ready_.splice(ready_.end(), end.place_);
    warm_.store(true, std::memory_order_relaxed);
  }
  changed_.notify_one();
}

void Loopback::run(const std::stop_token& stop) {
  std::unique_lock lock(queue_mutex_);
  while (changed_.wait(lock, stop, [this] { return !ready_.empty(); })) {
    lock.unlock();
    work(std::unique_lock(work_mutex_));
    lock.lock();
  }
}

void Loopback::poll() {
  if (std::unique_lock lock(work_mutex_, std::try_to_lock); lock.owns_lock()) work(std::move(lock));
}

void Loopback::work(std::unique_lock<std::mutex>) {
  std::unique_lock lock(queue_mutex_);
  std::list<End*> ready = std::move(ready_);
  ready_.clear();
  warm_.store(false, std::memory_order_relaxed);
  while (!ready.empty()) {
    End& end = *ready.front();
    end.place_.splice(end.place_.end(), ready, ready.begin());
    lock.unlock();
    end.serve();
    lock.lock();
  }
}

void Loopback::bring(Message& message, uint32_t to) {
  const auto found = ends_.find(to);
  if (found == ends_.end()) return;
  core::QpContext& context = found->second->context();
  const auto entered = enter(context);
  if (context.state() >= QpState::kRtr && context.state() != QpState::kErr) found->second->receive(message);
}

}  // namespace

Result<std::unique_ptr<core::Transport>> make_transport() { return std::make_unique<Loopback>(); }

}  // namespace nupa::loopback
