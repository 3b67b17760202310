#include "transport/roce/port/port.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "core/seam/group_address.h"
#include "progress/descriptors.h"
#include "progress/late_events.h"
#include "progress/lifecycle.h"
#include "progress/waiter.h"
#include "transport/roce/port/port_waits.h"

namespace nupa::roce {
namespace {

/// Of the sockets that only send, bytes.
constexpr uint32_t kSourceSocketBytes = 1 << 20;
/// Buffers for packets that came before their turn: 4 MiB, taken page by page as they are used.
constexpr uint32_t kPoolPackets = 1024;
/// A few packets at a time are a program's ping-pong: its reply goes first, the acknowledgement after it.
constexpr uint32_t kFewPackets = 2;
constexpr uint32_t kMessagesAtOnce = 4;
constexpr uint32_t kLargeMessage = 8192;
/// What may be under way to a process of which nothing is known.
constexpr uint64_t kFirstWindow = 256 << 10;
/// A thread that holds a queue pair is mostly about to leave it. One that does not was preempted there, or sends much:
/// the port tries again at its next turn, and at the latest after the first of these, and then after twice as long each
/// time.
constexpr int64_t kHoldNs = 2'000;
/// In a stream of one queue pair none of others stands behind, and to wait is cheaper than to copy.
constexpr int64_t kHoldAloneNs = 2'000'000;
constexpr progress::WaitPolicy kHoldPolicy{UINT32_MAX, INT64_MAX, 0};  // pauses only
constexpr int64_t kFirstTryNs = 50'000;
constexpr int64_t kLongestTryNs = 1'000'000;
/// So many packets at once are a stream's.
constexpr uint32_t kStreamPackets = 8;
/// Parts of a stream are answered together: when this long nothing came after them, or a quarter of what may be under
/// way has come. If nobody looks any more, the port's thread does it so much later.
constexpr int64_t kGatherNs = 4'000;
constexpr uint32_t kAnswersAWindow = 4;
constexpr int64_t kForgottenNs = 1'000'000;
/// How long the end of the process waits for room in its sockets.
constexpr int64_t kFarewellNs = 10'000'000;
/// Polls that find another thread at it before this one makes way for it.
constexpr uint32_t kShutOutPolls = 32;
/// A process from which a polling program's small messages come so often in a row has a socket of its own from then on,
/// until another one does. It is where the program looks next if something came by it last, but for one look of so
/// many.
constexpr uint32_t kPeerRun = 512;
constexpr uint32_t kLooksElsewhere = 4;
/// The port's thread is woken at once for what is due so soon. For what is due later its timer is set, since a thread
/// that is woken may take the core of the one that wakes it.
constexpr int64_t kSoonNs = 20'000;
/// Polls in vain before the timers are looked at.
constexpr uint32_t kPollsAClock = 8;

std::atomic<uint64_t> g_ports{0};  // ever

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
  port->kick_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!port->kick_) return fail(errno, "cannot make an eventfd");
  progress::ReceiveRight& right = port->waits_->right;
  if (auto opened = right.open(); !opened) return tl::unexpected(opened.error());
  if (auto opened = port->waits_->watchdog.open(); !opened) return tl::unexpected(opened.error());
  if (auto added = right.add(port->socket().fd()); !added) return tl::unexpected(added.error());
  if (const int error = progress::join_forks(progress::ForkStage::kPackets, port.get()); error != 0)
    return fail(error, "no memory to prepare for forks");
  const progress::ExitAction answers{[](void* mine) { static_cast<Port*>(mine)->process_ends(); }, port.get()};
  if (const int error = progress::at_exit(progress::ExitStage::kPackets, answers); error != 0)
    return fail(error, "the end of the process cannot be prepared");
  return port;
}

void Port::process_ends() {
  const auto lock = claim_receiving();
  burst_->take_all(true);
  if (!touched_.empty()) answer(base::now_ns(), true);
  // Nobody does it later.
  const auto has_left = [this] { return backlog_.retry(base::now_ns()) == INT64_MAX; };
  progress::wait_for(has_left, progress::kPeerPolicy, progress::Deadline::in_ns(kFarewellNs));
}

