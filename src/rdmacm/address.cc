// SPDX-License-Identifier: Apache-2.0
/// Addresses: those that programs pass, those that ids show, and the device of an id.
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>

#include <nupa/device.h>
#include "base/gid.h"
#include "base/random_seed.h"
#include "base/unique_fd.h"
#include "rdmacm/id.h"

namespace nupa::rdmacm {
namespace {

struct alignas(uint32_t) PortRange {  // an atomic word
  uint16_t first, last;
};

/// Without a stream, whose first use in a process costs as much as a connection.
PortRange read_free_ports() {
  constexpr PortRange kUsual{32768, 60999};
  const base::UniqueFd file(open("/proc/sys/net/ipv4/ip_local_port_range", O_RDONLY | O_CLOEXEC));
  std::array<char, 32> text{};
  if (!file || read(file.get(), text.data(), text.size() - 1) <= 0) return kUsual;
  unsigned first = 0, last = 0;
  if (std::sscanf(text.data(), "%u %u", &first, &last) != 2) return kUsual;
  if (first == 0 || last > 0xffff || first > last) return kUsual;
  return {static_cast<uint16_t>(first), static_cast<uint16_t>(last)};
}

/// Returns the kernel's range of ephemeral ports. It is read once, because a read for each connection would cost as
/// much as finding the route. Not a static with a guarded initialization, because a fork may leave its lock locked.
PortRange free_ports() {
  static std::atomic<PortRange> known{PortRange{0, 0}};
  PortRange range = known.load(std::memory_order_relaxed);
  if (range.last == 0) known.store(range = read_free_ports(), std::memory_order_relaxed);
  return range;
}

uint16_t any_port() {
  thread_local std::minstd_rand random{static_cast<uint32_t>(base::random_seed())};
  const auto [first, last] = free_ports();
  return static_cast<uint16_t>(first + random() % (last - first + 1u));
}

ListenerAddress listener_of(const Id& id) {
  ListenerAddress listener;
  const Endpoint& at = id.source;
  listener.service_id = service_of(at, id.shown.ps);
  if (at.family == AF_IB) {
    listener.mask = at.mask;
    return listener;
  }
  listener.any_address = at.is_any();
  listener.address = at.gid;
  listener.only_v4 = listener.any_address && at.family == AF_INET;
  listener.only_v6 = listener.any_address && at.family == AF_INET6 && id.af_only;
  return listener;
}

/// True if the address is an IP service (annex A11) without a port.
bool lacks_port(const Endpoint& at) {
  if (at.family != AF_IB) return at.port == 0;
  return is_ip_service(at.service_id) && (at.service_id & at.mask & RDMA_IB_IP_PORT_MASK) == 0;
}

void set_port(Endpoint* at, uint16_t port) {
  at->port = port;
  if (at->family != AF_IB) return;
  at->service_id = (at->service_id & ~RDMA_IB_IP_PORT_MASK) | port;
  at->mask = ~uint64_t{0};
}

/// Takes the service at the manager, with a free port if the address has none. Returns an errno value.
int take_service(Id& id) {
  ConnectionManager* cm = manager();
  if (cm == nullptr) return errno;
  int error = 0;
  if (!lacks_port(id.source)) {
    error = cm->bind(id.owner(), listener_of(id));
  } else {
    constexpr int kTries = 2000;
    const Endpoint wanted = id.source;
    error = EADDRINUSE;
    for (int i = 0; i < kTries && error == EADDRINUSE; ++i) {
      set_port(&id.source, any_port());
      error = cm->bind(id.owner(), listener_of(id));
    }
    if (error != 0) id.source = wanted;
  }
  id.has_service = error == 0;
  return error;
}

int bind_address(Id& id, const Endpoint& at) {
  if (id.state != State::kIdle) return EINVAL;
  std::optional<ConnectionRoute> route;
  if (!at.is_any()) {
    ConnectionManager* cm = manager();
    if (cm == nullptr) return errno;
    auto found = cm->find_address(at.gid);
    if (!found) return found.error().code();
    // As with rdma_cm, a loopback address belongs to no device.
    if (found->path.local == at.gid) route = *found;
  }
  id.source = at;
  int error = 0;
  // Ids with `reuse` may share a port until one of them listens.
  if (!id.reuse || lacks_port(at)) error = take_service(id);
  if (error == 0 && route) error = use_device(id, *route);
  if (error != 0) {
    if (id.has_service) manager()->unbind(id.owner());
    id.has_service = false;
    id.source = {};
    return error;
  }
  id.state = State::kBound;
  show_addresses(id);
  return 0;
}

}  // namespace

bool Endpoint::is_any() const { return base::is_unspecified(gid); }

int read_address(const sockaddr* address, Endpoint* endpoint) {
  if (address == nullptr) return EINVAL;
  *endpoint = {};
  endpoint->family = address->sa_family;
  switch (address->sa_family) {
    case AF_INET: {
      sockaddr_in v4;
      std::memcpy(&v4, address, sizeof v4);
      endpoint->gid = base::ipv4_gid(v4.sin_addr);
      endpoint->port = ntohs(v4.sin_port);
      return 0;
    }
    case AF_INET6: {
      sockaddr_in6 v6;
      std::memcpy(&v6, address, sizeof v6);
      std::memcpy(endpoint->gid.raw.data(), &v6.sin6_addr, 16);
      endpoint->port = ntohs(v6.sin6_port);
      endpoint->scope = v6.sin6_scope_id;
      return 0;
    }
    case AF_IB: {
      sockaddr_ib ib;
      std::memcpy(&ib, address, sizeof ib);
      std::memcpy(endpoint->gid.raw.data(), &ib.sib_addr, 16);
      endpoint->service_id = be64toh(ib.sib_sid);
      endpoint->mask = be64toh(ib.sib_sid_mask);
      if (endpoint->mask == 0) endpoint->mask = ~uint64_t{0};
      endpoint->port = static_cast<uint16_t>(endpoint->service_id);
      endpoint->scope = static_cast<uint32_t>(ib.sib_scope_id);
      return 0;
    }
    default:
      return EAFNOSUPPORT;
  }
}

void write_address(const Endpoint& endpoint, sockaddr_storage* address) {
  *address = {};
  switch (endpoint.family) {
    case AF_INET: {
      sockaddr_in v4{};
      v4.sin_family = AF_INET;
      v4.sin_port = htons(endpoint.port);
      std::memcpy(&v4.sin_addr, &endpoint.gid.raw[12], 4);
      std::memcpy(address, &v4, sizeof v4);
      break;
    }
    case AF_INET6: {
      sockaddr_in6 v6{};
      v6.sin6_family = AF_INET6;
      v6.sin6_port = htons(endpoint.port);
      v6.sin6_scope_id = endpoint.scope;
      std::memcpy(&v6.sin6_addr, endpoint.gid.raw.data(), 16);
      std::memcpy(address, &v6, sizeof v6);
      break;
    }
    case AF_IB: {
      sockaddr_ib ib{};
      ib.sib_family = AF_IB;
      ib.sib_pkey = 0xffff;
      std::memcpy(&ib.sib_addr, endpoint.gid.raw.data(), 16);
      ib.sib_sid = htobe64(endpoint.service_id);
      ib.sib_sid_mask = htobe64(endpoint.mask);
      ib.sib_scope_id = endpoint.scope;
      std::memcpy(address, &ib, sizeof ib);
      break;
    }
    default:
      break;
  }
}

uint64_t service_of(const Endpoint& endpoint, rdma_port_space ps) {
  if (endpoint.family == AF_IB) return endpoint.service_id;
  return (static_cast<uint64_t>(ps) << 16) + endpoint.port;
}

int use_device(Id& id, const ConnectionRoute& route) {
  OpenDevice* device = open_device(route.device);
  if (device == nullptr) return errno;
  id.route = route;
  id.has_device = true;
  id.shown.verbs = device->verbs;
  id.shown.port_num = 1;
  id.shown.pd = device->pd;
  auto& shown = id.shown.route.addr.addr.ibaddr;
  std::memcpy(&shown.sgid, route.path.local.raw.data(), 16);
  std::memcpy(&shown.dgid, route.path.remote.raw.data(), 16);
  shown.pkey = htobe16(route.path.pkey);
  return 0;
}

int use_stand_in(Id& id) {
  if (id.has_device || id.state == State::kIdle || id.source.is_any()) return 0;
  auto route = manager()->find_address(id.source.gid);
  return route ? use_device(id, *route) : route.error().code();
}

namespace {
std::atomic<int> g_lowest_descriptor{0};
}  // namespace

int lowest_descriptor() { return g_lowest_descriptor.load(); }

NUPA_RDMACM void nupa_rdmacm_set_lowest_descriptor(int lowest) {
  g_lowest_descriptor.store(lowest);
  set_lowest_descriptor(lowest);
}

NUPA_RDMACM int nupa_rdmacm_use_stand_in(rdma_cm_id* shown) {
  Id* id = id_of(shown);
  if (id == nullptr) return -1;
  std::lock_guard lock(id->mutex);
  return answer(use_stand_in(*id));
}

void show_addresses(Id& id) {
  write_address(id.source, &id.shown.route.addr.src_storage);
  if (id.destination.family != AF_UNSPEC) write_address(id.destination, &id.shown.route.addr.dst_storage);
}

void fill_path_record(Id& id) {
  ibv_sa_path_rec& record = id.path_rec;
  const ConnectionPath& path = id.route.path;
  record = {};
  std::memcpy(&record.dgid, path.remote.raw.data(), 16);
  std::memcpy(&record.sgid, path.local.raw.data(), 16);
  record.flow_label = htobe32(path.flow_label);
  record.hop_limit = path.hop_limit;
  record.traffic_class = path.traffic_class;
  record.reversible = 1;
  record.numb_path = 1;
  record.pkey = htobe16(path.pkey);
  record.sl = path.service_level;
  constexpr uint8_t kExactly = 2;
  record.mtu_selector = kExactly;
  record.mtu = static_cast<uint8_t>(path.mtu);
  record.rate_selector = kExactly;
  record.rate = path.rate;
  record.packet_life_time_selector = kExactly;
  // Half of the timeout. Code 0, which the option RDMA_OPTION_ID_ACK_TIMEOUT permits, cannot be halved.
  record.packet_life_time = path.ack_timeout == 0 ? uint8_t{0} : static_cast<uint8_t>(path.ack_timeout - 1);
  id.shown.route.path_rec = &record;
  id.shown.route.num_paths = 1;
}

}  // namespace nupa::rdmacm

