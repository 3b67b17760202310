// SPDX-License-Identifier: Apache-2.0
#include "core/qp.h"
#include "base/probe.h"

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "core/device_attr.h"
#include "core/qp_state.h"

namespace nupa::core {

namespace {

/// The longest wait of a state change for a peer that is filling a receive.
constexpr int64_t kFillWaitNs = 2'000'000'000;

}  // namespace

Qp::Qp(DeviceImpl& device, Pd* pd, uint32_t index, const QpOptions& options)
    : process_(device.process()),
      shared_(process_.queue_pairs().qp(index)),
      keys_(process_.tables().mr),
      usual_operations_(usual_operations(options.type, options.cap.max_send_sge)),
      max_send_wr_(options.cap.max_send_wr),
      max_inline_data_(static_cast<uint16_t>(options.cap.max_inline_data)),
      signal_all_(options.signal_all),
      side_slot_(options.send_cq == nullptr ? nullptr : static_cast<CompletionSink*>(options.send_cq)->side_slot()),
      operations_(operations(options.type)),
      max_send_sge_(static_cast<uint16_t>(options.cap.max_send_sge)),
      datagram_(options.type == QpType::kUd),
      send_lock_(shared_->send_lock),
      device_(device),
      pd_(pd),
      index_(index),
      qp_num_(process_.objects().qps().number_of(index)),
      options_(options),
      send_cq_(static_cast<CompletionSink*>(options.send_cq)),
      recv_cq_(static_cast<CompletionSink*>(options.recv_cq)),
      srq_(static_cast<Srq*>(options.srq)),
      xrcd_(static_cast<Xrcd*>(options.xrcd)),
      context_(*this) {}

int Qp::open() {
  const bool receives = options_.type != QpType::kXrcSend && options_.type != QpType::kXrcRecv && srq_ == nullptr;
  if (receives) {
    auto queue = ReceiveQueue::create(process_.ring_memory(), process_.tag(), shared_->recv,
                                      std::max(options_.cap.max_recv_wr, 1u), std::max(options_.cap.max_recv_sge, 1u),
                                      pd_->handle());
    if (!queue) {
      process_.objects().qps().indices().give_back(index_);
      return queue.error().code();
    }
    queue_ = std::move(*queue);
  } else {
    options_.cap.max_recv_wr = 0;
    options_.cap.max_recv_sge = 0;
  }
  shared_->qp_num = qp_num_;
  shared_->type = static_cast<uint32_t>(options_.type);
  shared_->device = device_.entry().index;
  shared_->pd = pd_ == nullptr ? 0 : pd_->handle();
  shared_->recv_cq = recv_cq_ == nullptr ? 0 : recv_cq_->index();
  shared_->srq = srq_ == nullptr ? 0 : srq_->index() + 1;
  shared_->xrcd = xrcd_ == nullptr ? 0 : xrcd_->identity();
  shared_->access.store(0);
  shared_->read_depth.store(0);
  shared_->remote_qpn.store(0);
  shared_->remote_slot.store(0);
  shared_->qkey.store(0);
  shared_->error.store(0);
  shared_->sender_waits.store(0);
  shared_->wake.store(0);
  shared_->established.store(0);
  shared_->transport.store(0);
  shared_->counting.store(shm::Counting::kNone);
  shm::QpCounters& counters = shared_->counters;
  for (auto* counter : {&counters.messages, &counters.bytes, &shared_->received, &counters.errors, &counters.rnr,
                        &counters.counted_messages, &counters.counted_bytes})
    counter->store(0);
  next_epoch();
  shared_->in_use.store(1);

  auto& high_water = *process_.queue_pairs().at(shm::bank_of(index_)).high_water;
  const uint32_t place = shm::index_of(index_);
  uint32_t seen = high_water.load();
  while (seen <= place && !high_water.compare_exchange_weak(seen, place + 1)) {
  }
  if (send_cq_ != nullptr) {
    send_cq_->users.add();
    send_port_ = host::CompletionPort(process_.node().self(), send_cq_->index());
  }
  if (recv_cq_ != nullptr) {
    recv_cq_->users.add();
    recv_port_ = host::CompletionPort(process_.node().self(), recv_cq_->index());
  }
  if (srq_ != nullptr) srq_->users.add();
  if (xrcd_ != nullptr) xrcd_->users.add();
  if (pd_ != nullptr) pd_->users.add();
  device_.users.add();
  process_.objects().qps().enter(*this, index_);
  open_ = true;
  return 0;
}

std::string_view Qp::transport() const {
  const QpState now = state();
  if (now == QpState::kReset || now == QpState::kInit || options_.type == QpType::kUd) return {};
  const uint64_t word = shared_->transport.load();
  for (const TransportEntry& entry : transport_entries())
    if (shm::pack_name(entry.name) == word) return entry.name;
  return {};
}

Qp::~Qp() {
  if (open_ && close() != 0) NUPA_ERROR("queue pair 0x%06x deleted while in use", qp_num_);
}

int Qp::close() {
  if (openers.any()) return EBUSY;
  const shm::SegmentHeader& header = *process_.tables().header;
  for (uint32_t i = 0; i < header.mcast_high_water.load(); ++i)
    if (header.mcast[i].qp.load() == index_ + 1) return EBUSY;
  open_ = false;
  if (process_.is_here()) {
    shared_->in_use.store(0);
    to_reset();
    process_.port_totals().retire(*shared_, context_.statistics());
    // A transport's thread may have added it before it was withdrawn.
    process_.pending().remove(*this);
    process_.objects().qps().leave(index_);
    if (send_cq_ != nullptr) send_cq_->forget(qp_num_);
    if (recv_cq_ != nullptr) recv_cq_->forget(qp_num_);
    queue_.reset();
    device_.events().forget(this);
    process_.objects().qps().indices().give_back(index_);
  } else {
    [[maybe_unused]] const auto* parents_endpoint = endpoint_.release();
    [[maybe_unused]] const auto* parents_queue = queue_.release();
  }
  if (send_cq_ != nullptr) send_cq_->users.drop();
  if (recv_cq_ != nullptr) recv_cq_->users.drop();
  if (srq_ != nullptr) srq_->users.drop();
  if (xrcd_ != nullptr) xrcd_->users.drop();
  if (pd_ != nullptr) pd_->users.drop();
  device_.users.drop();
  return 0;
}

bool Qp::set_state(QpState state) {
  uint64_t word = shared_->state.load();
  do {
    if (shm::state_of(word) == QpState::kErr && state != QpState::kErr) return false;
  } while (!shared_->state.compare_exchange_weak(word, shm::pack_state(shm::epoch_of(word), state)));
  NUPA_PROBE(state, qp_num_, static_cast<uint32_t>(shm::state_of(word)), static_cast<uint32_t>(state));
  return true;
}

void Qp::enter_error(std::optional<EventType> event) {
  const uint64_t word = shared_->state.load();
  if (shm::state_of(word) != QpState::kErr) {
    // Before the state: the service thread that sees the state also takes the event.
    if (event) shared_->error.store(shm::pack_error(shm::epoch_of(word), *event), std::memory_order_release);
    set_state(QpState::kErr);
  }
  host::call_attention(process_.node().self(), shm::attention::kQp, index_);
}

void Qp::next_epoch() {
  uint64_t word = shared_->state.load();
  while (!shared_->state.compare_exchange_weak(word, shm::pack_state(shm::epoch_of(word) + 1, QpState::kReset))) {
  }
}

void Qp::apply(const QpAttr& attr, uint32_t mask) {
  if (mask & qp_attr::kAccessFlags) attr_.access_flags = attr.access_flags;
  if (mask & qp_attr::kPkeyIndex) attr_.pkey_index = attr.pkey_index;
  if (mask & qp_attr::kPort) attr_.port_num = attr.port_num;
  if (mask & qp_attr::kQkey) attr_.qkey = attr.qkey;
  if (mask & qp_attr::kAv) attr_.av = attr.av;
  if (mask & qp_attr::kPathMtu) attr_.path_mtu = attr.path_mtu;
  if (mask & qp_attr::kTimeout) attr_.timeout = attr.timeout;
  if (mask & qp_attr::kRetryCnt) attr_.retry_cnt = attr.retry_cnt;
  if (mask & qp_attr::kRnrRetry) attr_.rnr_retry = attr.rnr_retry;
  if (mask & qp_attr::kRqPsn) attr_.rq_psn = attr.rq_psn;
  if (mask & qp_attr::kSqPsn) attr_.sq_psn = attr.sq_psn;
  if (mask & qp_attr::kMaxQpRdAtomic) attr_.max_rd_atomic = attr.max_rd_atomic;
  if (mask & qp_attr::kMaxDestRdAtomic) attr_.max_dest_rd_atomic = attr.max_dest_rd_atomic;
  if (mask & qp_attr::kMinRnrTimer) attr_.min_rnr_timer = attr.min_rnr_timer;
  if (mask & qp_attr::kDestQpn) attr_.dest_qp_num = attr.dest_qp_num;
  if (mask & qp_attr::kPathMigState) attr_.path_mig_state = attr.path_mig_state;
  if (mask & qp_attr::kEnSqdAsyncNotify) attr_.en_sqd_async_notify = attr.en_sqd_async_notify;
  cut_to_fields(attr_);
}

void Qp::publish_attributes() {
  max_rd_atomic_ = attr_.max_rd_atomic;
  if (endpoint_ != nullptr) endpoint_->set_attributes(attr_);
  shared_->access.store(attr_.access_flags);
  shared_->read_depth.store(attr_.max_dest_rd_atomic);
  shared_->qkey.store(attr_.qkey);
  shared_->rnr_timer.store(attr_.min_rnr_timer);
}

int Qp::to_rtr(const QpAttr& attr) {
  shared_->remote_qpn.store(attr_.dest_qp_num);
  auto endpoint = datagram_ ? process_.transports().datagrams(device_.entry(), context_)
                            : process_.transports().connect(device_.entry(), context_, attr_);
  if (!endpoint) {
    NUPA_WARN("queue pair %u of %s cannot be connected: %s", number(), device_.name().c_str(), endpoint.error().what());
    return endpoint.error().code();
  }
  (*endpoint)->set_attributes(attr_);
  if (const auto opened = process_.port_totals().open(process_.node().runtime_dir().path(), process_.slot()); !opened)
    NUPA_INFO("the counters of the devices miss this process: %s", opened.error().what());
  std::lock_guard lock(send_lock_);
  endpoint_ = std::move(*endpoint);
  recorder_.reset();
  batches_ = endpoint_->traits().batches;
  copies_in_post_ = endpoint_->traits().copies_in_post;
  begin_counts(endpoint_->traits().loops_back ? shm::Counting::kByMessages : shm::Counting::kByTransport);
  shared_->transport.store(shm::pack_name(endpoint_->name()));
  set_state(attr.state);
  endpoint_->entered_rtr();
  return 0;
}

std::unique_ptr<Endpoint> Qp::take_endpoint() {
  if (endpoint_ != nullptr) endpoint_->stop();
  settle_counts();
  context_.forget_calls();
  batches_ = copies_in_post_ = false;
  return std::move(endpoint_);
}

void Qp::begin_counts(shm::Counting counting) {
  shm::QpCounters& counters = shared_->counters;
  counters.counted_messages.store(counters.messages.load(std::memory_order_relaxed), std::memory_order_relaxed);
  counters.counted_bytes.store(counters.bytes.load(std::memory_order_relaxed), std::memory_order_relaxed);
  shared_->counting.store(counting, std::memory_order_relaxed);
}

void Qp::settle_counts() {
  if (shared_->counting.load(std::memory_order_relaxed) != shm::Counting::kByMessages) return;
  shm::QpCounters& counters = shared_->counters;
  const uint64_t messages =
      counters.messages.load(std::memory_order_relaxed) - counters.counted_messages.load(std::memory_order_relaxed);
  const uint64_t bytes =
      counters.bytes.load(std::memory_order_relaxed) - counters.counted_bytes.load(std::memory_order_relaxed);
  begin_counts(shm::Counting::kByTransport);
  shm::PortCountsShared& port = context_.port_counts();
  for (const auto count : {shm::PortCount::kXmitPackets, shm::PortCount::kRcvPackets}) port.add(count, messages);
  for (const auto count : {shm::PortCount::kXmitBytes, shm::PortCount::kRcvBytes}) port.add(count, bytes);
}

void Qp::await_senders(uint32_t slot, uint32_t qp_num) {
  // A connected queue pair has one peer. The queue pairs of an XRC domain share their receives.
  if (options_.type == QpType::kRc || options_.type == QpType::kUc)
    quiesce_peer(process_.node(), slot, qp_num);
  else
    quiesce(process_.node());
}

int Qp::to_reset() {
  std::unique_ptr<Endpoint> endpoint;
  const uint32_t peer_slot = shared_->remote_slot.load();
  const uint32_t peer_number = shared_->remote_qpn.load();
  {
    std::lock_guard lock(send_lock_);
    next_epoch();
    endpoint = take_endpoint();
    process_.pending().remove(*this);
    send_tail_.store(send_head_);
    last_completed_ = send_head_;
    shared_->error.store(0);
    shared_->sender_waits.store(0);
    shared_->established.store(0);
    finishes_first_ = false;
    reports_drained_ = false;
    shared_->remote_qpn.store(0);
    shared_->remote_slot.store(0);
    shared_->transport.store(0);
  }
  if (endpoint != nullptr) endpoint->withdraw();
  await_senders(peer_slot, peer_number);
  drop_receives();
  if (send_cq_ != nullptr) send_cq_->purge(qp_num_);
  if (recv_cq_ != nullptr && recv_cq_ != send_cq_) recv_cq_->purge(qp_num_);
  last_wqe_reported_ = false;
  return 0;
}

int Qp::to_error() {
  {
    std::lock_guard lock(send_lock_);
    set_state(QpState::kErr);
    flush_sends();
  }
  if (endpoint_ != nullptr) endpoint_->await_peer();
  await_senders(shared_->remote_slot.load(), shared_->remote_qpn.load());
  const int64_t deadline = base::now_ns() + kFillWaitNs;
  for (progress::Waiter waiter(progress::kLockPolicy);; waiter.turn()) {
    {
      std::lock_guard lock(send_lock_);
      if (flush_receives()) return 0;
    }
    if (base::now_ns() > deadline) break;
  }
  // The process that fills a receive is stopped: the service thread checks again later.
  host::call_attention(process_.node().self(), shm::attention::kQp, index_);
  return 0;
}

int Qp::modify(const QpAttr& attr, uint32_t mask) {
  if (!process_.is_here()) return ENODEV;
  std::lock_guard lock(attr_mutex_);
  const QpState current = state();
  QpState next = current;
  const int refused = check_modify(options_.type, current, attr, mask, &next);
  if (refused != 0) return refused;
  const QpAttr before = attr_;
  {
    std::lock_guard send(send_lock_);
    apply(attr, mask);
    publish_attributes();
  }
  if ((mask & qp_attr::kAccessFlags) != 0 && endpoint_ != nullptr) endpoint_->await_peer();
  if ((mask & qp_attr::kState) == 0) return 0;
  switch (next) {
    case QpState::kReset: {
      {
        std::lock_guard send(send_lock_);
        attr_ = QpAttr{};
      }
      return to_reset();
    }
    case QpState::kErr:
      return to_error();
    case QpState::kRtr: {
      const int error = to_rtr(attr);
      if (error == 0) return 0;
      std::lock_guard send(send_lock_);
      attr_ = before;
      publish_attributes();
      shared_->remote_qpn.store(0);
      return error;
    }
    case QpState::kSqd: {
      std::lock_guard send(send_lock_);
      if (current == QpState::kSqd) return 0;
      if (!set_state(QpState::kSqd)) return 0;  // the same result as a failure right after the change
      endpoint_->pause(true);
      finishes_first_ = !endpoint_->drained();  // IBTA 10.3.1.5
      reports_drained_ = (mask & qp_attr::kEnSqdAsyncNotify) != 0 && attr.en_sqd_async_notify;
      if (!finishes_first_) report_drained();
      return 0;
    }
    case QpState::kRts: {
      {
        std::lock_guard send(send_lock_);
        if (!set_state(QpState::kRts)) return 0;
        finishes_first_ = false;
        reports_drained_ = false;
        if (current == QpState::kSqd)
          endpoint_->pause(false);
        else if (current != QpState::kRts)
          endpoint_->start(attr_.sq_psn);
      }
      return 0;
    }
    case QpState::kInit:
    default:
      set_state(next);
      return 0;
  }
}

int Qp::query(QpAttr* attr, QpOptions* options) const {
  if (!process_.is_here()) return ENODEV;
  std::lock_guard lock(attr_mutex_);
  if (attr != nullptr) {
    *attr = attr_;
    attr->state = state();
    attr->cur_state = attr->state;
    attr->sq_draining = attr->state == QpState::kSqd && finishes_first_;
    attr->cap = options_.cap;
  }
  if (options != nullptr) *options = options_;
  return 0;
}

bool Qp::connected_to(host::Peer& peer) const {
  const QpState now = state();
  return now >= QpState::kRtr && now != QpState::kErr && peer.queue_pairs().has_slot(shared_->remote_slot.load());
}

void Qp::report_drained() {
  finishes_first_ = false;
  if (reports_drained_) device_.events().push({EventType::kSqDrained, nullptr, this, nullptr, 1});
  reports_drained_ = false;
}

void Qp::report_established() {
  uint32_t seen = 1;
  if (shared_->established.compare_exchange_strong(seen, 2))
    device_.events().push({EventType::kCommEst, nullptr, this, nullptr, 1});
}

bool Qp::handle_error() {
  if (state() != QpState::kErr) return true;
  {
    // Never blocks: docs/design/threads-and-locks.md, rule 3.
    std::unique_lock send(send_lock_, std::try_to_lock);
    if (!send.owns_lock()) return false;
    flush_sends();
    if (!flush_receives()) return false;
  }
  const uint32_t error = shm::error_of(shared_->error.exchange(0), shm::epoch_of(shared_->state.load()));
  if (error != 0) device_.events().push({static_cast<EventType>(error - 1), nullptr, this, nullptr, 1});
  return true;
}

bool Qp::has_failed() const { return shared_->error.load() != 0 || state() == QpState::kErr; }

bool Qp::handle_peer_exit(host::Peer& peer) {
  if (!datagram_ && !connected_to(peer)) return true;
  {
    const std::unique_lock send(send_lock_, std::try_to_lock);
    if (!send.owns_lock()) return false;
    // Another process may have the slot by now, and this queue pair may be connected to that one: the endpoint checks
    // it.
    if (endpoint_ != nullptr) endpoint_->on_process_exit(peer);
  }
  return handle_error();
}

}  // namespace nupa::core
