#include "api/netdev/pump.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/gid.h"

namespace nupa::netdev {
namespace {

/// Frames that are moved in one direction before the other one has its turn.
constexpr int kBatch = 32;
/// What one peer may bring before the next one has its turn.
constexpr size_t kShareBytes = 256 * 1024;
/// Frames that are sent together where each message has its price.
constexpr uint64_t kTogetherBytes = 32 * 1024;
/// Packets that are put aside for a peer without room, before nothing more is read for a while.
constexpr size_t kFewAside = 8;
/// A peer that has not read for so long no longer holds up the others: what comes for it is put aside, so much of it.
constexpr int64_t kHoldUpNs = 2'000'000;
constexpr size_t kMaxAsideBytes = 8u << 20;
/// Where it is the only one, the kernel's queue fills for so long, in which a process of its host gets its turn.
constexpr int64_t kStuckNs = 100'000'000;
/// How long a pump looks for more before it sleeps; meanwhile whoever wants its core has it.
constexpr int64_t kPatienceNs = 50'000;
/// Where a program that never sleeps has the core, who makes way gets it back after milliseconds, who is woken at once:
/// away for so long, a pump sleeps instead, for ever longer times.
constexpr int64_t kAwayNs = 2'000'000;
constexpr int64_t kCrowdedNs = 10'000'000;
constexpr int64_t kLongestCrowdedNs = 160'000'000;
/// Who has moved so much at a time has a stream. By memory it does not look for more, for so long: what comes while it
/// is being woken is moved together, and the programs at both ends have its core meanwhile. By packets it looks on for
/// longer: while it sleeps another thread has to take them from the socket, which costs more.
constexpr uint64_t kStreamBytes = 16 * 1024;
constexpr int64_t kMemoryStreamNs = 1'000'000;
constexpr int64_t kPacketStreamNs = 2'000'000;
/// ICMP messages a second (RFC 1812, 4.3.2.8; RFC 4443, 2.4).
constexpr uint32_t kAnswersPerSecond = 100;
constexpr int64_t kSecondNs = 1'000'000'000;
/// The virtio header and the longest header of a packet (IpPacket::parse).
constexpr size_t kLookedAt = sizeof(VirtioHeader) + 60;
constexpr int kCompletions = 64;

}  // namespace

/// The beginning of a frame, copied to where no peer can change it, and what it says.
struct Pump::LookedAt {
  explicit LookedAt(std::span<const std::byte> frame) : kept(std::min(frame.size(), kLookedAt)) {
    std::copy_n(frame.data(), kept, bytes.data());
    if (kept <= sizeof header) return;
    std::memcpy(&header, bytes.data(), sizeof header);
    packet = IpPacket::parse({bytes.data() + sizeof header, kept - sizeof header}, frame.size() - sizeof header);
  }

  size_t kept;
  std::array<std::byte, kLookedAt> bytes;
  VirtioHeader header;
  std::optional<IpPacket> packet;  ///< nothing: it is none
};

size_t Pump::Hash::operator()(const Gid& gid) const {
  uint64_t halves[2];
  std::memcpy(halves, gid.raw.data(), sizeof halves);
  return (halves[0] * 0x9e3779b97f4a7c15 + halves[1]) * 0x9e3779b97f4a7c15 >> 7;
}

Result<std::unique_ptr<Pump>> Pump::start(Device& device, int queue, const Own& own) {
  std::unique_ptr<Pump> pump(new Pump(device, queue, own));
  if (auto opened = pump->open(); !opened) return tl::unexpected(opened.error());
  if (auto started = pump->thread_.start("nupa-net", [raw = pump.get()] { raw->run(); }); !started)
    return tl::unexpected(started.error());
  return pump;
}

Result<void> Pump::open() {
  auto channel = device_.create_channel();
  if (!channel) return tl::unexpected(channel.error());
  channel_ = std::move(*channel);
  if (fcntl(channel_->fd(), F_SETFL, O_NONBLOCK) != 0) return fail(errno, "a channel cannot be made non-blocking");
  auto cq = device_.create_cq({.entries = Lane::kMaxCompletions, .channel = channel_.get()});
  if (!cq) return tl::unexpected(cq.error());
  cq_ = std::move(*cq);
  bell_.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!bell_) return fail(errno, "no descriptor for an event");
  scratch_.resize(kMaxFrameBytes);
  return {};
}

Pump::~Pump() {
  if (!thread_.has_started()) return;
  call([this] { stop_ = true; });
  thread_.join();
}

void Pump::call(const std::function<void()>& what) {
  bool done = false;
  std::unique_lock lock(mutex_);
  calls_.emplace_back(&what, &done);
  has_calls_.store(true);
  // A write that fails changes nothing: the bell rings already. The pump's thread has pointers to `what` and `done`
  // until it has done it, so this call must not return before.
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(bell_.get(), &one, sizeof one);
  called_.wait(lock, [&] { return done; });
}

