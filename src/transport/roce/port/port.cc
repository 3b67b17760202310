// SPDX-License-Identifier: Apache-2.0
/// The life of a port, and its turns.
#include "transport/roce/port/port.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/system_error.h"
#include "progress/lifecycle.h"
#include "progress/waiter.h"

namespace nupa::roce {
namespace {

/// Send buffer of the sockets that only send, bytes.
constexpr uint32_t kSourceSocketBytes = 1 << 20;
/// Buffers for packets that arrive before their turn: 4 MiB; the kernel allocates a page at its first use.
constexpr uint32_t kPoolPackets = 1024;
/// How long the end of the process waits for room in its sockets.
constexpr int64_t kFarewellNs = 10'000'000;

std::atomic<uint64_t> g_ports{0};  // number of ports ever opened

}  // namespace

Result<std::unique_ptr<Port>> Port::open(net::UdpSocket socket, uint32_t source_ports) {
  std::vector<net::UdpSocket> sockets;
  sockets.push_back(std::move(socket));
  while (sockets.size() < source_ports) {
    auto another = net::UdpSocket::open(0, kSourceSocketBytes);
    if (!another) return tl::unexpected(another.error());
    sockets.push_back(std::move(*another));
  }
  std::unique_ptr<Port> port(new Port(std::move(sockets)));
  if (auto opened = port->poller_.open(); !opened) return tl::unexpected(opened.error());
  if (auto added = port->poller_.right().add(port->socket().fd()); !added) return tl::unexpected(added.error());
  if (const int error = progress::join_forks(progress::ForkStage::kPackets, port.get()); error != 0)
    return fail(error, "no memory for fork handlers");
  const progress::ExitAction answers{[](void* mine) { static_cast<Port*>(mine)->process_ends(); }, port.get()};
  if (const int error = progress::at_exit(progress::ExitStage::kPackets, answers); error != 0)
    return base::fail_call(error, "cannot register an exit handler");
  return port;
}

void Port::process_ends() {
  const auto lock = poller_.claim();
  batch_->take_all(true);
  finish_turns();
  // No thread sends it later.
  const auto has_left = [this] { return backlog_.retry(base::now_ns()) == INT64_MAX; };
  progress::wait_for(has_left, progress::kPeerPolicy, progress::Deadline::in_ns(kFarewellNs));
}

bool Port::in_child() {
  for (net::UdpSocket& socket : sockets_) socket.close();
  groups_.close();
  further_.clear();
  peer_sockets_.close();
  poller_.in_child();
  return false;
}

Port::Port(std::vector<net::UdpSocket> sockets)
    : serial_(g_ports.fetch_add(1) + 1),
      sockets_(std::move(sockets)),
      pool_(kPoolPackets),
      reader_(counters_),
      exited_peers_(demultiplexer_),
      windows_(socket().buffer_bytes()),
      backlog_(sockets_, [this](int64_t at_ns) { expect(at_ns); }),
      batch_(std::make_unique<TransmitBatch>(sockets_, false, &backlog_)),
      holds_(pool_, poller_.alarm(), [this](QpReceiver& queue_pair) { touch(queue_pair); }) {
  for (net::UdpSocket& each : sockets_) each.report_refusals();
  acks_.reserve(shm::kSlotQp);
  holds_.reserve(shm::kSlotQp);
}

Port::~Port() {
  progress::forget_at_exit(this);
  progress::leave_forks(this);
  poller_.stop();
  peer_sockets_.close();
}

void Port::add(QpReceiver& queue_pair) {
  if (demultiplexer_.make_place(queue_pair.number())) {
    // Reserved here, so that arriving packets allocate nothing.
    const auto lock = poller_.claim();
    const size_t queue_pairs = demultiplexer_.places();
    acks_.reserve(queue_pairs);
    holds_.reserve(queue_pairs);
  }
  demultiplexer_.add(queue_pair);
}

Result<void> Port::add_socket(net::UdpSocket socket) {
  if (datagrams_.load()) socket.report_more();
  auto port = std::make_unique<FurtherPort>(std::move(socket));
  const auto lock = poller_.claim();
  if (auto added = poller_.right().add(port->socket().fd()); !added) return added;
  further_.add(std::move(port));
  return {};
}

void Port::drop_last_socket() {
  const auto lock = poller_.claim();
  further_.drop_last();
}

void Port::remove(QpReceiver& queue_pair) {
  demultiplexer_.remove(queue_pair);
  const auto lock = poller_.claim();
  acks_.remove(queue_pair);
  holds_.remove(queue_pair);
  queue_pair.leave_wait_queues();
}

int Port::attach(uint32_t qp_num, const Gid& group, uint32_t device, const std::vector<GidEntry>& interfaces) {
  const auto lock = poller_.claim();
  return groups_.attach(qp_num, group, device, interfaces, poller_.right());
}

void Port::detach(uint32_t qp_num, const Gid& group) {
  const auto lock = poller_.claim();
  groups_.detach(qp_num, group);
}

TransmitBatch* Port::batch() {
  // At exit the main thread's thread-local variables are destroyed before the process sends its last packets.
  thread_local bool is_destroyed = false;
  struct Owned {
    uint64_t port = 0;
    std::unique_ptr<TransmitBatch> batch;
    ~Owned() { is_destroyed = true; }
  };
  thread_local Owned mine;
  if (is_destroyed) return nullptr;
  if (mine.port != serial_) {
    try {
      mine.batch = std::make_unique<TransmitBatch>(sockets_, true, &backlog_);
      mine.port = serial_;
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  poller_.note_traffic();
  return mine.batch.get();
}

void Port::set_presence(Presence has_queue_pair) {
  const auto lock = poller_.claim();
  exited_peers_.set_presence(std::move(has_queue_pair));
}

void Port::set_management(MadHandler handler) {
  const auto lock = poller_.claim();
  management_ = std::move(handler);
}

bool Port::send_management(const MadDatagram& datagram, bool marked) {
  if (management_batch_ == nullptr) management_batch_ = std::make_unique<TransmitBatch>(sockets_, false);
  const uint64_t refused = management_batch_->refused();
  roce::send_management(*management_batch_, datagram, marked);
  return management_batch_->refused() == refused;
}

void Port::report_more() {
  if (datagrams_.exchange(true)) return;
  socket().report_more();
  const auto lock = poller_.claim();
  peer_sockets_.report_more();
  further_.report_more();
}

void Port::finish_turns() {
  if (!acks_.owes()) return;
  Hold hold(holds_);
  acks_.answer(hold, *batch_, base::now_ns(), true);
}

void Port::take_errors() {
  Hold hold(holds_);
  exited_peers_.take_refusals(hold, sockets_, peer_sockets_);
}

bool Port::take_turn(progress::Receiver receiver) {
  const bool for_program = receiver != progress::Receiver::kThread;
  const bool owed = acks_.owes();
  Hold hold(holds_);
  if (owed && !acks_.gathers()) acks_.answer(hold, *batch_, base::now_ns(), true);
  uint32_t packets = holds_.any() ? holds_.try_again() : 0;
  packets += receive(hold, receiver);
  const bool others_wait = windows_.anyone_waits() || wanted_at() <= receive_ns_;
  using Step = progress::PollPolicy::Step;
  const Step step = poller_.after({for_program, packets, owed, acks_.streams(), others_wait});
  if (step == Step::kReturn) return false;
  if (step == Step::kProgramFirst) {
    hold.release();
    expect(receive_ns_ + AckScheduler::kForgottenNs);
    poller_.looked(receive_ns_);
    return true;
  }
  const int64_t now = base::now_ns();
  if (for_program) poller_.looked(now);
  windows_.choose_room(now);
  const AckScheduler::Due due = acks_.due(packets, for_program, receive_share(), now);
  if (due != AckScheduler::Due::kNone) acks_.answer(hold, *batch_, now, due == AckScheduler::Due::kAll);
  hold.release();
  if (now >= wanted_at()) run_timers(hold, now);
  if (const int64_t again = windows_.serve(hold, *batch_, now); again != INT64_MAX) expect(again);
  if (acks_.owes_stream()) expect(now + AckScheduler::kForgottenNs);
  return owed || packets > 0;
}

void Port::run_timers(Hold& hold, int64_t now) {
  poller_.alarm().forget();
  // The backlog goes before the queue pairs that wait for room.
  int64_t earliest = backlog_.retry(now);
  earliest = std::min(earliest, demultiplexer_.run_timers(
                                    now, [&](QpReceiver& queue_pair) { return run_timer(hold, queue_pair, now); }));
  if (exited_peers_.wants_look()) exited_peers_.take_refusals(hold, sockets_, peer_sockets_);
  earliest = std::min(earliest, holds_.put_off_try(now));
  // This also wakes the serving thread, which may have fallen asleep while nothing was expected.
  expect(earliest);
}

std::optional<int64_t> Port::run_timer(Hold& hold, QpReceiver& queue_pair, int64_t now) {
  if (!hold.take(queue_pair)) return hold.next_try(now);
  queue_pair.on_timer(now);
  queue_pair.transmit(now, *batch_, true);
  batch_->flush();
  hold.release();
  return std::nullopt;
}

}  // namespace nupa::roce