bool Port::in_child() {
  running_ = false;
  for (net::UdpSocket& socket : sockets_) socket.close();
  groups_.close();
  further_.clear();
  if (own_ != nullptr) own_->socket().close();
  kick_.reset();
  waits_->right.close();
  waits_->watchdog.close();
  receive_mutex_.unlock();
  return false;
}

Port::Port(std::vector<net::UdpSocket> sockets)
    : serial_(g_ports.fetch_add(1) + 1),
      sockets_(std::move(sockets)),
      pool_(kPoolPackets),
      lines_(std::make_unique_for_overwrite<Line[]>(net::UdpSocket::kMaxReceive / sizeof(Line) + 1)),
      buffer_(lines_[1].bytes - kBthBytes),
      held_packets_(pool_),
      next_try_ns_(kFirstTryNs),
      room_(socket().buffer_bytes()),
      backlog_(sockets_, [this](int64_t at_ns) { expect(at_ns); }),
      burst_(std::make_unique<Burst>(sockets_, false, &backlog_)),
      waits_(std::make_unique<Waits>()) {
  for (net::UdpSocket& each : sockets_) each.tell_refusals();
  touched_.reserve(shm::kSlotQp);
  held_up_.reserve(shm::kSlotQp);
  response_window_ = std::make_shared<SharedWindow>(room_.for_responses());
}

Port::~Port() {
  progress::forget_at_exit(this);
  progress::leave_forks(this);
  if (running_) {
    stop_ = true;
    kick();
    thread_.join();
  }
  // Threads that have sent by it keep it.
  if (own_ != nullptr) own_->socket().close();
}

void Port::add(Channel& channel) {
  const bool is_first = banks_.of(channel.number()) == nullptr;
  Bank& bank = banks_.make(channel.number());
  if (is_first) {
    // Nothing is allocated where packets arrive.
    size_t channels = 0;
    banks_.each([&channels](const Bank&) { channels += shm::kSlotQp; });
    const auto lock = claim_receiving();
    touched_.reserve(channels);
    held_up_.reserve(channels);
  }
  const uint32_t index = shm::index_of(channel.number());
  channel.timers_ = &bank.timers[index / kGroup];
  uint32_t seen = bank.high_water.load();
  while (seen <= index && !bank.high_water.compare_exchange_weak(seen, index + 1)) {
  }
  bank.channels[index].store(&channel, std::memory_order_release);
}

Result<void> Port::add_socket(net::UdpSocket socket) {
  if (datagrams_.load()) socket.tell_more();
  auto port = std::make_unique<FurtherPort>(std::move(socket));
  const auto lock = claim_receiving();
  if (auto added = waits_->right.add(port->socket.front().fd()); !added) return added;
  further_.push_back(std::move(port));
  return {};
}

void Port::drop_last_socket() {
  const auto lock = claim_receiving();
  further_.pop_back();
}

void Port::remove(Channel& channel) {
  banks_.of(channel.number())->channels[shm::index_of(channel.number())].store(nullptr);
  const auto lock = claim_receiving();
  touched_.erase(std::remove(touched_.begin(), touched_.end(), &channel), touched_.end());
  if (touched_.empty()) owed_bytes_ = 0;
  std::erase(held_up_, &channel);
  held_packets_.drop_all(channel.inbox_);
  if (waits_->latest == &channel) waits_->latest = nullptr;
  channel.held_up_ = false;
  channel.leave_lines();
}

int Port::attach(uint32_t qp_num, const Gid& group, uint32_t device, const std::vector<GidEntry>& interfaces) {
  int error;
  {
    const auto lock = claim_receiving();
    error = groups_.attach(qp_num, group, device, interfaces);
    if (error == 0)
      if (auto added = waits_->right.add(groups_.fd()); !added) {
        groups_.detach(qp_num, group);
        error = added.error().code();
      }
  }
  return error;
}

void Port::detach(uint32_t qp_num, const Gid& group) {
  const auto lock = claim_receiving();
  groups_.detach(qp_num, group);
}

