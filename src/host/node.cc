#include "host/node.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "host/introduction.h"
#include "host/outbox.h"
#include "host/peer_table.h"
#include "host/runtime_dir.h"
#include "progress/descriptors.h"
#include "progress/lifecycle.h"
#include "progress/loop.h"
#include "progress/waiter.h"
#include "progress/wake_up.h"

namespace nupa::host {
namespace {

using progress::Loop;

constexpr int64_t kHelloPatienceNs = 1'000'000'000;
constexpr int64_t kAcceptPauseNs = 100'000'000;
/// Until the memory of a process that has gone is given back though a queue pair that leads to it is not reset.
constexpr int64_t kLetGoNs = 3'000'000'000;
/// How long a process that ends waits for its last messages to leave while no peer reads any of them.
constexpr int64_t kFarewellPatienceNs = 1'000'000'000;
/// How long it waits for the lock of the runtime directory, which processes that end together take in turn.
constexpr int64_t kSweepPatienceNs = 2'000'000'000;
/// A channel that was asked for and has not come is asked for again with its next event after so long: its owner was
/// stopped, or this process had no descriptor free.
constexpr int64_t kAskAgainNs = 1'000'000'000;
/// After so many messages from one peer others have their turn, and what waits for room.
constexpr int kMessagesInTurn = 64;

void command_name(char (&out)[64]) {
  FILE* file = std::fopen("/proc/self/comm", "re");
  if (file == nullptr) return;
  if (std::fgets(out, sizeof out, file) != nullptr) out[std::strcspn(out, "\n")] = '\0';
  std::fclose(file);
}

class NodeImpl final : public Node, private Peer::Asker, private progress::ForkParticipant {
 public:
  NodeImpl(NodeEvents& events, std::unique_ptr<Loop> loop) : events_(events), loop_(std::move(loop)) {}
  ~NodeImpl() override {
    stop();
    attention_.reset();
    if (!abandoned_) doorbell_.close();
  }

  Result<void> start(int region_fd, const std::vector<std::vector<Gid>>& gids,
                     const std::function<bool(uint32_t slot)>& reserve,
                     const std::function<void(shm::SegmentHeader&)>& describe);
  Result<void> serve() override;
  void stop() override;

  shm::Segment& segment() override { return *segment_; }
  uint32_t slot() const override { return slot_; }
  Result<uint32_t> take_slot(const std::function<Result<bool>(uint32_t slot)>& reserve) override;
  MemoryDomain domain() const override { return dir_->domain(); }
  Peer& self() override { return *self_; }
  Result<PeerRef> connect(uint32_t slot, std::chrono::milliseconds timeout) override;
  PeerRef find(uint32_t slot) override;
  RuntimeDir& runtime_dir() override { return *dir_; }
  std::vector<PeerRef> peers() override;
  std::vector<uint32_t> slots() override { return dir_->processes(); }
  Result<uint32_t> publish_channel(int event_fd) override;
  void withdraw_channel(uint32_t index) override;
  Result<void> send_payload(Peer& peer, const Payload& payload) override;
  Loop& loop() override { return *loop_; }
  /// The service thread, and the one that waits for the end of the process.
  int internal_threads() const override { return 2; }

  void before_fork() override { mutex_.lock(); }
  void in_parent() override { mutex_.unlock(); }
  bool in_child() override;

 private:
  struct Connection {
    base::UniqueFd fd;
    Outbox outbox;
    PeerRef peer;
    bool observer = false;
    std::set<uint32_t> channels;  ///< of this process, whose descriptors were sent
    uint32_t asked_slot = 0;      ///< not 0: this process connected to that slot and said hello first
    std::unique_ptr<Loop::Watch> watch;
    std::unique_ptr<Loop::Timer> hello_deadline;  ///< of one that has connected and not said hello
  };

