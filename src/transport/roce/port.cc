#include "transport/roce/port.h"

#include <immintrin.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <ctime>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "transport/group_address.h"

namespace nupa::roce {
namespace {

/// Of the sockets that only send, bytes.
constexpr uint32_t kSourceSocketBytes = 1 << 20;
/// Buffers for packets that came before their turn: 4 MiB, taken page by page as they are used.
constexpr uint32_t kPoolPackets = 1024;
/// While threads of the program poll, the port's thread looks this often whether they still do; more seldom if they
/// have for long, since each look disturbs a poller on the same core.
constexpr int64_t kWatchNs = 250'000;
constexpr int64_t kLongestWatchNs = 1'000'000;
/// A few packets at a time are a program's ping-pong: its reply goes first, the acknowledgement after it.
constexpr uint32_t kFewPackets = 2;
constexpr uint32_t kMessagesAtOnce = 4;
constexpr uint32_t kLargeMessage = 8192;
/// How long a connection counts as one that sends, how often the room for all is chosen anew, and what each may have
/// under way at least.
constexpr int64_t kCountNs = 20'000'000;
constexpr int64_t kTurnNs = 500'000;
constexpr uint32_t kFirstRoom = 512 << 10;
constexpr uint32_t kLeastRoom = 128 << 10;
constexpr uint32_t kLeastShare = 2 * kMaxPacketBytes;
/// What may be under way to a process of which nothing is known.
constexpr uint64_t kFirstWindow = 256 << 10;
/// A packet that a polling program has not fetched after this long waits for nobody.
constexpr int64_t kWaitedNs = 40'000;
/// Turns of the watch in which packets had waited, before the thread waits for packets itself beside the pollers.
constexpr int kPatience = 3;
constexpr int kDevotion = 64;
/// So many packets at once are a stream's. The port's thread stays awake after them for this long: to be woken costs
/// the sender more, and it sends at least as much in the meantime.
constexpr uint32_t kStreamPackets = 8;
constexpr int64_t kLingerNs = 50'000;
/// Between two looks it leaves a core's other thread, which may be the sender's, in peace for about half a microsecond.
constexpr int kLingerPauses = 10;
/// Parts of a stream are answered together: when this long nothing came after them, or a quarter of what may be under
/// way has come. If nobody looks any more, the port's thread does it so much later.
constexpr int64_t kGatherNs = 4'000;
constexpr uint32_t kAnswersAWindow = 4;
constexpr int64_t kForgottenNs = kLongestWatchNs;
/// For others to take the receive mutex.
constexpr timespec kMakeWay{0, 20'000};
/// Polls that find another thread at it before this one makes way for it.
constexpr uint32_t kShutOutPolls = 32;
/// An address that a polling program's small messages come to so often in a row has a socket of its own from then on.
/// It is where the program looks next if something came by it last, but for one look of so many.
constexpr uint32_t kAddressRun = 512;
constexpr uint32_t kLooksElsewhere = 4;
/// Polls in vain before the timers are looked at.
constexpr uint32_t kPollsAClock = 8;
/// Without any packet for this long this thread alone waits for the next one.
constexpr int64_t kQuietNs = 100'000'000;

/// Identifications that a receiver takes for granted: what segmentation counts. Other senders' are worked out.
constexpr uint16_t kAnyIdentification = 0xffff;

/// A process has one port; a new one is opened when the old one is gone.
std::atomic<Port*> g_port{nullptr};
std::atomic<uint64_t> g_ports{0};  // ever

void fork_prepare() {
  if (Port* port = g_port; port != nullptr) port->before_fork();
}
void fork_parent() {
  if (Port* port = g_port; port != nullptr) port->after_fork_parent();
}
void fork_child() {
  if (Port* port = g_port.exchange(nullptr); port != nullptr) port->after_fork_child();
}

/// The kernel counts its own overhead with what waits: about as much again for packets that come singly.
uint32_t whole_room(const io::UdpSocket& socket) { return socket.buffer_bytes() / 3; }

int poll_now(pollfd* ready, size_t count) {
  const timespec nothing{0, 0};
  return ppoll(ready, count, &nothing, nullptr);
}

/// The scheduler lets a thread with short slices run soon after it wakes, beside programs that never sleep (EEVDF,
/// Linux 6.12). Where it does not know them nothing changes.
void ask_for_short_slices() {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attributes{};
  constexpr uint64_t kSliceNs = 100'000;  // the least that it takes
  attributes.size = sizeof attributes;
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  attributes.runtime = kSliceNs;
  // A thread with another policy was given it on purpose.
  if (sched_getscheduler(0) == SCHED_OTHER) syscall(SYS_sched_setattr, 0, &attributes, 0);
}

uint32_t number_in(const std::byte* data) {
  return std::to_integer<uint32_t>(data[5]) << 16 | std::to_integer<uint32_t>(data[6]) << 8 |
         std::to_integer<uint32_t>(data[7]);
}

}  // namespace

Result<std::unique_ptr<Port>> Port::open(io::UdpSocket socket, uint32_t source_ports) {
  std::vector<io::UdpSocket> sockets;
  sockets.push_back(std::move(socket));
  while (sockets.size() < source_ports) {
    auto another = io::UdpSocket::open(0, kSourceSocketBytes);
    if (!another) return tl::unexpected(another.error());
    sockets.push_back(std::move(*another));
  }
  std::unique_ptr<Port> port(new Port(std::move(sockets)));
  port->kick_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!port->kick_) return fail(errno, "cannot make an eventfd");
  static const int registered = pthread_atfork(fork_prepare, fork_parent, fork_child);
  if (registered != 0) return fail(registered, "no memory for process handlers");
  g_port = port.get();
  return port;
}

Result<void> Port::start() {
  std::lock_guard lock(start_mutex_);
  if (running_) return {};
  // The program's signals are for its own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&thread_, nullptr, &Port::run, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return fail(error, "cannot start the port's thread");
  running_ = true;
  return {};
}

void* Port::run(void* port) {
  static_cast<Port*>(port)->serve();
  return nullptr;
}

void Port::after_fork_child() {
  running_ = false;
  for (io::UdpSocket& socket : sockets_) socket.close();
  groups_.close();
  if (own_ != nullptr) own_->socket.close();
  kick_.reset();
  receive_mutex_.unlock();
}

Port::Port(std::vector<io::UdpSocket> sockets)
    : serial_(g_ports.fetch_add(1) + 1),
      sockets_(std::move(sockets)),
      pool_(kPoolPackets),
      lines_(std::make_unique_for_overwrite<Line[]>(io::UdpSocket::kMaxReceive / sizeof(Line) + 1)),
      buffer_(lines_[1].bytes - kBthBytes),
      burst_(std::make_unique<Burst>(sockets_)) {
  touched_.reserve(segment::kMaxQp);
  room_ = share_ = std::min(kFirstRoom, whole_room(socket()));
  response_window_ = std::make_shared<SharedWindow>(room_);
}

Port::~Port() {
  Port* self = this;
  g_port.compare_exchange_strong(self, nullptr);
  if (!running_) return;
  stop_ = true;
  kick();
  pthread_join(thread_, nullptr);
}

void Port::kick() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(kick_.get(), &one, sizeof one);
}

