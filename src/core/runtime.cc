#include "core/runtime.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <shared_mutex>

#include "base/clock.h"
#include "base/gid.h"
#include "base/log.h"
#include "base/memory_fault.h"
#include "base/settings.h"
#include "base/spin.h"
#include "core/connections.h"
#include "core/cq.h"
#include "core/datagram_router.h"
#include "core/device_attr.h"
#include "core/gid_table.h"
#include "core/qp.h"
#include "core/srq.h"
#include "core/sudden_end.h"
#include "core/transport_names.h"
#include "io/route.h"

namespace nupa::core {

namespace {

std::mutex g_mutex;
std::weak_ptr<Runtime> g_runtime;
int g_owner_pid = 0;

constexpr int64_t kGraceLimit = 2'000'000'000;
constexpr int64_t kBusyPauseNs = 100'000;
/// What is asked of the kernel for packets that wait to be read or sent, bytes.
constexpr uint32_t kSocketBytes = 4 << 20;

struct TransportChoice {
  bool shm = false;
  bool roce = false;
};

std::optional<TransportChoice> transports_from_environment() {
  const char* wanted = base::setting("NUPA_TRANSPORT");
  const auto places = parse_transports(wanted == nullptr ? "auto" : wanted);
  if (!places) {
    NUPA_ERROR("NUPA_TRANSPORT=%s: no such transport (expected %s)", wanted, transport_choices().c_str());
    return std::nullopt;
  }
  TransportChoice choice;
  for (const size_t place : *places) (transport_names()[place].name == "shm" ? choice.shm : choice.roce) = true;
  return choice;
}

/// NUPA_CONGESTION, NUPA_ROCE_SOURCE_PORTS, NUPA_ROCE_ICRC, NUPA_ROCE_PEERS; nothing where one of them is wrong.
std::optional<roce::WireSettings> wire_settings_from_environment() {
  roce::WireSettings settings;
  if (const char* wanted = base::setting("NUPA_CONGESTION"); wanted != nullptr && *wanted != '\0') {
    const auto names = roce::congestion_names();
    const auto found = std::find(names.begin(), names.end(), wanted);
    if (found == names.end()) {
      NUPA_ERROR("NUPA_CONGESTION is tolerant, none, dcqcn, swift or cubic, not '%s'", wanted);
      return std::nullopt;
    }
    settings.congestion = *found;
  }
  if (const char* ports = base::setting("NUPA_ROCE_SOURCE_PORTS"); ports != nullptr && *ports != '\0') {
    uint32_t count = 0;  // which a number that is too large leaves as it is
    const char* const end = ports + std::strlen(ports);
    if (std::from_chars(ports, end, count).ptr != end || count == 0 || count > roce::kMaxPaths) {
      NUPA_ERROR("NUPA_ROCE_SOURCE_PORTS is 1 to %u, not '%s'", roce::kMaxPaths, ports);
      return std::nullopt;
    }
    settings.source_ports = count;
  }
  if (const char* icrc = base::setting("NUPA_ROCE_ICRC"); icrc != nullptr && *icrc != '\0') {
    settings.unchecked = std::strcmp(icrc, "off") == 0;
    if (!settings.unchecked && std::strcmp(icrc, "on") != 0) {
      NUPA_ERROR("NUPA_ROCE_ICRC is on or off, not '%s'", icrc);
      return std::nullopt;
    }
  }
  const char* peers = base::setting("NUPA_ROCE_PEERS");
  if (peers == nullptr || *peers == '\0' || std::strcmp(peers, "any") == 0) return settings;
  settings.standard = std::strcmp(peers, "standard") == 0;
  if (settings.standard) return settings;
  NUPA_ERROR("NUPA_ROCE_PEERS is any or standard, not '%s'", peers);
  return std::nullopt;
}

template <class T, size_t N>
void raise_high_water(std::atomic<uint32_t>& high_water, uint32_t index, const std::array<T, N>&) {
  uint32_t seen = high_water.load();
  while (seen <= index && !high_water.compare_exchange_weak(seen, index + 1)) {
  }
}

}  // namespace

// Number 0 of each kind stays unused: a zero never means an object. Queue pairs 0 and 1 are management's.
Runtime::Runtime()
    : qp_numbers_(2, segment::kMaxQp),
      cq_numbers_(1, segment::kMaxCq),
      srq_numbers_(1, segment::kMaxSrq),
      mr_numbers_(1, segment::kMaxMr) {}

Runtime::~Runtime() {
  std::unique_ptr<Connections> last;
  {
    std::lock_guard lock(connections_mutex_);
    last = std::move(connections_);
  }
  // Without the lock: threads that tell it something may be in its way.
  last.reset();
}

Result<std::shared_ptr<Runtime>> Runtime::acquire() {
  std::lock_guard lock(g_mutex);
  const int pid = getpid();
  auto existing = g_owner_pid == pid ? g_runtime.lock() : nullptr;
  if (existing) return existing;
  const auto choice = transports_from_environment();
  if (!choice) return fail(EINVAL, "NUPA_TRANSPORT names no transport");
  const bool wire = choice->roce;
  const bool only_wire = !choice->shm;
  const auto settings = wire_settings_from_environment();
  if (!settings)
    return fail(EINVAL, "NUPA_CONGESTION, NUPA_ROCE_ICRC, NUPA_ROCE_PEERS or NUPA_ROCE_SOURCE_PORTS is wrong");
  auto devices = read_devices();
  if (!devices) return tl::unexpected(devices.error());
  std::shared_ptr<Runtime> runtime(new Runtime);
  runtime->wire_settings_ = *settings;
  // Packets are copied from and to the memory where it lies.
  auto remapper = region::Remapper::create(only_wire ? region::Policy::kNever : region::policy_from_environment());
  if (!remapper) return tl::unexpected(remapper.error());
  runtime->remapper_ = std::move(*remapper);
  runtime->devices_ = std::move(*devices);
  runtime->own_addresses_ = own_addresses();
  std::vector<std::vector<Gid>> gids;
  for (const DeviceEntry& device : runtime->devices_) {
    gids.emplace_back();
    for (const GidEntry& entry : device.gids) gids.back().push_back(entry.gid);
  }
  // A process's slot on the wire is its UDP port, which other users' processes may have.
  std::optional<io::UdpSocket> socket;
  const auto reserve = [&](uint32_t slot) {
    // Standard peers know one port.
    if (settings->standard && roce::Port::port_of_slot(slot) != roce::kUdpPort) return false;
    auto opened = io::UdpSocket::open(roce::Port::port_of_slot(slot), kSocketBytes);
    if (opened) socket.emplace(std::move(*opened));
    // Without sockets at all there is still the window.
    return opened || (!only_wire && opened.error().code != EADDRINUSE);
  };
  // Packets come to memory that the program may have unmapped, and are made of it; peers ask for atomics on it.
  if (const int error = base::watch_memory_faults(); error != 0) return fail(error, "no handler of memory faults");
  auto node = wire ? cm::Node::open(runtime->remapper_->fd(), gids, *runtime, reserve, only_wire)
                   : cm::Node::open(runtime->remapper_->fd(), gids, *runtime);
  if (!node && wire && settings->standard && node.error().code == ENOSPC)
    return fail(EADDRINUSE, "UDP port 4791, where standard peers look, is taken");
  if (!node) return tl::unexpected(node.error());
  if (socket) {
    // Members on this host are reached over shm, once.
    if (!only_wire) socket->set_group_loop(false);
    auto port = roce::Port::open(std::move(*socket), settings->source_ports);
    if (!port) return tl::unexpected(port.error());
    runtime->port_ = std::move(*port);
  }
  runtime->has_window_ = !only_wire;
  runtime->slot_ = (*node)->slot();
  runtime->tag_ = segment::owner_tag((*node)->slot(), (*node)->self().instance());
  runtime->node_ = std::move(*node);
  runtime->memories_ = std::make_unique<host::PeerMemories>(*runtime->node_);
  runtime->window_ = std::make_unique<window::Window>(*runtime->node_, *runtime->memories_);
  runtime->remapper_->set_internal_threads(runtime->node_->internal_threads());
  runtime->connections_ = std::make_unique<Connections>(*runtime);
  auto end = SuddenEnd::watch(*runtime->node_);
  if (!end) return tl::unexpected(end.error());
  runtime->sudden_end_ = std::move(*end);
  // Who has the port where standard peers look hears for all processes of the host.
  if (runtime->port_ != nullptr && runtime->port_->socket().port() == roce::kUdpPort)
    if (auto heard = runtime->connections_->hear(); !heard) return tl::unexpected(heard.error());
  // The service thread calls the runtime from now on: everything that it may need is there.
  if (auto served = runtime->node_->serve(); !served) return tl::unexpected(served.error());
  g_runtime = runtime;
  g_owner_pid = pid;
  return runtime;
}

Result<std::unique_ptr<Endpoint>> Runtime::connect(const DeviceEntry& device, QpContext& context, const QpAttr& attr) {
  if (port_ == nullptr || (has_window_ && window_->reaches(attr.av, attr.dest_qp_num)))
    return window_->connect(context, attr.av, attr.dest_qp_num);
  return connect_wire(device, context, attr);
}

Result<std::unique_ptr<Endpoint>> Runtime::connect_wire(const DeviceEntry& device, QpContext& context,
                                                        const QpAttr& attr) {
  const AddressVector& vector = attr.av;
  const size_t index = vector.is_global ? vector.sgid_index : std::min<size_t>(1, device.gids.size() - 1);
  if (index >= device.gids.size()) return fail(EHOSTUNREACH, "the source GID is empty");
  const GidEntry& source = device.gids[index];
  const Gid peer = vector.is_global ? vector.dgid : source.gid;
  if (base::is_ipv4(peer) != base::is_ipv4(source.gid))
    return fail(EHOSTUNREACH, "source and destination differ in family");
  roce::LocalEnd end{&context, rails_from(device, source, peer), 0, false};
  const auto way = io::route_mtu({peer, roce::kUdpPort, end.rails[0].interface_index});
  if (!way) return tl::unexpected(way.error());
  QpAttr fitting = attr;
  if (*way != 0 && attr.path_mtu > roce::mtu_code_of(*way)) {
    // Where the window is a way too, the port's MTU is the window's, and the other end does as this one.
    if (!has_window_) return fail(EINVAL, "the path MTU is larger than the way's");
    fitting.path_mtu = roce::mtu_code_of(*way);
  }
  if (auto started = start_port_for_queue_pairs(); !started) return tl::unexpected(started.error());
  return std::make_unique<roce::ConnectedEndpoint>(*port_, end, fitting, peer, wire_settings_);
}

roce::Sources Runtime::sources_of(const DeviceEntry& device) const {
  if (device.interfaces.empty()) return {device.gids, false, {}};
  return {device.gids, true, own_addresses_};
}

uint32_t Runtime::exit_of(const DeviceEntry& device, const GidEntry& source, const Gid& peer) const {
  const bool link_local = peer.raw[0] == 0xfe && peer.raw[1] == 0x80;
  return link_local ? source.interface_index : sources_of(device).exit_of(source, peer);
}

std::vector<roce::Rail> Runtime::rails_from(const DeviceEntry& device, const GidEntry& source, const Gid& peer) const {
  const auto is_link_local = [](const Gid& gid) { return gid.raw[0] == 0xfe && gid.raw[1] == 0x80; };
  const roce::Sources sources = sources_of(device);
  std::vector<roce::Rail> rails;
  const auto add = [&](const Gid& address, uint32_t exit) {
    const auto socket = static_cast<uint32_t>(rails.size() % port_->sockets().size());
    rails.push_back({address, exit, port_->sockets()[socket].port(), socket});
  };
  add(source.gid, exit_of(device, source, peer));
  std::vector<uint32_t> interfaces{source.interface_index};
  for (const GidEntry& entry : device.gids) {
    const bool used = std::find(interfaces.begin(), interfaces.end(), entry.interface_index) != interfaces.end();
    if (device.interfaces.size() < 2 || used || rails.size() == roce::kMaxPaths || is_link_local(entry.gid) ||
        base::is_ipv4(entry.gid) != base::is_ipv4(source.gid))
      continue;
    add(entry.gid, sources.exit_of(entry, peer));
    interfaces.push_back(entry.interface_index);
  }
  for (size_t i = 0; rails.size() < port_->sockets().size(); ++i) add(rails[i].address, rails[i].interface_index);
  return rails;
}

int Runtime::join_on_wire(const DeviceEntry& device, uint32_t qp_num, const Gid& group) {
  if (port_ == nullptr) return 0;
  const int error = port_->attach(qp_num, group, device.index, device.gids);
  return has_window_ ? 0 : error;
}

Result<std::unique_ptr<Endpoint>> Runtime::connect_datagrams(const DeviceEntry& device, QpContext& context) {
  auto router = std::make_unique<DatagramRouter>(context);
  if (has_window_) router->add(window_->datagrams(context, router->due));
  if (port_ != nullptr) {
    const auto mtu = io::interface_mtu(device.gids);
    if (!mtu) return tl::unexpected(mtu.error());
    if (auto started = start_port_for_queue_pairs(); !started) return tl::unexpected(started.error());
    const roce::LocalEnd end{&context, {}, 128u << roce::mtu_code_of(*mtu), has_window_};
    router->add(std::make_unique<roce::DatagramEndpoint>(*port_, end, sources_of(device), wire_settings_));
    if (!has_window_) context.shared().carrier.store(static_cast<uint32_t>(segment::Carrier::kRoce));
  }
  return router;
}

Result<uint32_t> Runtime::active_mtu(const DeviceEntry& device) const {
  if (has_window_) return port_attr().max_mtu;
  const auto mtu = io::interface_mtu(device.gids);
  if (!mtu) return tl::unexpected(mtu.error());
  return roce::mtu_code_of(*mtu);
}

void Runtime::enter(Qp* qp, uint32_t index) {
  std::lock_guard lock(objects_mutex_);
  qps_[index].store(qp, std::memory_order_release);
}

void Runtime::enter(Cq* cq, uint32_t index) {
  std::lock_guard lock(objects_mutex_);
  cqs_[index].store(cq, std::memory_order_release);
  raise_high_water(cq_high_water_, index, cqs_);
}

void Runtime::enter(Srq* srq, uint32_t index) {
  std::lock_guard lock(objects_mutex_);
  srqs_[index].store(srq, std::memory_order_release);
  raise_high_water(srq_high_water_, index, srqs_);
}

void Runtime::leave_qp(uint32_t index) {
  std::lock_guard lock(objects_mutex_);
  Qp* qp = qps_[index].exchange(nullptr);
  if (qp == nullptr) return;
  remove_pending(qp);
}

void Runtime::leave_cq(uint32_t index) {
  std::lock_guard lock(objects_mutex_);
  cqs_[index].store(nullptr);
}

void Runtime::leave_srq(uint32_t index) {
  std::lock_guard lock(objects_mutex_);
  srqs_[index].store(nullptr);
}

void Runtime::add_pending(Qp* qp, bool by_pollers) {
  {
    std::lock_guard lock(pending_mutex_);
    bool& counted = pending_.emplace(qp, false).first->second;
    if (by_pollers && !counted && qp->send_cq() != nullptr) {
      qp->send_cq()->pending_qps.fetch_add(1);
      counted = true;
    }
  }
  if (!node_->on_service_thread()) node_->kick();
}

void Runtime::remove_pending(Qp* qp) {
  std::lock_guard lock(pending_mutex_);
  const auto found = pending_.find(qp);
  if (found == pending_.end()) return;
  if (found->second) qp->send_cq()->pending_qps.fetch_sub(1);
  pending_.erase(found);
}

void Runtime::progress(Cq* cq) {
  // A thread that polls one queue must not fall asleep behind the service thread: it comes again anyway.
  std::unique_lock objects(objects_mutex_, std::try_to_lock);
  if (!objects.owns_lock()) return;
  std::vector<Qp*> ready;
  {
    std::lock_guard lock(pending_mutex_);
    for (const auto& [qp, by_pollers] : pending_)
      if (by_pollers && qp->send_cq() == cq) ready.push_back(qp);
  }
  const int64_t now = base::now_ns();
  for (Qp* qp : ready) qp->progress(now);
}

bool Runtime::grace_of(const segment::Tables& tables, cm::Peer* peer) {
  const uint32_t count = std::min(tables.header->qp_high_water.load(), segment::kMaxQp);
  const int64_t deadline = base::now_ns() + kGraceLimit;
  for (uint32_t i = 0; i < count; ++i) {
    bool is_late = false;
    segment::SendLock::await_holder(tables.qp[i].send_lock, [&] {
      if (peer != nullptr && !peer->alive()) return false;
      is_late = base::now_ns() > deadline;
      return !is_late;
    });
    if (is_late) return false;
  }
  return true;
}

bool Runtime::grace() {
  segment::SendLock::fence_after_revoking();
  bool all = grace_of(tables(), nullptr);
  for (cm::Peer* peer : node_->peers()) all = grace_of(peer->tables(), peer) && all;
  return all;
}

void Runtime::on_attention() {
  segment::SegmentHeader& header = *tables().header;
  const uint32_t kinds = header.attention.exchange(0);
  // Requests below may write the program's memory, which then must not be moving.
  std::shared_lock copies(remapper_->copy_mutex());
  // Requests of other processes first: somebody waits for each.
  if ((kinds & segment::attention::kAgent) != 0) memories_->agent().serve();
  std::lock_guard lock(objects_mutex_);
  const auto each = [](auto& words, auto&& visit) {
    for (uint32_t word = 0; word < std::size(words); ++word)
      for (uint64_t bits = words[word].exchange(0); bits != 0; bits &= bits - 1)
        visit(word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits)));
  };
  if ((kinds & segment::attention::kQp) != 0) {
    each(header.qp_attention, [&](uint32_t index) {
      Qp* qp = qps_[index].load();
      if (qp == nullptr) return;
      if (tables().qp[index].wake.exchange(0) != 0) qp->progress(base::now_ns());
      qp->tell_established();
      if (!qp->handle_error()) failed_.insert(index);
    });
  }
  if ((kinds & segment::attention::kSrq) != 0) {
    each(header.srq_attention, [&](uint32_t index) {
      if (Srq* srq = srqs_[index].load(); srq != nullptr) srq->on_limit();
    });
  }
  if ((kinds & segment::attention::kCq) != 0) {
    each(header.cq_attention, [&](uint32_t index) {
      Cq* cq = cqs_[index].load();
      if (cq == nullptr) return;
      if (tables().cq[index].overrun.load() == 1) {
        tables().cq[index].overrun.store(2);  // told once
        cq->on_overrun();
      }
      cq->wake_channel();
    });
  }
}