  /// Without a lock: peers that see this process gone know that it was a clean exit, and new ones do not find it.
  void stop_being_found();
  void say_goodbye();
  /// Removes sockets of processes that were killed before anybody met them. The kernel closes the descriptors of a
  /// killed process one after the other: a peer may report its death before its socket refuses, so this looks again.
  void sweep();
  // Handlers of the loop.
  void accept_all();
  void on_socket(int fd);
  void on_room(int fd);
  /// False: the connection is to be dropped, and the log has the reason.
  bool on_message(Connection& connection, Received received);
  /// `lock`: of the mutex, held since it was seen that the connection ended.
  void drop(int fd, std::unique_lock<std::mutex> lock);
  /// Of the processes that have gone some time ago, what was kept.
  void let_go();
  void channels_are_wanted() override { ask_for_channels_.run_soon(); }
  /// Asks peers for the channels that were signalled without their descriptors.
  void ask_for_channels(int64_t now);
  void take_channel(Peer& peer, uint32_t index, Received& received);
  Message message_of(MessageKind kind, uint32_t index = 0) const;
  Result<void> say_hello(int fd);
  /// Waits for the hello of the process in `slot`, which has this process's. The service thread waits on after
  /// `timeout`.
  Result<PeerRef> wait_for_hello(base::UniqueFd socket, uint32_t slot, std::chrono::milliseconds timeout);
  // Under the mutex.
  using Connections = std::unordered_map<int, Connection>;
  /// On which the process in `slot` was asked and has not answered yet.
  Connections::iterator asked_of(uint32_t slot) {
    return std::find_if(connections_.begin(), connections_.end(), [slot](const auto& entry) {
      return entry.second.peer == nullptr && entry.second.asked_slot == slot;
    });
  }
  /// And the loop takes its answer.
  bool is_asked(uint32_t slot) {
    const auto found = asked_of(slot);
    return found != connections_.end() && found->second.watch != nullptr;
  }
  /// A socket on which the process in `slot` has not answered yet, or none. Its watch goes without the mutex, which the
  /// handler locks.
  std::pair<base::UniqueFd, std::unique_ptr<Loop::Watch>> take_asked(uint32_t slot);
  Result<void> send(Connection& connection, const Message& message, int fd = -1, const Payload* payload = nullptr);
  void send_waiting(Connection& connection);
  /// Answers a peer that wants the channel's descriptor.
  void send_channel(Connection& connection, uint32_t index);
  void tell_all(const Message& message, int fd = -1);
  void send_rest();
  Connection& add_connection(base::UniqueFd fd, PeerRef peer);
  void want_room(Connection& connection, bool wanted) {
    if (connection.watch != nullptr) connection.watch->want_room(wanted);
  }

  NodeEvents& events_;
  std::unique_ptr<RuntimeDir> dir_;
  std::unique_ptr<shm::Segment> segment_;
  uint32_t slot_ = 0;
  std::array<std::atomic<uint32_t>, shm::kMaxBanks - 1> further_slots_{};
  uint64_t instance_ = 0;
  int region_fd_ = -1;
  base::UniqueFd listener_;
  progress::WakeUp doorbell_;  ///< which peers have, too
  PeerRef self_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Loop::Watch> arrivals_;
  std::unique_ptr<Loop::Watch> attention_;
  Loop::Timer ask_for_channels_{*loop_, [this](int64_t now) { ask_for_channels(now); }};
  Loop::Timer ask_again_{*loop_, [this](int64_t) {
                           for (const PeerRef& peer : peers()) peer->forget_asked();
                         }};                                   ///< for channels that did not come
  Loop::Timer let_go_{*loop_, [this](int64_t) { let_go(); }};  ///< at the time of gone_.front()

  std::mutex mutex_;
  Connections connections_;
  PeerTable met_;
  std::vector<int> channels_;  ///< eventfds by index, -1: free
  size_t first_free_ = 0;      ///< no index below it is free

  bool running_ = false;
  bool stopped_ = false;
  bool abandoned_ = false;  ///< this is a fork's child: nothing here is its own
  /// Whose memory is to be given back though somebody keeps them, and when: the service thread's.
  std::deque<std::pair<int64_t, std::weak_ptr<Peer>>> gone_;
};

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
  if (auto opened = doorbell_.open(); !opened) return opened;
  if (getrandom(&instance_, sizeof instance_, 0) != sizeof instance_) instance_ = base::ticks();