void Port::add(Channel& channel) {
  const uint32_t index = segment::index_of(channel.number());
  uint32_t seen = high_water_.load();
  while (seen <= index && !high_water_.compare_exchange_weak(seen, index + 1)) {
  }
  channels_[index].store(&channel, std::memory_order_release);
}

void Port::remove(Channel& channel) {
  channels_[segment::index_of(channel.number())].store(nullptr);
  const auto lock = claim_receiving();
  touched_.erase(std::remove(touched_.begin(), touched_.end(), &channel), touched_.end());
  if (touched_.empty()) owed_bytes_ = 0;
  channel.leave_lines();
}

int Port::attach(uint32_t qp_num, const Gid& group, uint32_t device, const std::vector<GidEntry>& interfaces) {
  int error;
  {
    const auto lock = claim_receiving();
    error = groups_.attach(qp_num, group, device, interfaces);
  }
  kick();  // there may be one thing more to wait for
  return error;
}

void Port::detach(uint32_t qp_num, const Gid& group) {
  const auto lock = claim_receiving();
  groups_.detach(qp_num, group);
}

Burst* Port::burst() {
  struct Owned {
    uint64_t port = 0;
    std::unique_ptr<Burst> burst;
  };
  thread_local Owned mine;
  if (mine.port != serial_) {
    try {
      mine = {serial_, std::make_unique<Burst>(sockets_)};
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  if (!is_warm()) warm_.store(true, std::memory_order_relaxed);
  return mine.burst.get();
}

bool Port::hold(Channel* channel) {
  if (held_ == channel) return true;
  release();
  if (!channel->enter()) {
    counters_.busy.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  held_ = channel;
  return true;
}

void Port::release() {
  if (held_ != nullptr) held_->leave();
  held_ = nullptr;
}

void Port::share_out(int64_t now) {
  if (now < turn_ends_ns_) return;
  // What waits in the socket all the time only grows cold: less of it is as fast. An empty one asks for more.
  if (full_looks_ <= 2 * empty_looks_)
    room_ = std::min(room_ + room_ / 4, whole_room(socket()));
  else
    room_ = std::max(room_ - room_ / 4, std::min(kLeastRoom, whole_room(socket())));
  const uint32_t senders = std::max({senders_, senders_before_, 1u});
  share_.store(std::max(room_ / senders, kLeastShare), std::memory_order_relaxed);
  // Responses come from some of them.
  response_window_->resize(std::max(senders == 1 ? room_ : room_ / 2, kLeastShare));
  full_looks_ = empty_looks_ = 0;
  turn_ends_ns_ = now + kTurnNs;
  if (now < count_ends_ns_) return;
  count_ends_ns_ = now + kCountNs;
  ++turn_;
  senders_before_ = std::exchange(senders_, 0);
}

void Port::touch(Channel& channel) {
  Peer* peer = channel.peer();
  if (uint64_t& turn = peer == nullptr ? channel.turn_ : peer->turn; turn != turn_) {
    turn = turn_;
    ++senders_;
  }
  if (channel.touched_) return;
  channel.touched_ = true;
  touched_.push_back(&channel);
}

void Port::segment_arrived(const std::byte* data, uint32_t length, uint32_t position,
                           const io::UdpSocket::Received& received, int64_t now) {
  if (length < kShortestPacket || length > kMaxPacketBytes) {
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const uint32_t number = number_in(data);
  Channel* channel = channels_[segment::index_of(number)].load(std::memory_order_acquire);
  if (channel == nullptr || channel->number() != number) {
    counters_.no_queue_pair.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Packet packet;
  if (!read(data, length, position, received, socket().port(), channel, &packet)) return channel->count_stranger();
  if (!hold(channel)) return;
  channel->deliver(packet, received, now);
  if (packet.carried != nullptr) {
    Packet ack = decode_carried(packet);
    channel->deliver(ack, received, now);
  }
  touch(*channel);
}

bool Port::read(const std::byte* data, uint32_t length, uint32_t position, const io::UdpSocket::Received& received,
                uint16_t port, const Channel* channel, Packet* packet) {
  const Route route{received.from.address, received.to, received.from.port, port};
  // Segments of one send count up from 0, and mostly come together as they left.
  const bool unchecked = channel != nullptr && channel->takes_unchecked() && load_icrc(data + length - kIcrcBytes) == 0;
  if (!unchecked && !icrc_holds(route, data, length, kAnyIdentification, static_cast<uint16_t>(position),
                                channel == nullptr ? nullptr : channel->next_place(), &routes_)) {
    counters_.wrong_crc.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  if (decode(data, length, packet)) return true;
  counters_.malformed.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void Port::group_datagram_arrived(const Groups::Group& group, const std::byte* data, uint32_t length, uint32_t position,
                                  const io::UdpSocket::Received& received, int64_t now) {
  if (length < kShortestPacket || length > kMaxPacketBytes || number_in(data) != transport::kGroupQpn) {
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Packet packet;
  if (!read(data, length, position, received, group.socket.port(), nullptr, &packet)) return;
  for (const uint32_t member : group.members) {
    Channel* channel = channels_[segment::index_of(member)].load(std::memory_order_acquire);
    if (channel == nullptr || channel->number() != member || !hold(channel)) continue;
    channel->deliver(packet, received, now);
    touch(*channel);
  }
}

template <class Deliver>
void Port::dispatch(const io::UdpSocket::Received& received, Deliver&& deliver) {
  uint32_t position = 0;
  for (uint32_t at = 0; at < received.length; at += received.segment, ++position)
    deliver(buffer_ + at, std::min(received.segment, received.length - at), position);
}

void Port::count_packets(uint32_t packets) {
  // One thread receives at a time.
  if (packets > 0)
    counters_.packets.store(counters_.packets.load(std::memory_order_relaxed) + packets, std::memory_order_relaxed);
}

uint32_t Port::receive_groups() {
  uint32_t packets = 0;
  const int64_t now = base::now_ns();
  io::UdpSocket::Received received;
  for (const Groups::Group& group : groups_.list())
    for (uint32_t messages = 0; messages < kMessagesAtOnce; ++messages) {
      if (!group.socket.receive(buffer_, io::UdpSocket::kMaxReceive, &received)) break;
      dispatch(received, [&](const std::byte* data, uint32_t length, uint32_t position) {
        group_datagram_arrived(group, data, length, position, received, now);
        ++packets;
      });
    }
  count_packets(packets);
  return packets;
}

uint32_t Port::receive_from(const io::UdpSocket& socket, bool for_program) {
  uint32_t messages = 0;
  uint32_t packets = 0;
  uint32_t bytes = 0;
  io::UdpSocket::Received received;
  while (messages < kMessagesAtOnce) {
    if (!socket.receive(buffer_, io::UdpSocket::kMaxReceive, &received)) {
      ++empty_looks_;
      break;
    }
    // Not the time before: this thread may have been away between, and the packet would seem to have been here for
    // long.
    const int64_t now = receive_ns_ = base::now_ns();
    dispatch(received, [&](const std::byte* data, uint32_t length, uint32_t position) {
      segment_arrived(data, length, position, received, now);
    });
    ++messages;
    bytes += received.length;
    packets += (received.length + received.segment - 1) / received.segment;
    // One small packet is most often all there is: the program wants to know it before another look.
    if (for_program && received.length < kLargeMessage) {
      if (own_ == nullptr) consider(received.to);
      break;
    }
  }
  full_looks_ += messages == kMessagesAtOnce;
  count_packets(packets);
  if (packets > 0) streams_ = packets >= kStreamPackets;
  if (streams_) owed_bytes_ += bytes;
  if (packets > 0 && !is_warm()) warm_.store(true, std::memory_order_relaxed);
  return packets;
}

uint32_t Port::receive(bool for_program) {
  if (own_ == nullptr) return receive_from(socket(), for_program);
  if (!for_program) return receive_from(own_->socket, false) + receive_from(socket(), false);
  const bool by_own = own_was_last_ != (++looks_ % kLooksElsewhere == 0);
  const uint32_t packets = receive_from(by_own ? own_->socket : socket(), true);
  if (packets > 0) own_was_last_ = by_own;
  return packets;
}

void Port::consider(const Gid& address) {
  if (address != last_address_) {
    last_address_ = address;
    last_address_run_ = 0;
  } else if (++last_address_run_ == kAddressRun) {
    open_address(address);
  }
}

void Port::open_address(const Gid& address) {
  // The kernel grants twice what is asked for.
  auto opened = io::UdpSocket::open_address(address, socket().port(), socket().buffer_bytes() / 2);
  if (!opened) {
    NUPA_INFO("no socket for one address alone: %s", opened.error().what);
    return;
  }
  // Less room than has been promised would lose packets.
  if (opened->buffer_bytes() < socket().buffer_bytes()) return;
  own_.reset(new (std::nothrow) AddressSocket{std::move(*opened), address});
  if (own_ == nullptr) return;
  if (datagrams_.load()) own_->socket.tell_more();
  own_shown_.store(own_.get(), std::memory_order_release);
  kick();  // there is one thing more to wait for
}

void Port::tell_more() {
  if (datagrams_.exchange(true)) return;
  socket().tell_more();
  const auto lock = claim_receiving();
  if (own_ != nullptr) own_->socket.tell_more();
}

void Port::answer(int64_t now, bool all) {
  size_t kept = 0;
  for (Channel* channel : touched_) {
    bool owes = false;
    if (hold(channel)) {
      channel->transmit(now, *burst_, all);
      burst_->flush();
      owes = channel->owes_answers() && !all;
    }
    if (owes)
      touched_[kept++] = channel;
    else
      channel->touched_ = false;
  }
  touched_.resize(kept);
  owed_bytes_ = 0;
  release();
}

std::shared_ptr<Peer> Port::peer_at(const Gid& address, uint16_t port) {
  std::lock_guard lock(peers_mutex_);
  for (auto it = peers_.begin(); it != peers_.end();) it = it->second.expired() ? peers_.erase(it) : std::next(it);
  std::weak_ptr<Peer>& known = peers_[{address.raw, port}];
  std::shared_ptr<Peer> peer = known.lock();
  if (peer == nullptr) known = peer = std::make_shared<Peer>(kFirstWindow);
  return peer;
}

void Port::serve_line(SharedWindow& window, int64_t now) {
  // One that has something else in its way takes its turn without filling any room.
  for (uint32_t tries = window.waiters(); tries > 0 && window.has_room();) {
    Channel* channel = window.next();
    if (channel == nullptr) return;
    const uint64_t before = window.used();
    if (!hold(channel)) {
      window.wait(*channel);
      expect(now + kWatchNs);
      return;
    }
    channel->take_turn(window, now, *burst_);
    burst_->flush();
    release();
    if (window.used() <= before) --tries;
  }
}

void Port::serve_waiters(int64_t now) {
  if (!anyone_waits_.load(std::memory_order_relaxed)) return;
  anyone_waits_.store(false);
  served_.clear();
  {
    std::lock_guard lock(peers_mutex_);
    for (const auto& [where, known] : peers_)
      if (std::shared_ptr<Peer> peer = known.lock(); peer != nullptr && peer->window.has_waiters())
        served_.push_back(std::move(peer));
  }
  bool waits = response_window_->has_waiters();
  serve_line(*response_window_, now);
  for (const std::shared_ptr<Peer>& peer : served_) {
    waits = true;
    serve_line(peer->window, now);
  }
  served_.clear();
  if (waits) anyone_waits_.store(true);
}

bool Port::handle(bool for_program) {
  const bool owed = !touched_.empty();
  const bool gathers = owed && owed_bytes_ != 0;
  if (owed && !gathers) answer(base::now_ns(), true);
  uint32_t packets = receive(for_program);
  if (!groups_.empty()) packets += receive_groups();
  const bool others_wait =
      anyone_waits_.load(std::memory_order_relaxed) || earliest_.load(std::memory_order_relaxed) <= receive_ns_;
  if (for_program && packets > 0 && packets <= kFewPackets && !streams_ && !others_wait) {
    // The program goes first: what it does now, and its next poll, do the rest.
    release();
    expect(receive_ns_ + kForgottenNs);
    return true;
  }
  // Somebody who polls in vain comes again at once; a clock read each time would be a good part of it.
  if (for_program && packets == 0 && !owed && ++vain_polls_ % kPollsAClock != 0) return false;
  const int64_t now = base::now_ns();
  share_out(now);
  if (packets > 0 && streams_ && owed_bytes_ < receive_share() / kAnswersAWindow)
    owed_since_ns_ = now;
  else if (packets > 0)
    answer(now, !for_program || packets > kFewPackets);
  else if (gathers && now - owed_since_ns_ >= kGatherNs)
    answer(now, true);
  release();
  if (now >= earliest_.load(std::memory_order_relaxed)) run_timers(now);
  serve_waiters(now);
  if (owed_bytes_ != 0) expect(now + kForgottenNs);
  return owed || packets > 0;
}

void Port::poll() {
  polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  std::unique_lock lock(receive_mutex_, std::try_to_lock);
  if (lock.owns_lock()) {
    handle(true);
    return;
  }
  // Whoever has it may wait for this thread's core.
  thread_local uint32_t shut_out = 0;
  if (++shut_out % kShutOutPolls == 0) sched_yield();
}

void Port::expect(int64_t deadline) {
  int64_t seen = earliest_.load();
  while (deadline < seen && !earliest_.compare_exchange_weak(seen, deadline)) {
  }
  if (deadline < seen && deadline < sleeps_until_.load()) kick();
}

void Port::run_timers(int64_t now) {
  earliest_.store(INT64_MAX);
  int64_t earliest = INT64_MAX;
  const uint32_t count = high_water_.load();
  for (uint32_t i = 0; i < count; ++i) {
    Channel* channel = channels_[i].load(std::memory_order_acquire);
    if (channel == nullptr) continue;
    if (channel->deadline() <= now) {
      if (!hold(channel)) {
        earliest = std::min(earliest, now + kWatchNs);
        continue;
      }
      channel->on_timer(now);
      channel->transmit(now, *burst_, true);
      burst_->flush();
      release();
    }
    earliest = std::min(earliest, channel->deadline());
  }
  int64_t seen = earliest_.load();
  while (earliest < seen && !earliest_.compare_exchange_weak(seen, earliest)) {
  }
}

bool Port::is_due() const { return base::now_ns() >= earliest_.load(std::memory_order_relaxed); }

bool Port::left_waiting() {
  if (!has_packets()) return false;
  // Somebody may be about to fetch them.
  const uint64_t before = polls_.load(std::memory_order_relaxed);
  pollfd kicked{kick_.get(), POLLIN, 0};
  const timespec pause{0, kWaitedNs};
  ppoll(&kicked, 1, &pause, nullptr);
  return polls_.load(std::memory_order_relaxed) == before && has_packets();
}

int Port::own_fd() const { return own() == nullptr ? -1 : own()->socket.fd(); }

bool Port::has_packets() const {
  pollfd ready[] = {{socket().fd(), POLLIN, 0}, {own_fd(), POLLIN, 0}, {groups_.fd(), POLLIN, 0}};
  return poll_now(ready, std::size(ready)) > 0;
}

void Port::linger(std::unique_lock<std::mutex>& lock) {
  int64_t until = base::now_ns() + kLingerNs;
  while (base::now_ns() < until && !stop_ && wanted_.load(std::memory_order_relaxed) == 0) {
    if (handle(false)) {
      if (streams_) until = base::now_ns() + kLingerNs;
      continue;
    }
    lock.unlock();
    for (int i = 0; i < kLingerPauses; ++i) _mm_pause();
    lock.lock();
  }
  if (!touched_.empty()) answer(base::now_ns(), true);
}

std::unique_lock<std::mutex> Port::claim_receiving() {
  wanted_.fetch_add(1);
  std::unique_lock lock(receive_mutex_);
  wanted_.fetch_sub(1);
  return lock;
}

void Port::serve() {
  pthread_setname_np(pthread_self(), "nupa-roce");
  prctl(PR_SET_TIMERSLACK, 1);
  ask_for_short_slices();
  uint64_t polls = 0;
  uint64_t packets_seen = 0;
  int64_t watch = kWatchNs;
  int64_t quiet_since = 0;
  int waiting_turns = 0;  // of late, in which packets had waited although the program polls
  int devoted = 0;        // turns left in which this thread waits for packets beside the pollers
  while (!stop_) {
    const bool polled = polls_.load(std::memory_order_relaxed) != polls;
    polls = polls_.load(std::memory_order_relaxed);
    const bool watches = polled && devoted == 0;
    pollfd ready[] = {
        {kick_.get(), POLLIN, 0}, {socket().fd(), POLLIN, 0}, {own_fd(), POLLIN, 0}, {groups_.fd(), POLLIN, 0}};
    // First said, then looked: whoever sets an earlier time after the look sees that it has to kick.
    sleeps_until_.store(INT64_MAX);
    const int64_t now = base::now_ns();
    const int64_t earliest = earliest_.load();
    int64_t wait = std::max<int64_t>(earliest - now, 0);
    if (watches) {
      wait = std::max(std::min(wait, watch), kWatchNs / 4);
      sleeps_until_.store(now + wait);
    }
    timespec pause{wait / 1'000'000'000, wait % 1'000'000'000};
    const bool forever = earliest == INT64_MAX && !watches;
    ppoll(ready, watches ? 1 : std::size(ready), forever ? nullptr : &pause, nullptr);
    sleeps_until_.store(0);
    if ((ready[0].revents & POLLIN) != 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t got = ::read(kick_.get(), &count, sizeof count);
    }
    const bool left = watches && !is_due() && left_waiting();
    bool worked = false;
    if (!watches || left || is_due()) {
      // Whoever has the lock does what there is to do.
      std::unique_lock lock(receive_mutex_, std::defer_lock);
      if (wanted_.load(std::memory_order_relaxed) != 0) nanosleep(&kMakeWay, nullptr);
      if (watches ? lock.try_lock() : (lock.lock(), true)) worked = handle(false);
      if (worked && streams_) linger(lock);
    }
    if (watches) {
      // A program that polls only now and then leaves packets waiting: they are worth a wake-up then.
      const uint64_t packets = counters_.packets.load(std::memory_order_relaxed);
      if (packets_seen != packets || quiet_since == 0) quiet_since = now;
      packets_seen = packets;
      if (now - quiet_since >= kQuietNs) warm_.store(false, std::memory_order_relaxed);
      waiting_turns = left && worked ? waiting_turns + 1 : 0;
      watch = left ? kWatchNs : std::min(2 * watch, kLongestWatchNs);
      if (waiting_turns >= kPatience) devoted = kDevotion;
      continue;
    }
    quiet_since = 0;
    watch = kWatchNs;
    if (devoted > 0) {
      --devoted;
      if (worked && devoted == 0) devoted = kDevotion;
      if (devoted == 0) waiting_turns = 0;
    }
  }
}

}  // namespace nupa::roce
