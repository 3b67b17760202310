// SPDX-License-Identifier: Apache-2.0
#include "rsockets/datagram.h"

#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "rsockets/cursor.h"
#include "progress/descriptors.h"

namespace nupa::rsockets {
namespace {

/// The interval at which polling threads check the UDP socket, since a check costs a system call.
constexpr int64_t kUdpLookNs = 20'000;
constexpr int64_t kCloseMs = 1000;
constexpr int kUdpTogether = 64;  ///< datagrams read at a time, so that a flood does not keep the lock

bool is_any(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == INADDR_ANY;
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

in_port_t& port_of(sockaddr_storage& address) {
  return address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                      : reinterpret_cast<sockaddr_in6&>(address).sin6_port;
}

}  // namespace

std::unique_ptr<Datagram> Datagram::make(int domain) {
  std::unique_ptr<Datagram> datagram(new (std::nothrow) Datagram(domain));
  if (!datagram) {
    errno = ENOMEM;
    return nullptr;
  }
  datagram->udp_.reset(::socket(domain, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  return datagram->udp_ ? std::move(datagram) : nullptr;
}

int Datagram::take_address(const sockaddr* addr, socklen_t length, DatagramAddress* result) {
  if (addr == nullptr || length < sizeof addr->sa_family) return -EINVAL;
  if (addr->sa_family != AF_INET && addr->sa_family != AF_INET6) return -EAFNOSUPPORT;
  if (length < address_length(addr)) return -EINVAL;
  std::memcpy(&result->value, addr, address_length(addr));
  return 0;
}

int Datagram::bind(const sockaddr* addr, socklen_t length) {
  return ::bind(udp_.get(), addr, length) == 0 ? 0 : -errno;
}

/// Binds the UDP socket if it has no port. Headers hold the port that peers answer to.
int Datagram::bind_somewhere() {
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  if (getsockname(udp_.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) return -errno;
  if (port_of(local) != 0) return 0;
  return ::bind(udp_.get(), reinterpret_cast<sockaddr*>(&local), length) == 0 ? 0 : -errno;
}

int Datagram::source_for(const DatagramAddress& peer, sockaddr_storage* source) {
  int rc = bind_somewhere();
  if (rc != 0) return rc;
  *source = {};
  socklen_t length = sizeof *source;
  if (getsockname(udp_.get(), reinterpret_cast<sockaddr*>(source), &length) != 0) return -errno;
  if (!is_any(*source)) return 0;
  const in_port_t port = port_of(*source);
  const auto* to = reinterpret_cast<const sockaddr*>(&peer.value);
  base::UniqueFd probe(::socket(peer.value.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  length = sizeof *source;
  if (!probe || ::connect(probe.get(), to, address_length(to)) != 0 ||
      getsockname(probe.get(), reinterpret_cast<sockaddr*>(source), &length) != 0) {
    return -errno;
  }
  port_of(*source) = port;
  return 0;
}

int Datagram::path_for(const sockaddr_storage& local, DatagramPath** path) {
  for (const auto& existing : paths_) {
    if (DatagramAddress{existing->local()} == DatagramAddress{local}) {
      *path = existing.get();
      return 0;
    }
  }
  const DatagramPath::Sizes sizes{std::clamp(send_bytes_ / kLowWater, 1u, send_requests_),
                                  std::clamp(receive_bytes_ / kLowWater, 1u, receive_requests_), inline_bytes_};
  auto fresh = DatagramPath::make(local, sizes);
  if (!fresh) return -errno;
  *path = fresh.get();
  paths_.push_back(std::move(fresh));
  observers().notify();  // there is one more descriptor to wait on
  return 0;
}

int Datagram::destination_for(const DatagramAddress& peer, Destination** destination) {
  *destination = destinations_.find(peer);
  if (*destination != nullptr) return 0;
  sockaddr_storage source;
  int rc = source_for(peer, &source);
  DatagramPath* path = nullptr;
  if (rc == 0) rc = path_for(source, &path);
  if (rc == 0) *destination = destinations_.add(peer, path);
  return rc;
}

int Datagram::destination_of(const sockaddr* to, socklen_t length, Destination** destination) {
  *destination = connected_;
  if (to != nullptr && length != 0) {
    DatagramAddress peer;
    int rc = take_address(to, length, &peer);
    if (rc == 0) rc = destination_for(peer, destination);
    if (rc != 0) return rc;
  }
  if (*destination == nullptr) return -EDESTADDRREQ;
  destinations_.used(*destination);
  return 0;
}

int Datagram::connect(const sockaddr* addr, socklen_t length) {
  std::lock_guard lock(mutex_);
  DatagramAddress peer;
  if (addr != nullptr && length >= sizeof addr->sa_family && addr->sa_family == AF_UNSPEC) {
    destinations_.keep(connected_ = nullptr);
    return ::connect(udp_.get(), addr, length) == 0 ? 0 : -errno;
  }
  int rc = take_address(addr, length, &peer);
  if (rc != 0) return rc;
  if (::connect(udp_.get(), addr, length) != 0) return -errno;
  Destination* destination;
  rc = destination_for(peer, &destination);
  if (rc == 0) destinations_.keep(connected_ = destination);
  return rc;
}

/// Takes the peer's answer if it has arrived, and resolves the path to its queue pair. The lock is released while the
/// connection manager resolves: other calls proceed, and sends to the same peer use UDP. Any destination may be dropped
/// meanwhile.
void Datagram::find_way(std::unique_lock<std::mutex>* lock, const DatagramAddress& peer) {
  read_udp();
  Destination* destination = destinations_.find(peer);
  if (destination == nullptr || destination->ah != nullptr) return;
  if (!destination->queue_pair || destination->resolving) return;
  const DatagramPath* path = destination->path;
  destination->resolving = true;
  ibv_ah* ah = nullptr;
  uint32_t limit = 0;
  lock->unlock();
  ah = path->resolve(peer.value, &limit);
  lock->lock();
  destination = destinations_.find(peer);
  if (destination == nullptr || !destination->resolving || destination->path != path) {
    if (ah != nullptr) ibv_destroy_ah(ah);
    return;
  }
  destination->resolving = false;
  destination->ah = ah;
  destination->limit = limit;
  if (ah == nullptr) destination->queue_pair.reset();  // try again only after the peer has sent its number again
}

int Datagram::send_by_udp(const Destination& destination, Pieces data, uint8_t op) {
  UdpHeader header{};
  const DatagramHeader& own = destination.path->header();
  header.tag = htobe32(kUdpTag);
  header.version = own.version;
  header.op = op;
  header.qpn = htobe32(destination.path->queue_pair());
  if (own.version == 4) {
    header.length = kUdpHeaderV4;
    header.addr.ipv4 = own.addr.ipv4;
  } else {
    header.length = kUdpHeaderV6;
    std::memcpy(header.addr.ipv6, own.addr.ipv6.addr, sizeof header.addr.ipv6);
  }
  std::array<std::byte, kLowWater> bytes;
  const size_t payload = data.bytes();
  if (header.length + payload > bytes.size()) return -EMSGSIZE;
  std::memcpy(bytes.data(), &header, header.length);
  Cursor(data).copy_to(bytes.data() + header.length, payload);
  const auto* to = reinterpret_cast<const sockaddr*>(&destination.address.value);
  const size_t total = header.length + payload;
  const ssize_t sent = ::sendto(udp_.get(), bytes.data(), total, MSG_NOSIGNAL, to, address_length(to));
  return sent < 0 ? -errno : 0;
}

bool Datagram::udp_has_room() {
  if (!udp_full_) return true;
  udp_full_ = !progress::wait_writable(udp_.get(), progress::Deadline::at(0));
  return !udp_full_;
}

bool Datagram::has_room() {
  return udp_has_room() && std::all_of(paths_.begin(), paths_.end(), [](const auto& path) { return path->can_send(); });
}

ssize_t Datagram::send(Pieces data, int flags, const sockaddr* to, socklen_t length) {
  const size_t payload = data.bytes();
  const bool waits = !nonblocking() && (flags & MSG_DONTWAIT) == 0;
  std::unique_lock lock(mutex_);
  const Deadline deadline = Deadline::in_ms(send_timeout_ms_);
  bool looked = false;
  for (;;) {
    if (shut_) return -EPIPE;
    Destination* destination;
    int rc = destination_of(to, length, &destination);
    if (rc != 0) return rc;
    if (destination->ah == nullptr && !std::exchange(looked, true)) {
      const DatagramAddress peer = destination->address;
      find_way(&lock, peer);
      continue;
    }
    DatagramPath* path = destination->path;
    const uint32_t header = path->header().length;
    const bool by_udp = destination->ah == nullptr || header + payload > destination->limit;
    if (by_udp) {
      rc = send_by_udp(*destination, data, static_cast<uint8_t>(Op::kData));
      if (rc != -EAGAIN) return rc != 0 ? rc : static_cast<ssize_t>(payload);
      udp_full_ = true;
    } else {
      if (!path->can_send()) poll_paths();
      if (path->can_send()) {
        std::memcpy(path->next(), &path->header(), header);
        Cursor(data).copy_to(path->next() + header, payload);
        rc = path->send(static_cast<uint32_t>(header + payload), destination->ah, *destination->queue_pair);
        return rc != 0 ? rc : static_cast<ssize_t>(payload);
      }
    }
    if (!waits) return -EAGAIN;
    lock.unlock();
    rc = wait_until(deadline, [&] {
      std::lock_guard again(mutex_);
      return shut_ || (by_udp ? udp_has_room() : path->can_send());
    });
    lock.lock();
    if (rc != 0) return rc;
  }
}

bool Datagram::wanted(const sockaddr_storage& from) const {
  return connected_ == nullptr || connected_->address == DatagramAddress{from};
}

void Datagram::poll_paths() {
  bool any = false;
  for (const auto& path : paths_) {
    DatagramPath::Arrival arrival;
    while (path->poll(&arrival)) {
      Received received{path.get(), arrival.slot, nullptr, 0, {}, {}};
      uint32_t header;
      if (!parse_header(arrival.data, arrival.length, &received.from, &header) || !wanted(received.from)) {
        path->give_back(arrival.slot);
        continue;
      }
      received.data = arrival.data + header;
      received.length = arrival.length - header;
      received_.push_back(std::move(received));
      any = true;
    }
  }
  if (!any) return;
  read_edges_.fetch_add(1);
  observers().notify();
}

bool Datagram::udp_due() { return base::now_ns() - udp_looked_ns_ >= kUdpLookNs; }

void Datagram::read_udp() {
  udp_looked_ns_ = base::now_ns();
  std::array<std::byte, kLowWater> bytes;
  for (int i = 0; i < kUdpTogether; ++i) {
    DatagramAddress from;
    socklen_t length = sizeof from.value;
    const ssize_t count = ::recvfrom(udp_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT,
                                     reinterpret_cast<sockaddr*>(&from.value), &length);
    if (count < 0) return;
    handle_udp(bytes.data(), static_cast<size_t>(count), from);
  }
}

void Datagram::handle_udp(const std::byte* data, size_t bytes, const DatagramAddress& from) {
  UdpHeader header{};
  if (bytes < kUdpHeaderV4) return;
  std::memcpy(&header, data, std::min(bytes, sizeof header));
  const bool v4 = header.version == 4 && from.value.ss_family == AF_INET && header.length == kUdpHeaderV4;
  const bool v6 = header.version == 6 && from.value.ss_family == AF_INET6 && header.length == kUdpHeaderV6;
  if (header.tag != htobe32(kUdpTag) || (!v4 && !v6) || bytes < header.length) return;
  Destination* destination;
  if (destination_for(from, &destination) != 0) return;
  destinations_.heard(destination);
  const bool with_data = header.op == static_cast<uint8_t>(Op::kData);
  if (with_data) send_by_udp(*destination, Pieces{nullptr, 0}, static_cast<uint8_t>(Op::kControl));
  constexpr uint32_t kQueuePairMask = 0xffffff;
  destination->queue_pair = be32toh(header.qpn) & kQueuePairMask;
  constexpr size_t kMostQueued = 1024;  // a datagram beyond this is dropped
  if (!with_data || !wanted(from.value) || received_.size() >= kMostQueued) return;
  Received received{nullptr, 0, nullptr, static_cast<uint32_t>(bytes - header.length), {}, from.value};
  received.copy.assign(data + header.length, data + bytes);
  received_.push_back(std::move(received));
  read_edges_.fetch_add(1);
  observers().notify();
}

ssize_t Datagram::receive(Pieces room, int flags, sockaddr* from, socklen_t* length) {
  std::unique_lock lock(mutex_);
  while (received_.empty()) {
    poll_paths();
    if (!received_.empty()) break;
    if (udp_due()) read_udp();
    if (!received_.empty()) break;
    if (shut_) return 0;
    if (nonblocking() || (flags & MSG_DONTWAIT) != 0) return -EAGAIN;
    lock.unlock();
    const int rc = wait_until(Deadline::in_ms(receive_timeout_ms_), [&] {
      std::lock_guard again(mutex_);
      return !received_.empty() || shut_;
    });
    lock.lock();
    if (rc != 0) return rc;
  }
  const Received& first = received_.front();
  const std::byte* data = first.path != nullptr ? first.data : first.copy.data();
  const size_t copied = std::min<size_t>(first.length, room.bytes());
  Cursor(room).copy_from(data, copied);
  if (from != nullptr && length != nullptr) give_address(reinterpret_cast<const sockaddr*>(&first.from), from, length);
  const auto result = static_cast<ssize_t>((flags & MSG_TRUNC) != 0 ? first.length : copied);
  if ((flags & MSG_PEEK) == 0) {
    if (first.path != nullptr) first.path->give_back(first.slot);
    received_.pop_front();
  }
  return result;
}

short Datagram::ready(short events) {
  std::lock_guard lock(mutex_);
  poll_paths();
  if (received_.empty() && udp_due()) read_udp();
  short result = 0;
  if (!received_.empty() || shut_) result |= POLLIN | POLLRDNORM;
  if (has_room()) result |= POLLOUT | POLLWRNORM;
  return static_cast<short>(result & events);
}

void Datagram::arm(std::vector<pollfd>* fds) {
  std::lock_guard lock(mutex_);
  fds->push_back({udp_.get(), static_cast<short>(udp_full_ ? POLLIN | POLLOUT : POLLIN), 0});
  for (const auto& path : paths_) {
    path->source().arm();
    fds->push_back({path->source().fd(), POLLIN, 0});
  }
}

void Datagram::wake(int descriptor) {
  std::lock_guard lock(mutex_);
  for (const auto& path : paths_)
    if (path->source().fd() == descriptor) path->source().take_event();
  poll_paths();
  read_udp();
  observers().notify();  // other sleepers rely on the events that were taken
}

int Datagram::shutdown(int how) {
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return -EINVAL;
  if (how != SHUT_RDWR) return 0;
  {
    std::lock_guard lock(mutex_);
    shut_ = true;
  }
  observers().notify();
  return 0;
}

void Datagram::close() {
  shutdown(SHUT_RDWR);
  wait_until(Deadline::in_ms(kCloseMs), [this] {
    std::lock_guard lock(mutex_);
    return std::all_of(paths_.begin(), paths_.end(), [](const auto& path) { return path->all_sent(); });
  });
}

}  // namespace nupa::rsockets