  // The header is complete before the socket can be found.
  shm::SegmentHeader& header = *segment_->tables().header;
  header.instance = instance_;
  header.pid = getpid();
  header.uid = geteuid();
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  header.start_ns = static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  command_name(header.command);
  header.device_count = static_cast<uint32_t>(std::min<size_t>(gids.size(), shm::kMaxDevices));
  for (uint32_t device = 0; device < header.device_count; ++device) {
    shm::GidTableShared& table = header.devices[device];
    table.count = static_cast<uint32_t>(std::min<size_t>(gids[device].size(), shm::kMaxGids));
    std::copy_n(gids[device].begin(), table.count, table.gids);
  }
  if (describe) describe(header);
  auto claimed = dir_->claim(reserve);
  if (!claimed) return tl::unexpected(claimed.error());
  slot_ = claimed->slot;
  header.slot = slot_;
  listener_ = std::move(claimed->listener);

  Introduced me;
  me.hello.slot = slot_;
  me.hello.instance = instance_;
  me.tables = segment_->tables();
  me.credentials.pid = getpid();
  me.doorbell.reset(fcntl(doorbell_.fd(), F_DUPFD_CLOEXEC, 0));
  if (!me.doorbell) return fail(errno, "no descriptor is to be had for the doorbell");
  self_ = PeerTable::make(std::move(me), true);
  self_->mark_self(*segment_);