bool Pump::take_calls() {
  if (!has_calls_.load(std::memory_order_relaxed)) return false;
  uint64_t rings;
  [[maybe_unused]] const ssize_t taken = ::read(bell_.get(), &rings, sizeof rings);
  std::lock_guard lock(mutex_);
  for (; !calls_.empty(); calls_.pop_front()) {
    (*calls_.front().first)();
    *calls_.front().second = true;
  }
  has_calls_.store(false);
  called_.notify_all();
  return true;
}

int Pump::watch(Lane& lane) {
  uint32_t wanted = 0;
  call([&] { wanted = static_cast<uint32_t>(lanes_.size() + 1) * Lane::kMaxCompletions; });
  // Not on the pump's thread: it may wait for processes that are stopped.
  if (wanted > cq_->entries())
    if (const int error = cq_->resize(wanted); error != 0) return error;
  call([&] { lanes_[lane.number()] = &lane; });
  return 0;
}

void Pump::route_to(Link& link) {
  link.carries = true;
  for (const Gid& address : link.addresses) routes_[address] = &link;
}

void Pump::detach(Link& link) {
  std::erase(links_, &link);
  std::erase_if(routes_, [&](const auto& route) { return route.second == &link; });
  if (last_ == &link) last_ = nullptr;
  if (blocked_ == &link) blocked_ = nullptr;
}

void Pump::run() {
  bool idle = false;
  int64_t looks_until = 0, sleeps_until = 0, streams_until = 0;
  while (!stop_) {
    bool moved = take_calls();
    moved |= take_completions();
    moved |= receive();
    moved |= send();
    if (moved) {
      idle = false;
      continue;
    }
    const int64_t now = base::now_ns();
    if (!idle) {
      idle = true;
      looks_until = now + kPatienceNs;
      if (mapped_bytes_ >= kStreamBytes) sleeps_until = now + kMemoryStreamNs;
      if (posted_bytes_ >= kStreamBytes) streams_until = now + kPacketStreamNs;
      mapped_bytes_ = posted_bytes_ = 0;
    }
    const bool streams = now < streams_until;
    const bool looks = streams || (now < looks_until && now >= crowded_until_);
    if (now < sleeps_until || !looks) {
      sleep();
      idle = false;
    } else if (streams) {
      sched_yield();  // to whom it is a stream, too, and for as long as they want
    } else {
      make_way(now);
    }
  }
}

void Pump::make_way(int64_t now) {
  sched_yield();
  const int64_t back = base::now_ns();
  if (back - now < kAwayNs) return;
  // Once it was left alone for as long as it has slept, this is the first time.
  crowded_ns_ = now - crowded_until_ < crowded_ns_ ? std::min(2 * crowded_ns_, kLongestCrowdedNs) : kCrowdedNs;
  crowded_until_ = back + crowded_ns_;
}

bool Pump::take_completions() {
  WorkCompletion completions[kCompletions];
  const int count = cq_->poll(completions, kCompletions);
  for (int i = 0; i < count; ++i) {
    const auto lane = lanes_.find(completions[i].wr_id / Lane::kKinds);
    if (lane != lanes_.end()) lane->second->on_completion(completions[i]);
  }
  return count > 0;
}

// From peers to the kernel.

bool Pump::receive() {
  bool moved = false, failed = false;
  first_ = links_.empty() ? 0 : (first_ + 1) % links_.size();
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = *links_[(first_ + i) % links_.size()];
    for (Lane* lane : link.lanes) {
      size_t bytes = 0;
      for (int frames = 0; frames < kBatch && bytes < kShareBytes; ++frames) {
        const auto frame = lane->next();
        if (!frame) break;
        deliver(link, *frame);
        bytes += frame->size();
        count_moved(*lane, frame->size());
        lane->done();
        moved = true;
      }
      lane->give_back();
      const bool is_new = lane->error() != 0 && !link.failed;
      link.failed |= is_new;
      failed |= is_new;
    }
  }
  if (failed && on_failure) on_failure();
  return moved;
}

bool Pump::is_for_all(const Gid& destination) const {
  if (is_multicast(destination)) return true;
  if (is_limited_broadcast(destination)) return true;
  return std::any_of(own_.addresses.begin(), own_.addresses.end(), [&](const Prefix& own) {
    return own.is_ipv4() && own.length < 31 && own.contains(destination) && own.broadcast() == destination;
  });
}

