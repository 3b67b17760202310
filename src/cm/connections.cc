// SPDX-License-Identifier: Apache-2.0
#include "cm/connections.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/clock.h"
#include "base/gid.h"
#include "base/log.h"
#include "base/random_seed.h"
#include "capture/messages.h"
#include "progress/lifecycle.h"

namespace nupa::cm {
namespace {

constexpr int64_t kSeekPauseNs = INT64_C(2'000'000'000);
/// How long an exit waits until other hosts have answered the DREQs.
constexpr int64_t kFarewellNs = INT64_C(1'000'000'000);

}  // namespace

Connections::Connections(core::Process& process)
    : process_(process),
      mads_(process_.transports().mads()),
      engine_(process_.slot() << ConnectionEngine::kIdBits, base::random_seed(), *this, *this),
      engine_due_(process.node().loop(), [this](int64_t now) { on_timer(now); }),
      questions_due_(process.node().loop(), [this](int64_t now) { ask_again(now); }),
      seek_due_(process.node().loop(), [this](int64_t now) { seek_host_socket(now); }),
      watch_due_(process.node().loop(), [this](int64_t now) { watch_peers(now); }) {
  if (progress::join_forks(progress::ForkStage::kHost, this) != 0) NUPA_ERROR("no memory for fork handlers");
  const progress::ExitAction ends{[](void* mine) { static_cast<Connections*>(mine)->process_ends(); }, this};
  if (progress::at_exit(progress::ExitStage::kConnections, ends) != 0)
    NUPA_ERROR("cannot register an exit handler: peers are not notified when this process exits");
}

const core::ServiceEntry Connections::kEntry{[](core::Process& process) -> std::unique_ptr<core::ProcessService> {
  return std::make_unique<Connections>(process);
}};

Result<void> Connections::start() {
  // The host's messages are for all its processes. A process without connections passes them on.
  if (mads_ == nullptr || !mads_->receives_for_host()) return {};
  return hear();
}

Result<void> Connections::hear() {
  if (mads_ == nullptr) return {};
  if (!relay_) {
    auto relay = MadRelay::open();
    if (!relay) return tl::unexpected(relay.error());
    relay_ = std::move(*relay);
  }
  return mads_->listen([this](const core::MadDatagram& datagram) { on_datagram(datagram); });
}

Result<void> Connections::attach(ConnectionSink& sink) {
  {
    std::lock_guard lock(mutex_);
    if (sink_ != nullptr) return fail(EBUSY, "the process already has a communication manager");
    sink_ = &sink;
  }
  if (mads_ != nullptr && slot_name_ == nullptr) {
    auto name = MadName::take(MadName::of_slot(process_.slot()));
    if (name) {
      slot_name_ = std::make_unique<Name>(std::move(*name));
      auto watched =
          process_.node().loop().watch(slot_name_->name.fd(), [this](uint32_t) { on_relayed(slot_name_->name); });
      if (watched)
        slot_name_->watch = std::move(*watched);
      else
        slot_name_.reset();
    }
    if (slot_name_ == nullptr) NUPA_WARN("another process cannot forward messages of standard peers to this process");
  }
  auto heard = hear();
  if (!heard) detach();
  return heard;
}

void Connections::detach() {
  if (abandoned_) return;
  std::map<uint64_t, Service> services;  // destroyed without the mutex, which the handlers of its names lock
  {
    std::unique_lock lock(mutex_);
    sink_ = nullptr;
    engine_.release_all(base::now_ns());
    questions_.clear();
    for (auto& [owner, service] : services_) {
      engine_.unlisten(owner);
      if (service.shared != nullptr) service.shared->in_use.store(0, std::memory_order_release);
    }
    services.swap(services_);
    engine_due_.set(engine_.deadline());
    after_is_over_.wait(lock, [this] { return after_ == 0; });
  }
}

Connections::~Connections() {
  progress::forget_at_exit(this);
  progress::leave_forks(this);
  if (abandoned_) {
    // The descriptors were closed, and other files may have their numbers now.
    [[maybe_unused]] auto* left = new std::map<uint64_t, Service>(std::move(services_));
    [[maybe_unused]] auto* name = slot_name_.release();
    [[maybe_unused]] auto* socket = host_socket_.release();
    [[maybe_unused]] auto* watch = watch_.release();
    if (relay_) [[maybe_unused]]
      auto* relay = new MadRelay(std::move(*relay_));
    return;
  }
  detach();
  if (mads_ != nullptr) mads_->unlisten();
}

void Connections::process_ends() {
  std::unique_lock lock(mutex_);
  if (abandoned_) return;
  engine_.release_all_at_exit(base::now_ns());
  if (!engine_.awaits_farewells()) return;
  ends_ = true;
  engine_due_.set(engine_.deadline());
  const progress::Deadline deadline = progress::Deadline::in_ns(kFarewellNs);
  progress::put_off_exit(progress::Deadline::at(deadline.at_ns() + progress::kActionNs));
  farewells_.wait(
      lock, [this] { return !engine_.awaits_farewells(); }, deadline);
}

bool Connections::in_child() {
  abandoned_ = true;
  after_is_over_.renew_in_child();
  farewells_.renew_in_child();
  return false;
}

// Sending and receiving.

void Connections::record(const Way& way, const Mad& mad) const {
  capture::Flow flow;
  // A way to a process of this host may have no addresses.
  const Way own = way_from(process_.node().self());
  flow.source = way.local == Gid{} ? own.local : way.local;
  flow.destination = way.remote == Gid{} ? own.local : way.remote;
  flow.transport = way.is_local() ? "shm" : "pool";
  flow.device = capture::Packet::kUnknownDevice;
  capture::record_mad(flow, mad.data(), static_cast<uint32_t>(mad.size()));
}

void Connections::send(const Way& way, const Mad& mad) {
  // A network's packets are recorded where they leave.
  if (capture::is_on() && (way.is_local() || way.interface == core::kPoolInterface)) [[unlikely]]
    record(way, mad);
  if (way.slot == process_.slot()) {
    to_self_.push_back(mad);
  } else if (way.is_local()) {
    const host::PeerRef peer = process_.node().find(way.slot);
    if (peer == nullptr || peer->instance() != way.instance) return;
    if (auto sent = process_.node().send_payload(*peer, mad); !sent)
      NUPA_INFO("dropped a message of the communication manager to slot %u: %s", way.slot, sent.error().what());
  } else if (mads_ != nullptr) {
    core::MadDatagram datagram;
    datagram.bytes = mad;
    datagram.local = way.local;
    datagram.remote = {way.remote, way.port};
    datagram.interface = way.interface;
    if (!mads_->send(datagram)) NUPA_INFO("cannot send a message of the communication manager to another host");
  }
}

Way Connections::way_from(host::Peer& peer) const {
  Way way;
  way.slot = peer.slot();
  way.instance = peer.instance();
  // If a message holds no addresses (SIDR without IP addresses), one address of the process stands for it.
  const shm::GidTableShared& theirs = peer.tables().header->devices[0];
  const std::vector<GidEntry>& ours = process_.devices().front().gids;
  if (theirs.count > 0 && theirs.count <= shm::kMaxGids) way.remote = theirs.gids[theirs.count > 1 ? 1 : 0];
  if (!ours.empty()) way.local = ours[ours.size() > 1 ? 1 : 0].gid;
  return way;
}

void Connections::settle(std::unique_lock<std::mutex> lock) {
  const Way self = way_from(process_.node().self());
  while (!to_self_.empty()) {
    const Mad mad = to_self_.front();
    to_self_.pop_front();
    engine_.receive(mad, self, base::now_ns());
  }
  engine_due_.set(engine_.deadline());
  if (ends_) farewells_.notify_all();
  if (mads_ != nullptr && !seeks_ && hears()) {
    seeks_ = true;
    seek_due_.run_soon();
  }
  if (!std::exchange(is_notified_, false) || sink_ == nullptr) return;
  ConnectionSink& sink = *sink_;
  ++after_;
  lock.unlock();
  sink.after_notifications();
  lock.lock();
  if (--after_ == 0) after_is_over_.notify_all();
}

void Connections::on_payload(host::Peer& peer, const Mad& mad) {
  with_engine([&](ConnectionEngine& engine) {
    engine.receive(mad, way_from(peer), base::now_ns());
    return 0;
  });
}

void Connections::on_peer_exit(host::Peer& peer) {
  with_engine([&](ConnectionEngine& engine) {
    engine.peer_exited(peer.slot(), peer.instance(), base::now_ns());
    return 0;
  });
}

void Connections::on_timer(int64_t now) {
  std::unique_lock lock(mutex_);
  if (engine_.deadline() <= now) engine_.on_timer(now);
  settle(std::move(lock));
}

void Connections::watch_peers(int64_t now) { watch_due_.set_at_latest(ask_peers(now)); }

int64_t Connections::ask_peers(int64_t now) {
  if (mads_ == nullptr || !mads_->probes()) return INT64_MAX;
  look_around_.store(false);
  std::vector<Way> ways;
  {
    std::lock_guard lock(mutex_);
    ways = engine_.standing_ways();
  }
  const auto gone = [this](const Gid& remote, uint16_t port) { process_exited(remote, port); };
  if (watch_ == nullptr) {
    if (ways.empty()) return INT64_MAX;
    auto socket = mads_->open_probe_socket();
    if (!socket) return now + PeerPulse::kPauseNs;
    watch_ = std::make_unique<PeerWatch>(std::move(*socket));
    const auto receive = [this, gone](uint32_t) {
      watch_->receive(gone, [this](const Gid& remote, uint16_t port) { confirm(remote, port); });
    };
    auto ready = process_.node().loop().watch(watch_->fd(), receive);
    if (!ready) {
      watch_.reset();
      return now + PeerPulse::kPauseNs;
    }
    watch_ready_ = std::move(*ready);
  }
  watches_.store(!ways.empty());
  return watch_->ask(ways, now, gone);
}

void Connections::process_exited(const Gid& remote, uint16_t port) {
  with_engine([&](ConnectionEngine& engine) {
    engine.peer_exited(remote, port, base::now_ns());
    return 0;
  });
}

void Connections::confirm(const Gid& remote, uint16_t port) {
  with_engine([&](ConnectionEngine& engine) {
    engine.confirm(remote, port);
    return 0;
  });
}

bool Connections::answer_probe(const core::MadDatagram& datagram) {
  const std::optional<Probe> probe = read_probe(datagram.bytes);
  if (!probe) return false;
  if (probe->is_echo) return true;
  core::MadDatagram echo = datagram;
  echo.bytes = write_probe({true, probe->port, process_.node().self().instance()});
  echo.remote.port = datagram.from_port;
  std::lock_guard lock(mutex_);
  if (!abandoned_) mads_->send(echo);
  return true;
}

void Connections::on_datagram(const core::MadDatagram& datagram) {
  Way way;
  way.local = datagram.local;
  way.remote = datagram.remote.address;
  way.interface = datagram.interface;
  way.port = datagram.remote.port;
  way.of_nupa = datagram.of_nupa;
  if (answer_probe(datagram)) return;
  if (pass_on(way, datagram.bytes)) return;
  with_engine([&](ConnectionEngine& engine) {
    engine.receive(datagram.bytes, way, base::now_ns());
    return 0;
  });
  if (way.of_nupa && !watches_.load() && !look_around_.exchange(true)) watch_due_.run_soon();
}

void Connections::on_relayed(const MadName& name) {
  while (const auto relayed = name.receive())
    with_engine([&](ConnectionEngine& engine) {
      engine.receive(relayed->mad, relayed->way, base::now_ns());
      return 0;
    });
}

bool Connections::pass_on(const Way& way, const Mad& mad) {
  const std::optional<Envelope> envelope = read_envelope(mad);
  if (!envelope || !relay_) return false;
  if (envelope->attribute == Attribute::kReq || envelope->attribute == Attribute::kSidrReq)
    return pass_on_request(*envelope, way, mad);
  if (envelope->attribute == Attribute::kRej && envelope->remote_id == 0) return pass_on_timeout(*envelope, way, mad);
  const uint32_t slot = envelope->remote_id >> ConnectionEngine::kIdBits;
  return slot != process_.slot() && slot != 0 && relay_->pass(MadName::of_slot(slot), way, mad);
}

bool Connections::pass_on_timeout(const Envelope& envelope, const Way& way, const Mad& mad) {
  const Rejection rejection = read_rejection(mad);
  if (rejection.reason != static_cast<uint16_t>(RejectReason::kTimeout)) return false;
  std::lock_guard lock(passed_on_mutex_);
  for (const PassedOn& passed : passed_on_)
    if (passed.ca_guid == rejection.ca_guid && passed.local_id == envelope.local_id)
      return relay_->pass(passed.name, way, mad);
  return false;
}

void Connections::note_passed_on(uint64_t ca_guid, uint32_t local_id, const std::string& name) {
  std::lock_guard lock(passed_on_mutex_);
  for (PassedOn& passed : passed_on_)
    if (passed.ca_guid == ca_guid && passed.local_id == local_id) {
      passed.name = name;
      return;
    }
  if (passed_on_.size() == kMostPassedOn) passed_on_.pop_front();
  passed_on_.push_back({ca_guid, local_id, name});
}

bool Connections::pass_on_request(const Envelope& envelope, const Way& way, const Mad& mad) {
  uint64_t service_id;
  std::optional<Gid> address;
  std::optional<uint64_t> ca_guid;
  if (envelope.attribute == Attribute::kReq) {
    const auto request = read_request(mad);
    if (!request) return false;
    ca_guid = request->ca_guid;
    service_id = request->service_id;
    address = destination_of(service_id, request->private_data.bytes);
  } else {
    const DatagramRequest request = read_datagram_request(mad);
    service_id = request.service_id;
    address = destination_of(service_id, request.private_data.bytes);
  }
  {
    std::lock_guard lock(mutex_);
    if (engine_.listens(service_id, address ? &*address : nullptr)) return false;
  }
  const auto pass = [&](const std::string& name) {
    if (!relay_->pass(name, way, mad)) return false;
    if (ca_guid) note_passed_on(*ca_guid, envelope.local_id, name);
    return true;
  };
  using Family = MadName::Family;
  if (!address) {
    // No header holds the address, so the process with the service on all addresses gets the message.
    constexpr Family kAll[] = {Family::kNone, Family::kIpv6, Family::kIpv4};
    return std::any_of(std::begin(kAll), std::end(kAll),
                       [&](Family family) { return pass(MadName::of_service(service_id, family)); });
  }
  const Family family = base::is_ipv4(*address) ? Family::kIpv4 : Family::kIpv6;
  if (pass(MadName::of_service(service_id, *address)) || pass(MadName::of_service(service_id, family))) return true;
  // A listener for all ports of an address has the name of port 0, which no program can ask for.
  constexpr uint64_t kPort = 0xffff;
  return pass(MadName::of_service(service_id & ~kPort, *address));
}

void Connections::seek_host_socket(int64_t now) {
  {
    std::lock_guard lock(mutex_);
    seeks_ = hears();
    if (!seeks_ || host_socket_ != nullptr || mads_->receives_for_host()) return;
  }
  auto socket = mads_->open_host_socket();
  if (!socket) return seek_due_.set_at_latest(now + kSeekPauseNs);
  host_socket_ = std::move(*socket);
  const auto receive = [this](uint32_t) {
    host_socket_->receive([this](const core::MadDatagram& datagram) { on_datagram(datagram); });
  };
  auto ready = process_.node().loop().watch(host_socket_->fd(), receive);
  if (ready) {
    host_socket_ready_ = std::move(*ready);
    return;
  }
  host_socket_.reset();
  seek_due_.set_at_latest(now + kSeekPauseNs);
}

int Connections::accept(ConnectionId id, const ConnectionReply& reply) {
  return with_engine([&](ConnectionEngine& engine) { return engine.accept(id, reply, base::now_ns()); });
}

int Connections::answer_datagram(ConnectionId id, const DatagramReply& reply) {
  return with_engine([&](ConnectionEngine& engine) { return engine.answer_datagram(id, reply, base::now_ns()); });
}

int Connections::reject(ConnectionId id, RejectReason reason, const PrivateData<148>& data) {
  return with_engine(
      [&](ConnectionEngine& engine) { return engine.reject(id, static_cast<uint16_t>(reason), data, base::now_ns()); });
}

int Connections::establish(ConnectionId id) {
  return with_engine([&](ConnectionEngine& engine) { return engine.establish(id, {}, base::now_ns()); });
}

int Connections::note_established(ConnectionId id) {
  return with_engine([&](ConnectionEngine& engine) { return engine.note_established(id); });
}

int Connections::disconnect(ConnectionId id) {
  return with_engine([&](ConnectionEngine& engine) { return engine.disconnect(id, base::now_ns()); });
}

void Connections::release(ConnectionId id) {
  with_engine([&](ConnectionEngine& engine) {
    std::erase_if(questions_, [id](const auto& entry) { return entry.second.id == id; });
    engine.release(id, base::now_ns());
    return 0;
  });
}

}  // namespace nupa::cm

namespace nupa {

Result<std::shared_ptr<ConnectionManager>> ConnectionManager::open(ConnectionSink& sink) {
  auto process = core::Process::acquire();
  if (!process) return tl::unexpected(process.error());
  cm::Connections* const connections = cm::Connections::of(**process);
  if (connections == nullptr) return fail(EOPNOTSUPP, "this library has no communication manager");
  if (auto attached = connections->attach(sink); !attached) return tl::unexpected(attached.error());
  return std::shared_ptr<ConnectionManager>(connections, [kept = std::move(*process)](ConnectionManager* manager) {
    static_cast<cm::Connections*>(manager)->detach();
  });
}

}  // namespace nupa
