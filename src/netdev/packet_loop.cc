// SPDX-License-Identifier: Apache-2.0
#include "netdev/packet_loop.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/gid.h"
#include "base/system_error.h"
#include "progress/waiter.h"

namespace nupa::netdev {
namespace {

/// Frames that are moved in one direction before the other direction gets its turn.
constexpr int kBatch = 32;
/// Bytes that are read from one peer before the next one gets its turn.
constexpr size_t kShareBytes = 256 * 1024;
/// Bytes that are sent together on channels where each message has a cost.
constexpr uint64_t kTogetherBytes = 32 * 1024;
/// Packets that are queued for a peer without room before reading pauses.
constexpr size_t kFewAside = 8;
/// After this time, a peer that does not read no longer holds up the others. Packets for it are queued, up to this
/// size.
constexpr int64_t kHoldUpNs = 2'000'000;
constexpr size_t kMaxAsideBytes = 8u << 20;
/// The same for the only peer. Meanwhile the kernel's queue fills, and a process on the peer's host gets time to run.
constexpr int64_t kStuckNs = 100'000'000;
/// Limit of ICMP messages per second (RFC 1812, 4.3.2.8; RFC 4443, 2.4).
constexpr uint32_t kAnswersPerSecond = 100;
/// Bytes of the virtio header and the longest packet header (IpPacket::parse).
constexpr size_t kParsedBytes = sizeof(VirtioHeader) + 60;
constexpr int kCompletions = 64;

}  // namespace

/// A copy of a frame's beginning, which no peer can change, and its parsed header.
struct PacketLoop::ParsedFrame {
  explicit ParsedFrame(std::span<const std::byte> frame) : kept(std::min(frame.size(), kParsedBytes)) {
    std::copy_n(frame.data(), kept, bytes.data());
    if (kept <= sizeof header) return;
    std::memcpy(&header, bytes.data(), sizeof header);
    packet = IpPacket::parse({bytes.data() + sizeof header, kept - sizeof header}, frame.size() - sizeof header);
  }