void Runtime::recover_from(cm::Peer& peer) {
  const uint32_t dead = segment::owner_tag(peer.slot(), peer.instance());
  for (uint32_t i = 0; i < srq_high_water_.load(); ++i)
    if (Srq* srq = srqs_[i].load(); srq != nullptr) srq->recover(dead);
  const uint32_t qp_count = tables().header->qp_high_water.load();
  for (uint32_t i = 0; i < qp_count; ++i)
    if (Qp* qp = qps_[i].load(); qp != nullptr) qp->recover(dead);
}

Result<void> Runtime::start_port() {
  std::lock_guard lock(port_start_mutex_);
  auto started = port_->start();
  if (started && !port_serves_queue_pairs_) remapper_->set_internal_threads(node_->internal_threads() + 1);
  return started;
}

Result<void> Runtime::start_port_for_queue_pairs() {
  std::lock_guard lock(port_start_mutex_);
  port_serves_queue_pairs_ = true;
  remapper_->set_internal_threads(node_->internal_threads());
  return port_->start();
}

void Runtime::on_mad(cm::Peer& peer, const cm::Mad& mad) {
  std::lock_guard lock(connections_mutex_);
  if (connections_ != nullptr) connections_->on_mad(peer, mad);
}

void Runtime::on_peer_gone(cm::Peer& peer) {
  bury(peer);
  std::lock_guard lock(connections_mutex_);
  if (connections_ != nullptr) connections_->on_peer_gone(peer);
}

