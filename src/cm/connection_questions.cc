// SPDX-License-Identifier: Apache-2.0
/// Requests of this process to others: finding the process with a service, and the first message to it.
#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/gid.h"
#include "base/gid_text.h"
#include "cm/connections.h"

namespace nupa::cm {
namespace {

/// A process that does not answer, for example a stopped one, delays a connect by no more than this.
constexpr std::chrono::milliseconds kMeetTimeout{100};
/// How long a missing service is looked for, and the first pause between attempts.
constexpr int64_t kListenerTimeoutNs = INT64_C(150'000'000);
constexpr int64_t kFirstAskPauseNs = INT64_C(5'000'000);

bool takes(const shm::ListenerShared& listener, uint64_t service_id, const Gid* address) {
  if (listener.in_use.load(std::memory_order_acquire) == 0) return false;
  if ((service_id & listener.mask) != (listener.service_id & listener.mask)) return false;
  const uint32_t flags = listener.flags;
  if ((flags & shm::kListenAnyAddress) == 0) return address != nullptr && *address == listener.address;
  if (address == nullptr) return true;
  return (flags & (base::is_ipv4(*address) ? shm::kListenOnlyV6 : shm::kListenOnlyV4)) == 0;
}

/// Finds a process of this host and user for which `fits` is true. It connects to processes that are unknown so far. If
/// the limit of descriptors permits no further connection, the unknown process could be the right one. Then nothing is
/// returned if packets lead there, too (`has_packets`), and no other process is tried.
template <class Fits>
std::optional<Way> find_process(host::Node& node, bool has_packets, Fits&& fits) {
  const auto way_of = [](const host::Peer& peer) {
    Way way;
    way.slot = peer.slot();
    way.instance = peer.instance();
    return way;
  };
  if (fits(node.self())) return way_of(node.self());
  std::vector<uint32_t> met{node.self().slot()};
  for (const host::PeerRef& peer : node.peers()) {
    if (peer->alive() && fits(*peer)) return way_of(*peer);
    met.push_back(peer->slot());
  }
  for (const uint32_t slot : node.slots()) {
    if (std::find(met.begin(), met.end(), slot) != met.end()) continue;
    // The service thread does not wait. It calls again, and then finds the process that has answered meanwhile.
    auto peer = node.connect(slot, node.on_service_thread() ? std::chrono::milliseconds(0) : kMeetTimeout);
    if (peer && (*peer)->alive() && fits(**peer)) return way_of(**peer);
    if (!peer && peer.error().code() == EMFILE && has_packets) break;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Way> Connections::find_listener(uint64_t service_id, const Gid* address, const Gid& gid) {
  return find_process(process_.node(), mads_ != nullptr, [&](host::Peer& peer) {
    const shm::Tables& tables = peer.tables();
    if (!shm::has_gid(*tables.header, gid)) return false;
    const uint32_t count = std::min(tables.header->listener_high_water.load(), shm::kMaxListeners);
    return std::any_of(tables.listeners, tables.listeners + count,
                       [&](const shm::ListenerShared& listener) { return takes(listener, service_id, address); });
  });
}

bool Connections::has_process_at(const Gid& address) const {
  return find_process(process_.node(), mads_ != nullptr,
                      [&](host::Peer& peer) { return shm::has_gid(*peer.tables().header, address); })
      .has_value();
}

Result<void> Connections::check_reach(const Gid& address) const {
  if ((mads_ != nullptr && mads_->leads_to(address)) || has_process_at(address)) return {};
  return fail(EHOSTUNREACH, "no transport reaches ", base::gid_text(address));
}

Result<Way> Connections::way_to(uint64_t service_id, std::span<const std::byte> private_data,
                                const ConnectionRoute& route) {
  const std::optional<Gid> address = destination_of(service_id, private_data);
  if (process_.transports().share_memory()) {
    if (auto way = find_listener(service_id, address ? &*address : nullptr, route.path.remote)) return *way;
  }
  Way way;
  if (mads_ != nullptr && mads_->leads_to(route.path.remote)) {
    way.local = route.path.local;
    way.remote = route.path.remote;
    const core::HostWay to_host = mads_->way_to_host(process_.devices()[route.device], route.gid_index, way.remote);
    way.port = to_host.port;
    way.interface = to_host.interface;
    return way;
  }
  // No process of this host has the service, so this process rejects the request itself.
  way.slot = process_.slot();
  way.instance = process_.node().self().instance();
  if (auto reached = check_reach(route.path.remote); !reached) return tl::unexpected(reached.error());
  return way;
}

template <class Ask>
int Connections::ask(Asked asked_for, uint64_t service_id, std::span<const std::byte> private_data,
                     const ConnectionRoute& route, uint64_t owner, ConnectionId* id, Ask&& ask) {
  auto way = way_to(service_id, private_data, route);
  if (!way) return way.error().code();
  return with_engine([&](ConnectionEngine& engine) {
    Question question;
    question.asked_for = asked_for;
    question.service_id = service_id;
    question.private_data.assign(private_data.begin(), private_data.end());
    question.route = route;
    question.until_ns = base::now_ns() + kListenerTimeoutNs;
    question.pause_ns = kFirstAskPauseNs;
    questions_[owner] = std::move(question);
    const int error = ask(engine, *way);
    const auto asked = questions_.find(owner);
    if (error == 0 && asked != questions_.end())
      asked->second.id = *id;
    else
      questions_.erase(owner);
    return error;
  });
}

int Connections::connect(const ConnectionRequest& request, const ConnectionRoute& route, uint64_t owner,
                         ConnectionId* id) {
  return ask(Asked::kConnection, request.service_id, request.private_data.bytes, route, owner, id,
             [&](ConnectionEngine& engine, const Way& way) {
               return engine.connect(request, way, owner, base::now_ns(), id);
             });
}

int Connections::ask_datagram(const DatagramRequest& request, const ConnectionRoute& route, uint64_t owner,
                              ConnectionId* id) {
  return ask(Asked::kDatagramService, request.service_id, request.private_data.bytes, route, owner, id,
             [&](ConnectionEngine& engine, const Way& way) {
               return engine.ask_datagram(request, way, owner, base::now_ns(), id);
             });
}

bool Connections::will_ask_again(uint64_t owner) {
  const auto found = questions_.find(owner);
  const int64_t now = base::now_ns();
  if (found == questions_.end() || now >= found->second.until_ns) return false;
  Question& question = found->second;
  question.next_ns = std::min(now + question.pause_ns, question.until_ns);
  question.pause_ns *= 2;
  questions_due_.set_at_latest(question.next_ns);
  return true;
}

void Connections::ask_again(int64_t now) {
  std::vector<std::pair<uint64_t, Question>> due;
  {
    std::lock_guard lock(mutex_);
    for (auto& [owner, question] : questions_) {
      if (question.next_ns <= now) {
        due.emplace_back(owner, question);
        question.next_ns = INT64_MAX;
      }
      questions_due_.set_at_latest(question.next_ns);
    }
  }
  for (const auto& [owner, question] : due) {
    const auto way = way_to(question.service_id, question.private_data, question.route);
    std::unique_lock lock(mutex_);
    const auto found = questions_.find(owner);
    if (found == questions_.end() || found->second.id != question.id) continue;  // released or answered
    if (way)
      engine_.ask_again(question.id, *way, base::now_ns());
    else  // the last process with the address has ended
      stays_refused(owner, question);
    settle(std::move(lock));
  }
}

void Connections::stays_refused(uint64_t owner, const Question& question) {
  if (question.asked_for == Asked::kConnection)
    return on_rejected(owner, static_cast<uint16_t>(RejectReason::kInvalidServiceId), {});
  DatagramReply none;
  none.status = DatagramStatus::kUnsupported;
  on_datagram_reply(owner, none);
}

}  // namespace nupa::cm