  size_t kept;
  std::array<std::byte, kParsedBytes> bytes;
  VirtioHeader header;
  std::optional<IpPacket> packet;  ///< nothing if it is no valid packet
};

size_t PacketLoop::Hash::operator()(const Gid& gid) const {
  uint64_t halves[2];
  std::memcpy(halves, gid.raw.data(), sizeof halves);
  return (halves[0] * 0x9e3779b97f4a7c15 + halves[1]) * 0x9e3779b97f4a7c15 >> 7;
}

PacketLoop::PacketLoop(Device& device, int queue, const LocalAddresses& own, PacketLoopEvents events,
                       std::unique_ptr<progress::Loop> loop)
    : device_(device),
      queue_(queue),
      own_(own),
      events_(std::move(events)),
      loop_(std::move(loop)),
      go_on_(*loop_, [this](int64_t) { work(); }) {}

Result<std::unique_ptr<PacketLoop>> PacketLoop::start(Device& device, int queue, const LocalAddresses& own,
                                                      PacketLoopEvents events) {
  auto loop = progress::Loop::open();
  if (!loop) return tl::unexpected(loop.error());
  std::unique_ptr<PacketLoop> packet_loop(new PacketLoop(device, queue, own, std::move(events), std::move(*loop)));
  if (auto opened = packet_loop->open(); !opened) return tl::unexpected(opened.error());
  packet_loop->go_on_.run_soon();
  if (auto started = packet_loop->loop_->start("nupa-net"); !started) return tl::unexpected(started.error());
  return packet_loop;
}

Result<void> PacketLoop::open() {
  auto channel = device_.create_channel();
  if (!channel) return tl::unexpected(channel.error());
  channel_ = std::move(*channel);
  if (fcntl(channel_->fd(), F_SETFL, O_NONBLOCK) != 0)
    return base::fail_call(errno, "cannot make a completion channel non-blocking");
  auto cq = device_.create_cq({.entries = PeerChannel::kMaxCompletions, .channel = channel_.get()});
  if (!cq) return tl::unexpected(cq.error());
  cq_ = std::move(*cq);
  scratch_.resize(kMaxFrameBytes);
  auto queue_ready = loop_->watch(queue_, [this](uint32_t events) { on_queue(events); });
  if (!queue_ready) return tl::unexpected(queue_ready.error());
  queue_ready_ = std::move(*queue_ready);
  auto channel_ready = loop_->watch(channel_->signal_fd(), [this](uint32_t) {
    [[maybe_unused]] auto taken = channel_->wait();
    go_on_.run_soon();
  });
  if (!channel_ready) return tl::unexpected(channel_ready.error());
  channel_ready_ = std::move(*channel_ready);
  return {};
}

PacketLoop::~PacketLoop() { stop(); }

void PacketLoop::stop() {
  has_stopped_ = true;
  called_.fetch_add(1, std::memory_order_relaxed);  // never lowered again, so the thread stops moving packets
  loop_->stop();
  loop_->join();
}

void PacketLoop::run_task(const std::function<void()>& what) {
  called_.fetch_sub(1, std::memory_order_relaxed);
  wake();
  what();
  policy_.worked();
  go_on_.run_soon();
}

bool PacketLoop::call(const std::function<void()>& what) {
  called_.fetch_add(1, std::memory_order_relaxed);
  const bool done = loop_->call([this, &what] { run_task(what); }, progress::Deadline::never());
  if (!done) called_.fetch_sub(1, std::memory_order_relaxed);
  return done;
}

void PacketLoop::insist(const std::function<void()>& what) {
  if (call(what)) return;
  const bool has_run = !has_stopped_;
  stop();
  what();
  if (has_run && events_.on_lost) events_.on_lost(ENOMEM);
}

bool PacketLoop::post(std::function<void()> what) {
  called_.fetch_add(1, std::memory_order_relaxed);
  bool posted = false;
  try {
    posted = loop_->post([this, what = std::move(what)] { run_task(what); }).has_value();
  } catch (const std::bad_alloc&) {
  }
  if (!posted) called_.fetch_sub(1, std::memory_order_relaxed);
  return posted;
}

int PacketLoop::watch(PeerChannel& channel) {
  uint32_t wanted = 0;
  if (!call([&] { wanted = static_cast<uint32_t>(channels_.size() + 1) * PeerChannel::kMaxCompletions; }))
    return ECANCELED;
  // Not on the packet loop's thread, because it may wait for processes that are stopped.
  if (wanted > cq_->entries())
    if (const int error = cq_->resize(wanted); error != 0) return error;
  return call([&] { channels_[channel.number()] = &channel; }) ? 0 : ECANCELED;
}

void PacketLoop::route_to(Link& link) {
  link.carries = true;
  for (const Gid& address : link.addresses) routes_[address] = &link;
}

void PacketLoop::detach(Link& link) {
  std::erase(links_, &link);
  std::erase_if(routes_, [&](const auto& route) { return route.second == &link; });
  if (last_ == &link) last_ = nullptr;
  if (blocked_ == &link) blocked_ = nullptr;
}

void PacketLoop::on_queue(uint32_t events) {
  queue_pauses_until_ = 0;
  go_on_.run_soon();
  // From its removal on, the TUN interface reports errors and no data.
  if ((events & (EPOLLERR | EPOLLHUP)) == 0 || (events & EPOLLIN) != 0) return;
  queue_ready_ = nullptr;
  if (events_.on_lost) events_.on_lost(ENODEV);
}

void PacketLoop::work() {
  wake();
  for (;;) {
    bool moved = take_completions();
    moved |= receive();
    moved |= send();
    if (called_.load(std::memory_order_relaxed) != 0) return go_on_.run_soon();
    if (moved) {
      policy_.worked();
      continue;
    }
    const int64_t now = base::now_ns();
    switch (policy_.found_nothing(now)) {
      case progress::PacketLoopPolicy::Step::kSleep:
        is_asleep_ = true;
        if (may_sleep()) return set_sleep(now);
        wake();
        break;
      case progress::PacketLoopPolicy::Step::kYield:
        progress::yield();
        break;
      case progress::PacketLoopPolicy::Step::kYieldTimed:
        progress::yield();
        policy_.yielded(now, base::now_ns());
        break;
    }
  }
}

void PacketLoop::set_sleep(int64_t now) {
  const bool is_held_up = blocked_ != nullptr;
  if (is_held_up) go_on_.set_at_latest(now + kHoldUpNs);
  const bool pauses = queue_pauses_until_ > now;
  if (queue_ready_ == nullptr || pauses == is_held_up) return;
  queue_pauses_until_ = is_held_up ? now + kHoldUpNs : 0;
  queue_ready_->pause_until(queue_pauses_until_);
}

void PacketLoop::wake() {
  if (!is_asleep_) return;
  is_asleep_ = false;
  for (Link* link : links_)
    for (PeerChannel* channel : link->channels) channel->awake();
}

bool PacketLoop::take_completions() {
  WorkCompletion completions[kCompletions];
  const int count = cq_->poll(completions, kCompletions);
  for (int i = 0; i < count; ++i) {
    const auto channel = channels_.find(completions[i].wr_id / PeerChannel::kKinds);
    if (channel != channels_.end()) channel->second->on_completion(completions[i]);
  }
  return count > 0;
}

// From peers to the kernel.

bool PacketLoop::receive() {
  bool moved = false, failed = false;
  first_ = links_.empty() ? 0 : (first_ + 1) % links_.size();
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = *links_[(first_ + i) % links_.size()];
    for (PeerChannel* channel : link.channels) {
      size_t bytes = 0;
      for (int frames = 0; frames < kBatch && bytes < kShareBytes; ++frames) {
        const auto frame = channel->next();
        if (!frame) break;
        deliver(link, *frame);
        bytes += frame->size();
        count_moved(*channel, frame->size());
        channel->done();
        moved = true;
      }
      channel->give_back();
      const bool is_new = channel->error() != 0 && !link.failed;
      link.failed |= is_new;
      failed |= is_new;
    }
  }
  if (failed && events_.on_failure) events_.on_failure();
  return moved;
}