void Runtime::bury(cm::Peer& peer) {
  std::lock_guard lock(objects_mutex_);
  recover_from(peer);
  const uint32_t qp_count = tables().header->qp_high_water.load();
  for (uint32_t i = 0; i < qp_count; ++i) {
    Qp* qp = qps_[i].load();
    if (qp == nullptr || !qp->connected_to(peer)) continue;
    // A thread that is inside a post to the dead peer comes out of it: nobody can hold it up any more.
    base::Backoff backoff;
    for (int turn = 0; turn < 100000 && !qp->handle_peer_gone(peer); ++turn) backoff.pause();
    if (tables().qp[i].error.load() != 0 || segment::state_of(tables().qp[i].state.load()) == QpState::kErr)
      failed_.insert(i);
  }
  const uint32_t dead = segment::owner_tag(peer.slot(), peer.instance());
  for (uint32_t i = 0; i < cq_high_water_.load(); ++i)
    if (Cq* cq = cqs_[i].load(); cq != nullptr) cq->recover(dead);
  if (!failed_.empty()) node_->kick();
}

int64_t Runtime::on_tick(int64_t now_ns) {
  const int64_t wanted = serve_queue_pairs(now_ns);
  std::lock_guard lock(connections_mutex_);
  return connections_ == nullptr ? wanted : std::min(wanted, connections_->on_tick(now_ns));
}

int64_t Runtime::serve_queue_pairs(int64_t now_ns) {
  // Before the objects' mutex, as in on_attention().
  std::shared_lock copies(remapper_->copy_mutex());
  std::lock_guard lock(objects_mutex_);
  int64_t wanted = INT64_MAX;
  for (auto failed = failed_.begin(); failed != failed_.end();) {
    Qp* qp = qps_[*failed].load();
    if (qp == nullptr || qp->handle_error()) {
      failed = failed_.erase(failed);
    } else {
      wanted = now_ns + kBusyPauseNs;
      ++failed;
    }
  }
  std::vector<Qp*> pending;
  {
    std::lock_guard lock2(pending_mutex_);
    for (const auto& [qp, by_pollers] : pending_) pending.push_back(qp);
  }
  for (Qp* qp : pending) wanted = std::min(wanted, qp->progress(now_ns));
  return wanted;
}

}  // namespace nupa::core