void Pump::deliver(Link& link, std::span<const std::byte> frame) {
  LookedAt looked_at(frame);
  const VirtioHeader& header = looked_at.header;
  const std::optional<IpPacket>& packet = looked_at.packet;
  if (!packet || !is_consistent(header, *packet)) return link.traffic->malformed.add(1);
  if (std::find(link.addresses.begin(), link.addresses.end(), packet->source) == link.addresses.end()) {
    // Its kernel may look for others of its link by an address that it has made itself, or none: nobody answers.
    const bool looks =
        is_multicast(packet->destination) && (base::is_link_local(packet->source) || packet->source == Gid{});
    if (!looks) link.traffic->wrong_source.add(1);
    return;
  }
  const bool is_mine = std::any_of(own_.addresses.begin(), own_.addresses.end(),
                                   [&](const Prefix& own) { return own.address == packet->destination; });
  if (!is_mine && !is_for_all(packet->destination)) return link.traffic->malformed.add(1);
  const size_t kept = looked_at.kept;
  const iovec parts[2] = {{looked_at.bytes.data(), kept},
                          {const_cast<std::byte*>(frame.data()) + kept, frame.size() - kept}};
  if (::writev(queue_, parts, 2) < 0) return link.traffic->refused.add(1);
  link.traffic->received.add(1);
  link.traffic->received_bytes.add(packet->bytes);
}

// From the kernel to peers.

bool Pump::may_read() {
  blocked_ = nullptr;
  for (Link* link : links_) {
    if (link->aside.size() < kFewAside) continue;
    if (base::now_ns() - link->stuck_since_ns > (links_.size() == 1 ? kStuckNs : kHoldUpNs)) continue;
    blocked_ = link;
    return false;
  }
  return true;
}