bool PacketLoop::is_for_all(const Gid& destination) const {
  if (is_multicast(destination)) return true;
  if (is_limited_broadcast(destination)) return true;
  return std::any_of(own_.addresses.begin(), own_.addresses.end(), [&](const Prefix& own) {
    return own.is_ipv4() && own.length < 31 && own.contains(destination) && own.broadcast() == destination;
  });
}

void PacketLoop::deliver(Link& link, std::span<const std::byte> frame) {
  ParsedFrame parsed(frame);
  const VirtioHeader& header = parsed.header;
  const std::optional<IpPacket>& packet = parsed.packet;
  if (!packet || !is_consistent(header, *packet)) return link.traffic->malformed.add(1);
  if (std::find(link.addresses.begin(), link.addresses.end(), packet->source) == link.addresses.end()) {
    // The peer's kernel may look for neighbours from a link-local or unspecified address. Nobody answers that.
    const bool looks =
        is_multicast(packet->destination) && (base::is_link_local(packet->source) || packet->source == Gid{});
    if (!looks) link.traffic->wrong_source.add(1);
    return;
  }
  const bool is_mine = std::any_of(own_.addresses.begin(), own_.addresses.end(),
                                   [&](const Prefix& own) { return own.address == packet->destination; });
  if (!is_mine && !is_for_all(packet->destination)) return link.traffic->malformed.add(1);
  const size_t kept = parsed.kept;
  const iovec parts[2] = {{parsed.bytes.data(), kept},
                          {const_cast<std::byte*>(frame.data()) + kept, frame.size() - kept}};
  if (::writev(queue_, parts, 2) < 0) return link.traffic->refused.add(1);
  link.traffic->received.add(1);
  link.traffic->received_bytes.add(packet->bytes);
}

// From the kernel to peers.

bool PacketLoop::may_read() {
  blocked_ = nullptr;
  for (Link* link : links_) {
    if (link->aside.size() < kFewAside) continue;
    if (base::now_ns() - link->stuck_since_ns > (links_.size() == 1 ? kStuckNs : kHoldUpNs)) continue;
    blocked_ = link;
    return false;
  }
  return true;
}