  auto arrivals = loop_->watch(listener_.get(), [this](uint32_t) { accept_all(); });
  if (!arrivals) return tl::unexpected(arrivals.error());
  arrivals_ = std::move(*arrivals);
  auto attention = loop_->watch(doorbell_.fd(), [this](uint32_t) {
    doorbell_.take_all();
    events_.on_attention();
  });
  if (!attention) return tl::unexpected(attention.error());
  attention_ = std::move(*attention);
  if (const int error = progress::join_forks(progress::ForkStage::kHost, this); error != 0)
    return fail(error, "no memory to prepare for forks");
  const progress::ExitAction goodbye{[](void* node) {
                                       static_cast<NodeImpl*>(node)->say_goodbye();
                                       static_cast<NodeImpl*>(node)->sweep();
                                     },
                                     this, [](void* node) { static_cast<NodeImpl*>(node)->stop_being_found(); }};
  if (const int error = progress::at_exit(progress::ExitStage::kHost, goodbye); error != 0)
    return fail(error, "the end of the process cannot be prepared");
  return {};
}

Result<void> NodeImpl::serve() {
  if (running_) return {};
  const auto started = loop_->start("nupa-host");
  if (!started) return fail(started.error().code(), "the service thread cannot be started");
  running_ = true;
  return {};
}

void NodeImpl::stop_being_found() {
  if (abandoned_ || segment_ == nullptr || slot_ == 0) return;
  segment_->tables().header->closing.store(1);
  if (dir_ == nullptr) return;
  dir_->remove(slot_);
  for (const auto& further : further_slots_)
    if (const uint32_t slot = further.load(); slot != 0) dir_->remove(slot);
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
  // The process may be at its end, which does not wait for this thread.
  if (header.closing.load() != 0) dir_->remove(*slot);
  shm::BankPlace& place = header.further_banks[free - further_slots_.begin()];
  place.offset.store(block->offset);
  place.slot.store(*slot);
  return slot;
}

void NodeImpl::say_goodbye() {
  if (abandoned_ || segment_ == nullptr || slot_ == 0) return;
  stop_being_found();
  {
    std::lock_guard lock(mutex_);
    tell_all(message_of(MessageKind::kGoodbye));
  }
  send_rest();
}

void NodeImpl::sweep() {
  constexpr int kLooks = 3;
  constexpr int64_t kPauseNs = 1'000'000;
  for (int look = 0; look < kLooks; ++look) {
    progress::put_off_exit(progress::Deadline::in_ns(kSweepPatienceNs));
    dir_->sweep();
    if (dir_->list().empty()) return;
    progress::sleep_for(kPauseNs);
  }
}

void NodeImpl::send_rest() {
  int64_t deadline = 0;
  // Against the fewest so far: threads of the program may send meanwhile, and must not hold up the end for ever.
  for (size_t fewest = SIZE_MAX;;) {
    std::vector<pollfd> full;
    size_t waiting = 0;
    {
      std::lock_guard lock(mutex_);
      for (auto& [fd, connection] : connections_) {
        if (connection.outbox.size() != 0) send_waiting(connection);
        if (connection.outbox.size() != 0) full.push_back({fd, POLLOUT, 0});
        waiting += connection.outbox.size();
      }
    }
    if (waiting == 0) return;
    const int64_t now = base::now_ns();
    if (waiting < fewest) deadline = now + kFarewellPatienceNs;
    fewest = std::min(fewest, waiting);
    if (now >= deadline) {
      NUPA_INFO("%zu messages are lost: others do not read them", waiting);
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
  say_goodbye();
  loop_->stop();
  loop_->join();
  std::unordered_map<int, Connection> connections;
  {
    // Threads of the program and of transports may send still.
    std::lock_guard lock(mutex_);
    connections.swap(connections_);
  }
  if (dir_ != nullptr) sweep();
}

bool NodeImpl::in_child() {
  // Sockets that this child kept open would hide the parent's death from its peers.
  abandoned_ = true;
  for (auto& [fd, connection] : connections_) {
    connection.fd.reset();
    connection.outbox.clear();
  }
  listener_.reset();
  doorbell_.close();
  mutex_.unlock();
  return false;
}

Message NodeImpl::message_of(MessageKind kind, uint32_t index) const {
  return {kWireMagic, kWireVersion, static_cast<uint32_t>(kind), slot_, index, instance_, 0};
}

Result<void> NodeImpl::say_hello(int fd) {
  Message hello = message_of(MessageKind::kHello);
  hello.probe = reinterpret_cast<uint64_t>(&instance_);
  const int fds[kMaxFds] = {segment_->fd(), region_fd_, doorbell_.fd()};
  return send_message(fd, hello, fds, kMaxFds);
}

Result<void> NodeImpl::send(Connection& connection, const Message& message, int fd, const Payload* payload) {
  const bool had_room = connection.outbox.size() == 0;
  auto sent = connection.outbox.send(connection.fd.get(), message, fd, payload);
  if (had_room && connection.outbox.size() != 0) want_room(connection, true);
  return sent;
}

void NodeImpl::send_waiting(Connection& connection) {
  connection.outbox.send_waiting(connection.fd.get());
  if (connection.outbox.size() != 0) return;
  want_room(connection, false);
  if (const size_t lost = connection.outbox.take_lost(); lost != 0)
    NUPA_INFO("slot %u has room again; %zu messages to it were lost", connection.peer->slot(), lost);
}

void NodeImpl::tell_all(const Message& message, int fd) {
  for (auto& [socket, connection] : connections_)
    if (connection.peer != nullptr) [[maybe_unused]]
      auto sent = send(connection, message, fd);
}

void NodeImpl::send_channel(Connection& connection, uint32_t index) {
  // A peer that asks again and again without reading gets the last answer only.
  connection.outbox.forget_channel(index);
  const int fd = index < channels_.size() ? channels_[index] : -1;
  const bool there = fd >= 0;
  if (there) connection.channels.insert(index);
  [[maybe_unused]] const auto sent =
      send(connection, message_of(there ? MessageKind::kChannel : MessageKind::kChannelGone, index), fd);
}

void NodeImpl::ask_for_channels(int64_t now) {
  std::lock_guard lock(mutex_);
  const bool room = Peer::channels_held() < Peer::most_channels_held();
  for (auto& [fd, connection] : connections_) {
    if (connection.peer == nullptr) continue;
    for (const uint32_t index : connection.peer->take_wanted())
      if (room) [[maybe_unused]]
        const auto sent = send(connection, message_of(MessageKind::kWantChannel, index));
  }
  ask_again_.set_at_latest(now + kAskAgainNs);
}

void NodeImpl::take_channel(Peer& peer, uint32_t index, Received& received) {
  if (index >= Peer::kMaxChannels) return;
  if (received.fd_count == 1 && Peer::channels_held() < Peer::most_channels_held())
    peer.set_channel(index, received.fds[0].release());
  else if (received.fd_count <= 1)
    NUPA_INFO("slot %u: no descriptor is free for its completion channel: its events go by its service thread",
              peer.slot());
}

NodeImpl::Connection& NodeImpl::add_connection(base::UniqueFd fd, PeerRef peer) {
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
    NUPA_WARN("no message of a process can be received: %s", watch.error().what());
  return connection;
}

PeerRef NodeImpl::find(uint32_t slot) {
  if (self_->queue_pairs().has_slot(slot)) return self_;
  std::lock_guard lock(mutex_);
  return met_.find(slot);
}

std::vector<PeerRef> NodeImpl::peers() {
  std::lock_guard lock(mutex_);
  return met_.alive();
}

Result<PeerRef> NodeImpl::connect(uint32_t slot, std::chrono::milliseconds timeout) {
  if (PeerRef known = find(slot); known != nullptr) return known;
  if (on_service_thread()) timeout = std::chrono::milliseconds(0);
  base::UniqueFd asked;
  {
    std::unique_ptr<Loop::Watch> watch;
    std::lock_guard lock(mutex_);
    if (PeerRef known = met_.find(slot); known != nullptr) return known;
    if (timeout.count() == 0 && is_asked(slot))
      return fail(ETIMEDOUT, "the process of slot ", slot, " has not answered yet");
    std::tie(asked, watch) = take_asked(slot);
  }
  if (asked) {
    auto met = wait_for_hello(std::move(asked), slot, timeout);
    // The process that was asked before may have ended. Another one may have the slot now.
    if (met || met.error().code() != EHOSTUNREACH) return met;
  }
  auto socket = dir_->connect(slot);
  if (!socket) {
    const int code = socket.error().code();
    return fail(code == ENOENT || code == ECONNREFUSED ? EHOSTUNREACH : code, "no process has slot ", slot);
  }
  if (auto sent = say_hello(socket->get()); !sent) return fail(sent.error().with_code(EHOSTUNREACH));
  return wait_for_hello(std::move(*socket), slot, timeout);
}

Result<PeerRef> NodeImpl::wait_for_hello(base::UniqueFd socket, uint32_t slot, std::chrono::milliseconds timeout) {
  const int64_t deadline = base::now_ns() + std::chrono::nanoseconds(timeout).count();
  for (;;) {
    const int64_t left = (deadline - base::now_ns()) / 1'000'000;
    if (auto ready = wait_readable(socket.get(), static_cast<int>(std::max<int64_t>(left, 0))); !ready) {
      // The answer may be on its way. The other process has met this one then, and would take the end of the socket for
      // this one's death: it stays open.
      std::lock_guard lock(mutex_);
      add_connection(std::move(socket), nullptr).asked_slot = slot;
      return tl::unexpected(ready.error());
    }
    auto received = receive_message(socket.get());
    if (!received) {
      if (received.error().code() == EAGAIN) continue;
      const int code = received.error().code();
      return fail(received.error().with_code(code == ENOTCONN ? EHOSTUNREACH : code));
    }
    auto introduced = check_hello(socket.get(), std::move(*received));
    if (!introduced) return tl::unexpected(introduced.error());
    if (!shm::claims_slot(*introduced->tables.header, slot))
      return fail(EPROTO, "another process answers for slot ", slot);
    std::lock_guard lock(mutex_);
    PeerRef peer = met_.adopt(std::move(*introduced));
    peer->set_asker(this);
    add_connection(std::move(socket), peer);
    return peer;
  }
}

std::pair<base::UniqueFd, std::unique_ptr<Loop::Watch>> NodeImpl::take_asked(uint32_t slot) {
  const auto found = asked_of(slot);
  if (found == connections_.end()) return {};
  std::pair taken(std::move(found->second.fd), std::move(found->second.watch));
  connections_.erase(found);
  return taken;
}

Result<uint32_t> NodeImpl::publish_channel(int event_fd) {
  std::lock_guard lock(mutex_);
  while (first_free_ < channels_.size() && channels_[first_free_] >= 0) ++first_free_;
  if (first_free_ == Peer::kMaxChannels) return fail(ENOSPC, "all completion channels of this process are in use");
  if (first_free_ == channels_.size()) channels_.push_back(-1);
  const auto index = static_cast<uint32_t>(first_free_);
  channels_[index] = event_fd;
  self_->set_channel(index, event_fd);
  return index;
}

void NodeImpl::withdraw_channel(uint32_t index) {
  std::lock_guard lock(mutex_);
  channels_[index] = -1;
  first_free_ = std::min<size_t>(first_free_, index);
  self_->set_channel(index, -1);
  for (auto& [fd, connection] : connections_) {
    connection.outbox.forget_channel(index);
    if (connection.channels.erase(index) == 0) continue;
    [[maybe_unused]] const auto sent = send(connection, message_of(MessageKind::kChannelGone, index));
  }
}

Result<void> NodeImpl::send_payload(Peer& peer, const Payload& payload) {
  std::lock_guard lock(mutex_);
  for (auto& [fd, connection] : connections_)
    if (connection.peer.get() == &peer && peer.alive())
      return send(connection, message_of(MessageKind::kPayload), -1, &payload);
  return fail(EPIPE, "the process of slot ", peer.slot(), " is gone");
}

void NodeImpl::accept_all() {
  for (;;) {
    base::UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (base::is_out_of_descriptors(errno)) {
        NUPA_WARN("cannot let another process in: %s", strerror(errno));
        arrivals_->pause_until(base::now_ns() + kAcceptPauseNs);
      }
      return;
    }
    const int number = fd.get();
    std::lock_guard lock(mutex_);
    auto& late = add_connection(std::move(fd), nullptr).hello_deadline;
    late = std::make_unique<Loop::Timer>(*loop_, [this, number](int64_t) { drop(number, std::unique_lock(mutex_)); });
    late->set(base::now_ns() + kHelloPatienceNs);
  }
}

bool NodeImpl::on_message(Connection& connection, Received received) {
  const auto kind = static_cast<MessageKind>(received.message.kind);
  if (connection.peer == nullptr) {
    connection.hello_deadline.reset();
    const bool answers = connection.asked_slot == 0;
    if (kind == MessageKind::kObserver && answers) {
      auto credentials = peer_credentials(connection.fd.get());
      connection.observer = true;
      return credentials && credentials->uid == geteuid() && say_hello(connection.fd.get());
    }
    auto introduced = check_hello(connection.fd.get(), std::move(received));
    if (!introduced) NUPA_WARN("another process is not let in: %s", introduced.error().what());
    if (!introduced || (answers && !say_hello(connection.fd.get())) ||
        (!answers && !shm::claims_slot(*introduced->tables.header, connection.asked_slot)))
      return false;
    connection.peer = met_.adopt(std::move(*introduced));
    connection.peer->set_asker(this);
    return true;
  }
  const uint32_t index = received.message.index;
  switch (kind) {
    case MessageKind::kWantChannel:
      if (index < Peer::kMaxChannels) send_channel(connection, index);
      break;
    case MessageKind::kChannel:
      take_channel(*connection.peer, index, received);
      break;
    case MessageKind::kChannelGone:
      if (index < Peer::kMaxChannels) connection.peer->set_channel(index, -1);
      break;
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
  if (const auto found = connections_.find(fd); found != connections_.end()) send_waiting(found->second);
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
    if (received.error().code() == EPROTO) NUPA_WARN("a connection that speaks nonsense is closed");
    drop(fd, std::move(lock));
    return;
  }
}

void NodeImpl::drop(int fd, std::unique_lock<std::mutex> lock) {
  const auto found = connections_.find(fd);
  if (found == connections_.end()) return;
  PeerRef gone = std::move(found->second.peer);
  connections_.erase(found);
  if (gone != nullptr && !gone->mark_gone()) gone = nullptr;
  lock.unlock();
  if (gone == nullptr) return;
  NUPA_INFO("slot %u is gone%s", gone->slot(), gone->left_politely() ? "" : " without a word");
  events_.on_peer_gone(*gone);
  lock.lock();
  met_.forget(*gone);
  lock.unlock();
  gone_.emplace_back(base::now_ns() + kLetGoNs, gone);
  let_go_.set_at_latest(gone_.front().first);
  dir_->sweep();
}

void NodeImpl::let_go() {
  bool some = false;
  for (; !gone_.empty() && gone_.front().first <= base::now_ns(); gone_.pop_front()) {
    if (const PeerRef kept = gone_.front().second.lock()) kept->let_go();
    some = true;
  }
  // The kernel closes a killed process's descriptors one after the other: when its death was seen its socket in the
  // runtime directory may have accepted still.
  if (some) dir_->sweep();
  if (!gone_.empty()) let_go_.set_at_latest(gone_.front().first);
}

}  // namespace

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