Burst* Port::burst() {
  // At exit the main thread's variables go before the process says its goodbyes.
  thread_local bool gone = false;
  struct Owned {
    uint64_t port = 0;
    std::unique_ptr<Burst> burst;
    ~Owned() { gone = true; }
  };
  thread_local Owned mine;
  if (gone) return nullptr;
  if (mine.port != serial_) {
    try {
      mine.burst = std::make_unique<Burst>(sockets_, true, &backlog_);
      mine.port = serial_;
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
  if (!channel->enter() && !hold_soon(*channel)) return false;
  entered(*channel);
  return true;
}

inline void Port::entered(Channel& channel) {
  held_ = &channel;
  progress::LateEvents::begin();
  if (channel.held_up_) [[unlikely]]
    catch_up(channel);
}

bool Port::hold_soon(Channel& channel) {
  if (!channel.held_up_ && comes_free(channel)) return true;
  note_held_up(channel);
  return false;
}

bool Port::comes_free(Channel& channel) const {
  const int64_t now = base::now_ns();
  const bool alone = waits_->is_alone(channel, now);
  return progress::wait_for([&] { return channel.enter(); }, alone ? progress::kHolderPolicy : kHoldPolicy,
                            progress::Deadline::in_ns(alone ? kHoldAloneNs : kHoldNs, now));
}

void Port::note_held_up(Channel& channel) {
  if (channel.held_up_) return;
  channel.held_up_ = true;
  held_up_.push_back(&channel);
  expect(base::now_ns() + next_try_ns_);
}

void Port::catch_up(Channel& channel) {
  channel.held_up_ = false;
  std::erase(held_up_, &channel);
  next_try_ns_ = kFirstTryNs;
  const uint32_t packets =
      held_packets_.take_all(channel.inbox_, [&](Packet& packet, const net::UdpSocket::Received& from,
                                                 int64_t came_ns) { channel.deliver(packet, from, came_ns); });
  caught_up_ += packets;
  if (packets > 0) touch(channel);
}

uint32_t Port::try_held_up() {
  caught_up_ = 0;
  // Its packets stay in the socket meanwhile, which has room for all that may be under way.
  if (held_up_.size() == 1 && waits_->is_alone(*held_up_[0], base::now_ns()) && comes_free(*held_up_[0]))
    entered(*held_up_[0]);
  // The last one first: those that are taken leave the list.
  for (size_t i = held_up_.size(); i-- > 0;) hold(held_up_[i]);
  release();
  return caught_up_;
}

void Port::keep(Channel& channel, const Packet& packet, const net::UdpSocket::Received& received, int64_t now) {
  note_held_up(channel);
  bool kept = true;
  if (packet.carried != nullptr) kept = held_packets_.keep(channel.inbox_, decode_carried(packet), received, now);
  if (!kept || !held_packets_.keep(channel.inbox_, packet, received, now))
    counters_.busy.fetch_add(1, std::memory_order_relaxed);
}

void Port::bring(Channel& channel, Packet& packet, const net::UdpSocket::Received& received, int64_t now) {
  waits_->came_for(channel, now);
  if (!hold(&channel)) [[unlikely]]
    return keep(channel, packet, received, now);
  // What is acknowledged completes before what may be the answer to it arrives.
  if (packet.carried != nullptr) {
    Packet ack = decode_carried(packet);
    channel.deliver(ack, received, now);
  }
  channel.deliver(packet, received, now);
  touch(channel);
}

void Port::release() {
  if (held_ == nullptr) return;
  held_->leave();
  held_ = nullptr;
  progress::LateEvents::end();
}

void Port::touch(Channel& channel) {
  Peer* peer = channel.peer();
  room_.count_sender(peer == nullptr ? &channel.turn_ : &peer->turn);
  if (channel.touched_) return;
  channel.touched_ = true;
  touched_.push_back(&channel);
}

void Port::segment_arrived(const std::byte* data, uint32_t length, uint32_t position,
                           const net::UdpSocket::Received& received, uint16_t port, int64_t now) {
  if (length < kShortestPacket || length > kMaxPacketBytes) {
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const uint32_t number = name_in(data).dest_qpn;
  Channel* channel = channel_of(number);
  if (channel == nullptr || channel->number() != number) {
    if (number == kManagementQpn && (management_ || std::to_integer<uint8_t>(data[0]) == kAbsence))
      return management_arrived(data, length, position, received, port);
    counters_.no_queue_pair.fetch_add(1, std::memory_order_relaxed);
    return absent_asked(data, length, position, received, port, now);
  }
  Packet packet;
  if (!read(data, length, position, received, port, channel, &packet)) return channel->count_stranger();
  bring(*channel, packet, received, now);
}

bool Port::read(const std::byte* data, uint32_t length, uint32_t position, const net::UdpSocket::Received& received,
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

void Port::management_arrived(const std::byte* data, uint32_t length, uint32_t position,
                              const net::UdpSocket::Received& received, uint16_t port) {
  Packet packet;
  MadDatagram datagram;
  if (!read(data, length, position, received, port, nullptr, &packet)) return;
  if (packet.opcode == kAbsence) return absent(packet, received);
  if (read_management(packet, received, &datagram))
    management_(datagram);
  else
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
}

void Port::set_management(MadHandler handler) {
  const auto lock = claim_receiving();
  management_ = std::move(handler);
}

bool Port::send_management(const MadDatagram& datagram, bool marked) {
  if (management_burst_ == nullptr) management_burst_ = std::make_unique<Burst>(sockets_, false);
  const uint64_t refused = management_burst_->refused();
  roce::send_management(*management_burst_, datagram, marked);
  return management_burst_->refused() == refused;
}

void Port::group_datagram_arrived(const Groups::Group& group, const std::byte* data, uint32_t length, uint32_t position,
                                  const net::UdpSocket::Received& received, int64_t now) {
  if (length < kShortestPacket || length > kMaxPacketBytes || name_in(data).dest_qpn != core::kGroupQpn) {
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Packet packet;
  if (!read(data, length, position, received, kUdpPort, nullptr, &packet)) return;
  for (const uint32_t member : group.members) {
    Channel* channel = channel_of(member);
    if (channel != nullptr && channel->number() == member) bring(*channel, packet, received, now);
  }
}

template <class Deliver>
void Port::dispatch(const net::UdpSocket::Received& received, Deliver&& deliver) {
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
  net::UdpSocket::Received received;
  for (const Groups::Group& group : groups_.list())
    for (const net::UdpSocket& socket : group.sockets)
      for (uint32_t messages = 0; messages < kMessagesAtOnce; ++messages) {
        if (!socket.receive(buffer_, net::UdpSocket::kMaxReceive, &received)) break;
        dispatch(received, [&](const std::byte* data, uint32_t length, uint32_t position) {
          group_datagram_arrived(group, data, length, position, received, now);
          ++packets;
        });
      }
  count_packets(packets);
  return packets;
}

uint32_t Port::receive_further(bool for_program) {
  // Where something came last is looked at each time, as with own().
  if (for_program && !further_was_last_ && ++further_looks_ % kLooksElsewhere != 0) return 0;
  std::array<pollfd, shm::kMaxBanks> waiting;
  const size_t count = std::min(further_.size(), waiting.size());
  for (size_t i = 0; i < count; ++i) waiting[i] = {further_[i]->socket.front().fd(), POLLIN, 0};
  const auto found =
      progress::wait_descriptors({waiting.data(), count}, progress::Deadline::at(0), progress::Signals::kIgnore);
  uint32_t packets = 0;
  for (size_t i = 0; i < count && found && *found > 0; ++i)
    if ((waiting[i].revents & POLLIN) != 0) packets += receive_from(further_[i]->socket.front(), for_program);
  further_was_last_ = packets > 0;
  return packets;
}

uint32_t Port::receive_from(const net::UdpSocket& socket, bool for_program) {
  uint32_t messages = 0;
  uint32_t packets = 0;
  uint32_t bytes = 0;
  bool emptied = false;
  net::UdpSocket::Received received;
  while (messages < kMessagesAtOnce) {
    if (!socket.receive(buffer_, net::UdpSocket::kMaxReceive, &received)) {
      emptied = true;
      break;
    }
    // Not the time before: this thread may have been away between, and the packet would seem to have been here for
    // long.
    const int64_t now = receive_ns_ = base::now_ns();
    dispatch(received, [&](const std::byte* data, uint32_t length, uint32_t position) {
      segment_arrived(data, length, position, received, socket.port(), now);
    });
    ++messages;
    bytes += received.length;
    packets += (received.length + received.segment - 1) / received.segment;
    // What posts to the same queue pair has its turn while the kernel copies.
    if (received.length >= kLargeMessage) release();
    // One small packet is most often all there is: the program wants to know it before another look.
    if (for_program && received.length < kLargeMessage) {
      if (&socket == sockets_.data())
        consider(received);
      else
        last_route_run_ = 0;
      break;
    }
  }
  if (emptied || messages == kMessagesAtOnce) room_.count_look(emptied);
  count_packets(packets);
  if (packets > 0) streams_ = packets >= kStreamPackets;
  if (streams_) owed_bytes_ += bytes;
  if (packets > 0 && !is_warm()) warm_.store(true, std::memory_order_relaxed);
  return packets;
}

uint32_t Port::receive(bool for_program) {
  if (own_ == nullptr) return receive_from(socket(), for_program);
  if (!for_program) return receive_from(own_->socket(), false) + receive_from(socket(), false);
  const bool by_own = own_was_last_ != (++looks_ % kLooksElsewhere == 0);
  const uint32_t packets = receive_from(by_own ? own_->socket() : socket(), true);
  if (packets > 0) own_was_last_ = by_own;
  return packets;
}

void Port::consider(const net::UdpSocket::Received& received) {
  const Route route{received.from.address, received.to, received.from.port, socket().port()};
  if (route != last_route_) {
    last_route_ = route;
    last_route_run_ = 0;
  } else if (++last_route_run_ == kPeerRun) {
    lead_own(received);
  }
}

void Port::lead_own(const net::UdpSocket::Received& received) {
  if (own_ == nullptr) {
    own_ = PeerSocket::open(received.to, socket().port(), socket().buffer_bytes());
    if (own_ != nullptr && !waits_->right.add(own_->socket().fd())) own_.reset();
  }
  if (own_ == nullptr || own_->address() != received.to) return;
  if (datagrams_.load()) own_->socket().tell_more();
  own_->lead_to(received.from, peer_at(received.from.address, received.from.port));
  own_shown_.store(own_.get(), std::memory_order_release);
}

void Port::tell_more() {
  if (datagrams_.exchange(true)) return;
  socket().tell_more();
  const auto lock = claim_receiving();
  if (own_ != nullptr) own_->socket().tell_more();
  for (const auto& each : further_) each->socket.front().tell_more();
}

void Port::answer(int64_t now, bool all) {
  size_t kept = 0;
  for (Channel* channel : touched_) {
    bool owes = true;  // while another thread holds it
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
    Channel* channel = window.first();
    if (channel == nullptr) return;
    const uint64_t before = window.used();
    if (!hold(channel)) {
      window.pass_over(*channel);
      expect(now + next_try_ns_);
      return;
    }
    // Whoever held it may have taken it out of the line meanwhile.
    if (window.leave_head(*channel)) {
      channel->take_turn(window, now, *burst_);
      burst_->flush();
    }
    release();
    if (window.used() <= before) --tries;
  }
}

void Port::serve_waiters(int64_t now) {
  if (!anyone_waits_.load(std::memory_order_seq_cst)) return;
  // An exchange, so that what was noted before is seen below.
  anyone_waits_.exchange(false);
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

inline void Port::put_off_look(int64_t now) {
  if (now >= waits_->put_off_ns.load(std::memory_order_relaxed))
    waits_->put_off({now, polls_.load(std::memory_order_relaxed), counters_.packets.load(std::memory_order_relaxed)});
}

bool Port::handle(bool for_program) {
  const bool owed = !touched_.empty();
  const bool gathers = owed && owed_bytes_ != 0;
  if (owed && !gathers) answer(base::now_ns(), true);
  uint32_t packets = held_up_.empty() ? 0 : try_held_up();
  packets += receive(for_program);
  if (!groups_.empty()) packets += receive_groups();
  if (!further_.empty()) packets += receive_further(for_program);
  const bool others_wait = anyone_waits_.load(std::memory_order_relaxed) || schedule_.earliest() <= receive_ns_;
  if (for_program && packets > 0 && packets <= kFewPackets && !streams_ && !others_wait) {
    // The program goes first: what it does now, and its next poll, do the rest.
    release();
    expect(receive_ns_ + kForgottenNs);
    put_off_look(receive_ns_);
    return true;
  }
  // Somebody who polls in vain comes again at once; a clock read each time would be a good part of it.
  if (for_program && packets == 0 && !owed && ++vain_polls_ % kPollsAClock != 0) return false;
  const int64_t now = base::now_ns();
  if (for_program) put_off_look(now);
  if (room_.choose(now)) response_window_->resize(room_.for_responses());
  if (packets > 0 && streams_ && owed_bytes_ < receive_share() / kAnswersAWindow)
    owed_since_ns_ = now;
  else if (packets > 0)
    answer(now, !for_program || packets > kFewPackets);
  else if (gathers && now - owed_since_ns_ >= kGatherNs)
    answer(now, true);
  release();
  if (now >= schedule_.earliest()) run_timers(now);
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

void Port::finish_poll() {
  const std::unique_lock lock(receive_mutex_, std::try_to_lock);
  if (lock.owns_lock() && !touched_.empty()) answer(base::now_ns(), true);
}

void Port::program_sleeps() {
  slept_after_.store(polls_.load(std::memory_order_relaxed) + 1);
  if (watches_.load()) kick();
}

void Port::expect(int64_t deadline) {
  if (!schedule_.expect(deadline)) return;
  if (deadline <= base::now_ns() + kSoonNs) return kick();
  // Of two threads that are here at once the one with the earlier time may come first.
  for (int64_t at = deadline;;) {
    waits_->watchdog.set(at);
    const int64_t earliest = schedule_.earliest();
    if (earliest >= at) return;
    at = earliest;
  }
}

void Port::run_timers(int64_t now) {
  schedule_.forget();
  // Before the channels that wait for room.
  int64_t earliest = backlog_.retry(now);
  banks_.each([&](Bank& bank) {
    const uint32_t groups = (bank.high_water.load() + kGroup - 1) / kGroup;
    for (uint32_t group = 0; group < groups; ++group) {
      const int64_t first = bank.timers[group].at();
      earliest = std::min(earliest, first > now ? first : run_group(bank, group, now));
    }
  });
  if (std::exchange(wants_refusals_, false)) take_refusals();
  if (!held_up_.empty()) {
    earliest = std::min(earliest, now + next_try_ns_);
    next_try_ns_ = std::min(2 * next_try_ns_, kLongestTryNs);
  }
  // Also to the port's thread: it may have fallen asleep while nothing was expected.
  expect(earliest);
}

int64_t Port::run_group(Bank& bank, uint32_t group, int64_t now) {
  bank.timers[group].forget();
  int64_t earliest = INT64_MAX;
  for (uint32_t i = group * kGroup; i < (group + 1) * kGroup; ++i) {
    Channel* channel = bank.channels[i].load(std::memory_order_acquire);
    if (channel == nullptr) continue;
    if (channel->deadline() <= now) {
      if (!hold(channel)) {
        earliest = std::min(earliest, now + next_try_ns_);
        continue;
      }
      channel->on_timer(now);
      channel->transmit(now, *burst_, true);
      burst_->flush();
      release();
    }
    earliest = std::min(earliest, channel->deadline());
  }
  bank.timers[group].expect(earliest);
  return earliest;
}

bool Port::is_due() const { return base::now_ns() >= schedule_.earliest(); }

std::unique_lock<std::mutex> Port::claim_receiving() {
  wanted_.fetch_add(1);
  std::unique_lock lock(receive_mutex_);
  wanted_.fetch_sub(1);
  return lock;
}

}  // namespace nupa::roce
