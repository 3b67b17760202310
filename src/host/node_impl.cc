// SPDX-License-Identifier: Apache-2.0
#include "host/node_impl.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/random_seed.h"
#include "base/system_error.h"
#include "host/own_header.h"
#include "host/runtime_dir.h"
#include "progress/descriptors.h"
#include "progress/waiter.h"

namespace nupa::host {
namespace {

/// The time before the memory of an exited process is freed although a queue pair that leads to it is not reset.
constexpr int64_t kLetGoNs = 3'000'000'000;
/// How long an exiting process waits for its last messages to be sent while no peer reads any of them.
constexpr int64_t kFarewellTimeoutNs = 1'000'000'000;
/// How long it waits for the lock of the runtime directory, which processes that exit together take one after the
/// other.
constexpr int64_t kSweepTimeoutNs = 2'000'000'000;
/// How long an exiting process waits for a killed peer's socket to refuse connections. On a busy machine the kernel
/// needs some milliseconds to close the descriptors of a killed process.
constexpr int64_t kDyingTimeoutNs = 500'000'000;
/// After this time a channel that was requested and has not come is requested again with its next event: its owner was
/// stopped, or this process had no descriptor free.
constexpr int64_t kAskAgainNs = 1'000'000'000;
/// Messages that one peer may send in a turn, before other peers and messages that wait for room have their turn.
constexpr int kMessagesInTurn = 64;

}  // namespace

Result<void> NodeImpl::start(int region_fd, const std::vector<std::vector<Gid>>& gids,
                             const std::function<bool(uint32_t slot)>& reserve,
                             const std::function<void(shm::SegmentHeader&)>& describe) {
  region_fd_ = region_fd;
  auto dir = RuntimeDir::open();
  if (!dir) return tl::unexpected(dir.error());
  dir_ = std::move(*dir);
  auto segment = shm::Segment::create();
  if (!segment) return tl::unexpected(segment.error());
  segment_ = std::move(*segment);
  if (auto opened = wakeup_fd_.open(); !opened) return opened;
  instance_ = base::random_seed();

  // The header is complete before other processes can find the socket.
  shm::SegmentHeader& header = *segment_->tables().header;
  describe_self(instance_, gids, &header);
  if (describe) describe(header);
  auto claimed = dir_->claim(reserve);
  if (!claimed) return tl::unexpected(claimed.error());
  slot_ = claimed->slot;
  header.slot = slot_;
  listener_ = std::move(claimed->listener);

  Handshake me;
  me.hello.slot = slot_;
  me.hello.instance = instance_;
  me.tables = segment_->tables();
  me.credentials.pid = getpid();
  me.wakeup_fd.reset(fcntl(wakeup_fd_.fd(), F_DUPFD_CLOEXEC, 0));
  if (!me.wakeup_fd) return base::fail_call(errno, "cannot duplicate the eventfd of this process");
  self_ = PeerTable::make(std::move(me), true);
  self_->mark_self(*segment_);

  auto arrivals = loop_->watch(listener_.get(), [this](uint32_t) { accept_all(); });
  if (!arrivals) return tl::unexpected(arrivals.error());
  arrivals_ = std::move(*arrivals);
  auto attention = loop_->watch(wakeup_fd_.fd(), [this](uint32_t) {
    wakeup_fd_.take_all();
    events_.on_attention();
  });
  if (!attention) return tl::unexpected(attention.error());
  attention_ = std::move(*attention);
  if (const int error = progress::join_forks(progress::ForkStage::kHost, this); error != 0)
    return fail(error, "no memory for fork handlers");
  const progress::ExitAction goodbye{[](void* node) {
                                       static_cast<NodeImpl*>(node)->send_goodbye();
                                       static_cast<NodeImpl*>(node)->sweep();
                                     },
                                     this, [](void* node) { static_cast<NodeImpl*>(node)->stop_being_found(); }};
  if (const int error = progress::at_exit(progress::ExitStage::kHost, goodbye); error != 0)
    return base::fail_call(error, "cannot register an exit handler");
  return {};
}

Result<void> NodeImpl::serve() {
  if (running_) return {};
  const auto started = loop_->start("nupa-host");
  if (!started) return tl::unexpected(started.error());
  running_ = true;
  return {};
}

void NodeImpl::stop_being_found() {
  if (abandoned_ || segment_ == nullptr || slot_ == 0) return;
  segment_->tables().header->closing.store(1);
  // Once: a process that starts afterwards can have the slot, and a second removal would take the name of its socket.
  if (dir_ == nullptr || is_removed_.exchange(true)) return;
  events_.on_exit();
  dir_->remove(slot_);
  for (auto& further : further_slots_)
    if (const uint32_t slot = further.exchange(0); slot != 0) dir_->remove(slot);
}

Result<uint32_t> NodeImpl::take_slot(const std::function<Result<bool>(uint32_t slot)>& reserve) {
  const auto free = std::find(further_slots_.begin(), further_slots_.end(), 0u);
  if (abandoned_ || free == further_slots_.end()) return fail(ENOSPC, "all queue pairs of this process are in use");
  auto block = segment_->allocate(sizeof(shm::QpBankShared));
  if (!block) return tl::unexpected(block.error());
  auto slot = dir_->claim_further(slot_, reserve);
  if (!slot) {
    segment_->release(*block, true);
    return slot;
  }
  shm::SegmentHeader& header = *segment_->tables().header;
  free->store(*slot);
  // The process may be exiting, and its exit does not wait for this thread.
  if (header.closing.load() != 0 && free->exchange(0) != 0) dir_->remove(*slot);
  shm::BankPlace& place = header.further_banks[free - further_slots_.begin()];
  place.offset.store(block->offset);
  place.slot.store(*slot);
  return slot;
}

void NodeImpl::send_goodbye() {
  if (abandoned_ || segment_ == nullptr || slot_ == 0) return;
  stop_being_found();
  {
    std::lock_guard lock(mutex_);
    notify_all_peers(message_of(MessageKind::kGoodbye));
  }
  send_rest();
}

void NodeImpl::sweep() {
  constexpr int kLooks = 3;
  constexpr int64_t kPauseNs = 1'000'000;
  const int64_t deadline = base::now_ns() + kDyingTimeoutNs;
  for (int look = 1;; ++look) {
    progress::put_off_exit(progress::Deadline::in_ns(kSweepTimeoutNs));
    dir_->sweep();
    if (dir_->list().empty()) return;
    if (look >= kLooks && (!is_one_dying() || base::now_ns() >= deadline)) return;
    progress::sleep_for(kPauseNs);
  }
}

bool NodeImpl::is_one_dying() {
  std::lock_guard lock(mutex_);
  std::erase_if(dying_, [&](const auto& dying) { return dir_->socket_id(dying.first) != dying.second; });
  return !dying_.empty();
}

void NodeImpl::send_rest() {
  int64_t deadline = 0;
  // Compared to the fewest so far: threads of the program may send meanwhile, and must not delay the exit for ever.
  for (size_t fewest = SIZE_MAX;;) {
    std::vector<pollfd> full;
    size_t waiting = 0;
    {
      std::lock_guard lock(mutex_);
      for (auto& [fd, connection] : connections_) {
        if (connection.outbox.size() != 0) connection.send_waiting();
        if (connection.outbox.size() != 0) full.push_back({fd, POLLOUT, 0});
        waiting += connection.outbox.size();
      }
    }
    if (waiting == 0) return;
    const int64_t now = base::now_ns();
    if (waiting < fewest) deadline = now + kFarewellTimeoutNs;
    fewest = std::min(fewest, waiting);
    if (now >= deadline) {
      NUPA_INFO("exit: %zu messages were dropped, because the peer processes do not read them", waiting);
      return;
    }
    progress::put_off_exit(progress::Deadline::at(deadline + progress::kActionNs));
    [[maybe_unused]] const auto ready =
        progress::wait_descriptors(full, progress::Deadline::at(deadline), progress::Signals::kIgnore);
  }
}

void NodeImpl::stop() {
  progress::forget_at_exit(this);
  progress::leave_forks(this);
  if (abandoned_ || std::exchange(stopped_, true)) return;
  send_goodbye();
  loop_->stop();
  loop_->join();
  std::unordered_map<int, Connection> connections;
  {
    // Threads of the program and of transports may still send.
    std::lock_guard lock(mutex_);
    connections.swap(connections_);
  }
  if (dir_ != nullptr) sweep();
}

bool NodeImpl::in_child() {
  // If this child kept the sockets open, peers would not notice the parent's death.
  abandoned_ = true;
  for (auto& [fd, connection] : connections_) {
    connection.fd.reset();
    connection.outbox.clear();
  }
  listener_.reset();
  spare_.reset();
  wakeup_fd_.close();
  mutex_.unlock();
  return false;
}

Message NodeImpl::message_of(MessageKind kind, uint32_t index) const {
  return {kWireMagic, kWireVersion, static_cast<uint32_t>(kind), slot_, index, instance_, 0};
}

void NodeImpl::notify_all_peers(const Message& message, int fd) {
  for (auto& [socket, connection] : connections_)
    if (connection.peer != nullptr) [[maybe_unused]]
      auto sent = connection.send(message, fd);
}

void NodeImpl::send_channel(Connection& connection, uint32_t index) {
  // A peer that asks again and again without reading gets only the last answer.
  connection.outbox.forget_channel(index);
  const int fd = channels_.at(index);
  const bool there = fd >= 0;
  if (there) connection.channels.insert(index);
  [[maybe_unused]] const auto sent =
      connection.send(message_of(there ? MessageKind::kChannel : MessageKind::kChannelDestroyed, index), fd);
}

void NodeImpl::ask_for_channels(int64_t now) {
  std::lock_guard lock(mutex_);
  const bool room = Peer::channels_held() < Peer::most_channels_held();
  for (auto& [fd, connection] : connections_) {
    if (connection.peer == nullptr) continue;
    for (const uint32_t index : connection.peer->take_wanted())
      if (room) [[maybe_unused]]
        const auto sent = connection.send(message_of(MessageKind::kWantChannel, index));
  }
  ask_again_.set_at_latest(now + kAskAgainNs);
}

void NodeImpl::take_channel(Peer& peer, uint32_t index, Received& received) {
  if (index >= Peer::kMaxChannels) return;
  if (received.fd_count == 1 && Peer::channels_held() < Peer::most_channels_held())
    peer.set_channel(index, received.fds[0].release());
  else if (received.fd_count <= 1)
    NUPA_INFO(
        "peer process (slot %u): no free descriptor for its completion channel; its service thread forwards events",
        peer.slot());
}

Connection& NodeImpl::add_connection(base::UniqueFd fd, PeerRef peer) {
  const int number = fd.get();
  Connection& connection = connections_[number];
  connection.fd = std::move(fd);
  connection.peer = std::move(peer);
  auto watch = loop_->watch(number, [this, number](uint32_t events) {
    if ((events & EPOLLOUT) != 0) on_room(number);
    if (events != EPOLLOUT) on_socket(number);
  });
  if (watch)
    connection.watch = std::move(*watch);
  else
    NUPA_WARN("cannot receive messages of a peer process: %s", watch.error().what());
  return connection;
}

PeerRef NodeImpl::find(uint32_t slot) {
  if (self_->queue_pairs().has_slot(slot)) return self_;
  std::lock_guard lock(mutex_);
  return known_peers_.find(slot);
}

std::vector<PeerRef> NodeImpl::peers() {
  std::lock_guard lock(mutex_);
  return known_peers_.alive();
}

Result<uint32_t> NodeImpl::publish_channel(int event_fd) {
  std::lock_guard lock(mutex_);
  auto index = channels_.publish(event_fd);
  if (index) self_->set_channel(*index, event_fd);
  return index;
}

void NodeImpl::withdraw_channel(uint32_t index) {
  std::lock_guard lock(mutex_);
  channels_.withdraw(index);
  self_->set_channel(index, -1);
  for (auto& [fd, connection] : connections_) {
    connection.outbox.forget_channel(index);
    if (connection.channels.erase(index) == 0) continue;
    [[maybe_unused]] const auto sent = connection.send(message_of(MessageKind::kChannelDestroyed, index));
  }
}

Result<void> NodeImpl::send_payload(Peer& peer, const Payload& payload) {
  std::lock_guard lock(mutex_);
  for (auto& [fd, connection] : connections_)
    if (connection.peer.get() == &peer && peer.alive())
      return connection.send(message_of(MessageKind::kPayload), -1, &payload);
  return fail(EPIPE, "the process of slot ", peer.slot(), " has exited");
}

bool NodeImpl::on_message(Connection& connection, Received received) {
  const auto kind = static_cast<MessageKind>(received.message.kind);
  if (connection.captures) return false;  // it has nothing more to say
  if (connection.peer == nullptr) return on_hello(connection, std::move(received));
  const uint32_t index = received.message.index;
  switch (kind) {
    case MessageKind::kWantChannel:
      if (index < Peer::kMaxChannels) send_channel(connection, index);
      break;
    case MessageKind::kChannel:
      take_channel(*connection.peer, index, received);
      break;
    case MessageKind::kChannelDestroyed:
      if (index < Peer::kMaxChannels) connection.peer->set_channel(index, -1);
      break;
    case MessageKind::kNoRoom:
      // It had no room for this process's descriptors, so what is connected to it by shared memory ends.
      refuse(connection.peer->slot());
      return false;
    case MessageKind::kGoodbye:
      connection.peer->mark_polite();
      break;
    default:
      break;
  }
  return true;
}

void NodeImpl::on_room(int fd) {
  std::lock_guard lock(mutex_);
  if (const auto found = connections_.find(fd); found != connections_.end()) found->second.send_waiting();
}

void NodeImpl::on_socket(int fd) {
  for (int turn = 0; turn < kMessagesInTurn; ++turn) {
    // Under the lock: a thread that connects takes a socket with its messages.
    std::unique_lock lock(mutex_);
    const auto found = connections_.find(fd);
    if (found == connections_.end()) return;
    auto received = receive_message(fd);
    if (received) {
      const PeerRef sender = found->second.peer;
      if (sender != nullptr && received->message.kind == static_cast<uint32_t>(MessageKind::kPayload)) {
        lock.unlock();
        events_.on_payload(*sender, received->payload);
        continue;
      }
      if (on_message(found->second, std::move(*received))) continue;
      drop(fd, std::move(lock));
      return;
    }
    if (received.error().code() == EAGAIN) return;
    if (received.error().code() == EPROTO)
      NUPA_WARN("closed the connection of a process that sent an invalid message (another version of NUPA?)");
    if (const PeerRef& peer = found->second.peer; peer != nullptr && received.error().code() != EPROTO)
      if (const auto socket = dir_->socket_id(peer->slot())) dying_.emplace_back(peer->slot(), *socket);
    drop(fd, std::move(lock));
    return;
  }
}

void NodeImpl::drop(int fd, std::unique_lock<std::mutex> lock) {
  const auto found = connections_.find(fd);
  if (found == connections_.end()) return;
  PeerRef exited = std::move(found->second.peer);
  if (found->second.captures) events_.on_capture_end();
  connections_.erase(found);
  if (exited != nullptr && !exited->mark_exited()) exited = nullptr;
  lock.unlock();
  if (exited == nullptr) return;
  NUPA_INFO("peer process (slot %u) %s", exited->slot(), exited->has_exited_cleanly() ? "exited" : "died");
  events_.on_peer_exit(*exited);
  lock.lock();
  known_peers_.forget(*exited);
  lock.unlock();
  exited_.emplace_back(base::now_ns() + kLetGoNs, exited);
  let_go_.set_at_latest(exited_.front().first);
  dir_->sweep();
}

void NodeImpl::let_go() {
  bool some = false;
  for (; !exited_.empty() && exited_.front().first <= base::now_ns(); exited_.pop_front()) {
    if (const PeerRef kept = exited_.front().second.lock()) kept->let_go();
    some = true;
  }
  // The kernel closes a killed process's descriptors one after the other. When its death was noticed, its socket in the
  // runtime directory may still have accepted connections.
  if (some) {
    dir_->sweep();
    [[maybe_unused]] const bool is_left = is_one_dying();
  }
  if (!exited_.empty()) let_go_.set_at_latest(exited_.front().first);
}

Result<std::unique_ptr<Node>> Node::open(int region_fd, const std::vector<std::vector<Gid>>& gids, NodeEvents& events,
                                         const std::function<bool(uint32_t slot)>& reserve,
                                         const std::function<void(shm::SegmentHeader&)>& describe) {
  auto loop = Loop::open();
  if (!loop) return tl::unexpected(loop.error());
  auto node = std::make_unique<NodeImpl>(events, std::move(*loop));
  if (auto started = node->start(region_fd, gids, reserve, describe); !started) return tl::unexpected(started.error());
  return node;
}

}  // namespace nupa::host