bool PacketLoop::send() {
  bool moved = drain_asides();
  for (int i = 0; i < kBatch && may_read(); ++i) {
    PeerChannel* guess = last_ != nullptr && last_->aside.empty() ? last_->channels.front() : nullptr;
    std::byte* place = guess != nullptr ? guess->reserve() : nullptr;
    if (guess != nullptr && place == nullptr && links_.size() == 1) {
      blocked_ = last_;
      break;
    }
    if (place == nullptr) {
      guess = nullptr;
      place = scratch_.data();
    }
    const ssize_t bytes = ::read(queue_, place, kMaxFrameBytes);
    if (bytes <= 0) break;
    moved = true;
    send_frame(place, static_cast<size_t>(bytes), guess);
  }
  for (Link* link : links_) link->channels.front()->flush();
  return moved;
}

void PacketLoop::send_frame(std::byte* frame, size_t bytes, PeerChannel* room_of) {
  const ParsedFrame parsed({frame, bytes});
  const std::optional<IpPacket>& ip = parsed.packet;
  if (!ip) return;
  const auto route = routes_.find(ip->destination);
  if (route != routes_.end()) return send_to(*route->second, parsed, frame, bytes, room_of);
  const std::span<const std::byte> own = own_copy(parsed, frame, bytes);
  if (is_for_all(ip->destination)) return send_to_all(parsed, own);
  unroutable_.add(1);
  answer(Refusal::kHostUnreachable, own.subspan(sizeof(VirtioHeader)), 0);
}

std::span<std::byte> PacketLoop::own_copy(const ParsedFrame& parsed, std::byte* frame, size_t bytes) {
  if (frame == scratch_.data()) return {frame, bytes};
  std::copy_n(parsed.bytes.data(), parsed.kept, scratch_.data());
  std::copy_n(frame + parsed.kept, bytes - parsed.kept, scratch_.data() + parsed.kept);
  return {scratch_.data(), bytes};
}

void PacketLoop::send_to(Link& link, const ParsedFrame& parsed, std::byte* frame, size_t bytes, PeerChannel* room_of) {
  const VirtioHeader& header = parsed.header;
  last_ = &link;
  const bool apart = header.is_datagrams() && !link.takes_datagrams;
  if (apart || bytes - sizeof header > link.mtu) {
    // A program can write anything to the interface.
    if (!is_consistent(header, *parsed.packet)) return link.traffic->too_long.add(1);
    // Reads only one byte of the frame in place, since most segments are large and are not copied for this.
    const bool too_long = largest_part(header, {frame + sizeof header, bytes - sizeof header}) > link.mtu;
    if (too_long || apart) {
      const auto packet = own_copy(parsed, frame, bytes).subspan(sizeof header);
      return too_long ? send_too_long(link, parsed, packet) : send_apart(link, header, packet);
    }
  }
  put(link, frame, bytes, room_of);
}

void PacketLoop::put(Link& link, const std::byte* frame, size_t bytes, PeerChannel* room_of) {
  PeerChannel& channel = *link.channels.front();
  if (room_of != &channel) {
    std::byte* const room = link.aside.empty() ? channel.reserve() : nullptr;
    if (room == nullptr) return put_aside(link, frame, bytes);
    std::memcpy(room, frame, bytes);
  }
  channel.commit(static_cast<uint32_t>(bytes));
  count_moved(channel, bytes);
  if (channel.is_mapped() || channel.unflushed() >= kTogetherBytes) channel.flush();
  link.traffic->sent.add(1);
  link.traffic->sent_bytes.add(bytes - sizeof(VirtioHeader));
}

void PacketLoop::put_aside(Link& link, const std::byte* frame, size_t bytes) {
  if (link.aside.empty()) link.stuck_since_ns = base::now_ns();
  if (link.aside_bytes + bytes > kMaxAsideBytes) return link.traffic->no_room.add(1);
  link.aside.emplace_back(frame, frame + bytes);
  link.aside_bytes += bytes;
}