using namespace nupa::rdmacm;
using nupa::ConnectionManager;
using nupa::Gid;

NUPA_RDMACM int rdma_bind_addr(rdma_cm_id* shown, sockaddr* addr) {
  Endpoint at;
  if (const int error = read_address(addr, &at); error != 0) return answer(error);
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  std::lock_guard lock(id.mutex);
  return answer(bind_address(id, at));
}

NUPA_RDMACM int rdma_resolve_addr(rdma_cm_id* shown, sockaddr* src_addr, sockaddr* dst_addr, int timeout_ms) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  if (timeout_ms < 0) return answer(EINVAL, "timeout_ms is negative");
  {
    std::lock_guard lock(id.mutex);
    Endpoint to;
    if (const int error = read_address(dst_addr, &to); error != 0) return answer(error);
    Endpoint from;
    if (src_addr != nullptr && src_addr->sa_family != AF_UNSPEC)
      if (const int error = read_address(src_addr, &from); error != 0) return answer(error);
    if (id.state == State::kIdle && from.family != AF_UNSPEC && from.port != 0) {
      if (const int error = bind_address(id, from); error != 0) return answer(error);
    } else if (id.state != State::kIdle && id.state != State::kBound) {
      return answer(EINVAL, "the id is in use for a connection, or its address was resolved already");
    }
    // A bound id keeps its address.
    if (id.state == State::kBound) from = id.source;
    if (from.family != AF_UNSPEC && from.family != to.family)
      return answer(EINVAL, "the source and the destination are of different address families");
    ConnectionManager* cm = manager();
    if (cm == nullptr) return -1;
    // An unspecified address stands for this host.
    const bool here = to.is_any();
    if (here && to.family != AF_IB)
      to.gid = to.family == AF_INET ? nupa::base::ipv4_gid(127, 0, 0, 1)
                                    : Gid{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
    const Gid* source = from.family != AF_UNSPEC && !from.is_any() ? &from.gid : nullptr;
    auto route = cm->find_route(to.gid, to.scope, source);
    if (!route) return answer(route.error());
    if (id.has_tos) route->path.traffic_class = id.tos;
    if (id.ack_timeout) route->path.ack_timeout = *id.ack_timeout;
    if (const int error = use_device(id, *route); error != 0) return answer(error);
    const uint16_t port = id.state == State::kBound ? id.source.port : from.port;
    id.destination = to;
    id.source = from.family == AF_UNSPEC ? Endpoint{} : from;
    id.source.family = to.family;
    id.source.gid = route->source;
    // The port only informs the peer about the source. Nobody listens on it, so two processes may have the same port.
    id.source.port = port != 0 || to.family == AF_IB ? port : any_port();
    id.state = State::kAddressResolved;
    show_addresses(id);
  }
  push(id, RDMA_CM_EVENT_ADDR_RESOLVED);
  return wait_for_event(id);
}