bool Pump::send() {
  bool moved = drain_asides();
  for (int i = 0; i < kBatch && may_read(); ++i) {
    Lane* guess = last_ != nullptr && last_->aside.empty() ? last_->lanes.front() : nullptr;
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
  for (Link* link : links_) link->lanes.front()->flush();
  return moved;
}

void Pump::send_frame(std::byte* frame, size_t bytes, Lane* room_of) {
  const LookedAt looked_at({frame, bytes});
  const std::optional<IpPacket>& ip = looked_at.packet;
  if (!ip) return;
  const auto route = routes_.find(ip->destination);
  if (route != routes_.end()) return send_to(*route->second, looked_at, frame, bytes, room_of);
  const std::span<const std::byte> own = own_copy(looked_at, frame, bytes);
  if (is_for_all(ip->destination)) return send_to_all(looked_at, own);
  unroutable_.add(1);
  answer(Refusal::kHostUnreachable, own.subspan(sizeof(VirtioHeader)), 0);
}

std::span<std::byte> Pump::own_copy(const LookedAt& looked_at, std::byte* frame, size_t bytes) {
  if (frame == scratch_.data()) return {frame, bytes};
  std::copy_n(looked_at.bytes.data(), looked_at.kept, scratch_.data());
  std::copy_n(frame + looked_at.kept, bytes - looked_at.kept, scratch_.data() + looked_at.kept);
  return {scratch_.data(), bytes};
}

void Pump::send_to(Link& link, const LookedAt& looked_at, std::byte* frame, size_t bytes, Lane* room_of) {
  const VirtioHeader& header = looked_at.header;
  last_ = &link;
  const bool apart = header.is_datagrams() && !link.takes_datagrams;
  if (apart || bytes - sizeof header > link.mtu) {
    // A program may have put anything on the interface.
    if (!is_consistent(header, *looked_at.packet)) return link.traffic->too_long.add(1);
    // One byte of the frame, wherever that lies: most segments are large, and are not copied for it.
    const bool too_long = largest_part(header, {frame + sizeof header, bytes - sizeof header}) > link.mtu;
    if (too_long || apart) {
      const auto packet = own_copy(looked_at, frame, bytes).subspan(sizeof header);
      return too_long ? send_too_long(link, looked_at, packet) : send_apart(link, header, packet);
    }
  }
  put(link, frame, bytes, room_of);
}

void Pump::put(Link& link, const std::byte* frame, size_t bytes, Lane* room_of) {
  Lane& lane = *link.lanes.front();
  if (room_of != &lane) {
    std::byte* const room = link.aside.empty() ? lane.reserve() : nullptr;
    if (room == nullptr) return put_aside(link, frame, bytes);
    std::memcpy(room, frame, bytes);
  }
  lane.commit(static_cast<uint32_t>(bytes));
  count_moved(lane, bytes);
  if (lane.is_mapped() || lane.unflushed() >= kTogetherBytes) lane.flush();
  link.traffic->sent.add(1);
  link.traffic->sent_bytes.add(bytes - sizeof(VirtioHeader));
}

void Pump::put_aside(Link& link, const std::byte* frame, size_t bytes) {
  if (link.aside.empty()) link.stuck_since_ns = base::now_ns();
  if (link.aside_bytes + bytes > kMaxAsideBytes) return link.traffic->no_room.add(1);
  link.aside.emplace_back(frame, frame + bytes);
  link.aside_bytes += bytes;
}

bool Pump::drain_asides() {
  bool moved = false;
  for (Link* link : links_) {
    Lane& lane = *link->lanes.front();
    for (std::byte* room; !link->aside.empty() && (room = lane.reserve()) != nullptr; link->aside.pop_front()) {
      const std::vector<std::byte>& frame = link->aside.front();
      std::memcpy(room, frame.data(), frame.size());
      lane.commit(static_cast<uint32_t>(frame.size()));
      link->aside_bytes -= frame.size();
      link->traffic->sent.add(1);
      link->traffic->sent_bytes.add(frame.size() - sizeof(VirtioHeader));
      link->stuck_since_ns = base::now_ns();
      moved = true;
    }
  }
  return moved;
}

void Pump::send_to_all(const LookedAt& looked_at, std::span<const std::byte> frame) {
  const VirtioHeader& header = looked_at.header;
  const Bytes packet = frame.subspan(sizeof header);
  if (header.is_large() && !is_consistent(header, *looked_at.packet)) return unroutable_.add(1);
  const uint32_t largest = largest_part(header, packet);
  // Whoever has no room at this moment goes without, as in any network.
  for (Link* link : links_) {
    if (!link->carries) continue;
    std::byte* const room = link->aside.empty() ? link->lanes.front()->reserve() : nullptr;
    if (room == nullptr || largest > link->mtu) {
      link->traffic->no_room.add(1);
      continue;
    }
    if (header.is_datagrams() && !link->takes_datagrams) {
      send_apart(*link, header, packet);
      continue;
    }
    std::memcpy(room, frame.data(), frame.size());
    put(*link, room, frame.size(), link->lanes.front());
  }
}

void Pump::send_apart(Link& link, VirtioHeader header, Bytes packet) {
  const auto parts = datagrams_of(header, packet);
  header.gso_type = VirtioHeader::kGsoNone;
  header.gso_size = header.hdr_len = 0;
  put_parts(link, header, parts);
}

void Pump::put_parts(Link& link, const VirtioHeader& header, const std::vector<std::vector<std::byte>>& parts) {
  std::vector<std::byte> single;
  for (const std::vector<std::byte>& part : parts) {
    single.resize(sizeof header + part.size());
    std::memcpy(single.data(), &header, sizeof header);
    std::memcpy(single.data() + sizeof header, part.data(), part.size());
    put(link, single.data(), single.size(), nullptr);
  }
}

void Pump::send_too_long(Link& link, const LookedAt& looked_at, std::span<std::byte> packet) {
  const VirtioHeader& header = looked_at.header;
  const std::optional<IpPacket>& ip = looked_at.packet;
  if (!ip->may_be_cut || header.is_large()) {
    link.traffic->too_long.add(1);
    return answer(Refusal::kTooBig, packet, link.mtu);
  }
  complete_checksum(header, packet);
  put_parts(link, {}, fragments_of(packet, link.mtu));
}

void Pump::answer(Refusal refusal, std::span<const std::byte> packet, uint32_t mtu) {
  const int64_t now = base::now_ns();
  if (now - answers_from_ns_ >= kSecondNs) {
    answers_from_ns_ = now;
    answers_ = 0;
  }
  if (answers_ >= kAnswersPerSecond) return;
  const auto message = icmp_about(refusal, packet, mtu);
  if (!message) return;
  ++answers_;
  VirtioHeader none;
  const iovec parts[2] = {{&none, sizeof none}, {const_cast<std::byte*>(message->data()), message->size()}};
  // The kernel may have no memory for it: an error message may be lost like any packet.
  [[maybe_unused]] const ssize_t written = ::writev(queue_, parts, 2);
}

bool Pump::may_sleep() {
  for (Link* link : links_)
    for (Lane* lane : link->lanes)
      if (!lane->wait_for_frames()) return false;
  for (Link* link : links_) {
    if (link != blocked_ && link->aside.empty()) continue;
    if (!link->lanes.front()->wait_for_room()) return false;
  }
  return cq_->arm(true) == 0 && !take_completions();
}

void Pump::sleep() {
  if (may_sleep()) {
    pollfd events[3] = {{queue_, static_cast<short>(blocked_ == nullptr ? POLLIN : 0), 0},
                        {channel_->fd(), POLLIN, 0},
                        {bell_.get(), POLLIN, 0}};
    constexpr int kHoldUpMs = static_cast<int>(kHoldUpNs / 1'000'000);
    ::poll(events, 3, blocked_ != nullptr ? kHoldUpMs : -1);
    if (events[1].revents != 0) [[maybe_unused]]
      auto taken = channel_->wait();
  }
  for (Link* link : links_)
    for (Lane* lane : link->lanes) lane->awake();
}

}  // namespace nupa::netdev