bool PacketLoop::drain_asides() {
  bool moved = false;
  for (Link* link : links_) {
    PeerChannel& channel = *link->channels.front();
    for (std::byte* room; !link->aside.empty() && (room = channel.reserve()) != nullptr; link->aside.pop_front()) {
      const std::vector<std::byte>& frame = link->aside.front();
      std::memcpy(room, frame.data(), frame.size());
      channel.commit(static_cast<uint32_t>(frame.size()));
      link->aside_bytes -= frame.size();
      link->traffic->sent.add(1);
      link->traffic->sent_bytes.add(frame.size() - sizeof(VirtioHeader));
      link->stuck_since_ns = base::now_ns();
      moved = true;
    }
  }
  return moved;
}

void PacketLoop::send_to_all(const ParsedFrame& parsed, std::span<const std::byte> frame) {
  const VirtioHeader& header = parsed.header;
  const Bytes packet = frame.subspan(sizeof header);
  if (header.is_large() && !is_consistent(header, *parsed.packet)) return unroutable_.add(1);
  const uint32_t largest = largest_part(header, packet);
  // A peer without room at this moment misses the packet, as in any network.
  for (Link* link : links_) {
    if (!link->carries) continue;
    std::byte* const room = link->aside.empty() ? link->channels.front()->reserve() : nullptr;
    if (room == nullptr || largest > link->mtu) {
      link->traffic->no_room.add(1);
      continue;
    }
    if (header.is_datagrams() && !link->takes_datagrams) {
      send_apart(*link, header, packet);
      continue;
    }
    std::memcpy(room, frame.data(), frame.size());
    put(*link, room, frame.size(), link->channels.front());
  }
}

void PacketLoop::send_apart(Link& link, VirtioHeader header, Bytes packet) {
  const auto parts = datagrams_of(header, packet);
  header.gso_type = VirtioHeader::kGsoNone;
  header.gso_size = header.hdr_len = 0;
  put_parts(link, header, parts);
}

void PacketLoop::put_parts(Link& link, const VirtioHeader& header, const std::vector<std::vector<std::byte>>& parts) {
  std::vector<std::byte> single;
  for (const std::vector<std::byte>& part : parts) {
    single.resize(sizeof header + part.size());
    std::memcpy(single.data(), &header, sizeof header);
    std::memcpy(single.data() + sizeof header, part.data(), part.size());
    put(link, single.data(), single.size(), nullptr);
  }
}

void PacketLoop::send_too_long(Link& link, const ParsedFrame& parsed, std::span<std::byte> packet) {
  const VirtioHeader& header = parsed.header;
  const std::optional<IpPacket>& ip = parsed.packet;
  if (!ip->may_be_cut || header.is_large()) {
    link.traffic->too_long.add(1);
    return answer(Refusal::kTooBig, packet, link.mtu);
  }
  complete_checksum(header, packet);
  put_parts(link, {}, fragments_of(packet, link.mtu));
}

void PacketLoop::answer(Refusal refusal, std::span<const std::byte> packet, uint32_t mtu) {
  const int64_t now = base::now_ns();
  if (now - answers_from_ns_ >= progress::kNsPerSecond) {
    answers_from_ns_ = now;
    answers_ = 0;
  }
  if (answers_ >= kAnswersPerSecond) return;
  const auto message = icmp_about(refusal, packet, mtu);
  if (!message) return;
  ++answers_;
  VirtioHeader none;
  const iovec parts[2] = {{&none, sizeof none}, {const_cast<std::byte*>(message->data()), message->size()}};
  // The kernel may have no memory for it. An error message may be lost like any packet.
  [[maybe_unused]] const ssize_t written = ::writev(queue_, parts, 2);
}

bool PacketLoop::may_sleep() {
  for (Link* link : links_)
    for (PeerChannel* channel : link->channels)
      if (!channel->wait_for_frames()) return false;
  for (Link* link : links_) {
    if (link != blocked_ && link->aside.empty()) continue;
    if (!link->channels.front()->wait_for_room()) return false;
  }
  return cq_->arm(true) == 0 && !take_completions();
}

}  // namespace nupa::netdev