NUPA_RDMACM int rdma_resolve_route(rdma_cm_id* shown, int timeout_ms) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  if (timeout_ms < 0) return answer(EINVAL, "timeout_ms is negative");
  {
    std::lock_guard lock(id.mutex);
    if (id.state != State::kAddressResolved)
      return answer(EINVAL,
                    "the address is not resolved (RDMA_CM_EVENT_ADDR_RESOLVED comes first), or the route is already");
    id.state = State::kRouteResolved;
    fill_path_record(id);
  }
  push(id, RDMA_CM_EVENT_ROUTE_RESOLVED);
  return wait_for_event(id);
}

NUPA_RDMACM int rdma_listen(rdma_cm_id* shown, int backlog) {
  constexpr int kLongestBacklog = 1024;  // rdma_ucm's default
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  std::lock_guard lock(id.mutex);
  if (id.state == State::kIdle) {
    Endpoint any;
    any.family = AF_INET6;
    if (const int error = bind_address(id, any); error != 0) return answer(error);
  }
  if (id.state != State::kBound) return answer(EINVAL, "the id is in use for a connection, or listens already");
  if (!id.has_service)
    if (const int error = take_service(id); error != 0) return answer(error);
  {
    std::lock_guard events(events_mutex());
    id.backlog = backlog <= 0 ? kLongestBacklog : std::min(backlog, kLongestBacklog);
  }
  if (const int error = manager()->listen(id.owner()); error != 0) return answer(error);
  id.state = State::kListening;
  show_addresses(id);
  return 0;
}

NUPA_RDMACM __be16 rdma_get_src_port(rdma_cm_id* shown) {
  const Id* id = id_of(shown);
  return id == nullptr ? __be16{0} : htons(id->source.port);
}
NUPA_RDMACM __be16 rdma_get_dst_port(rdma_cm_id* shown) {
  const Id* id = id_of(shown);
  return id == nullptr ? __be16{0} : htons(id->destination.port);
}
