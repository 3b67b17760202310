// SPDX-License-Identifier: Apache-2.0
#include "netdev/node.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/gid.h"
#include "base/log.h"
#include "base/system_error.h"
#include "progress/waiter.h"

namespace nupa::netdev {
namespace {

/// The time until a connection must carry packets. It limits how long a replayed request holds resources.
constexpr int64_t kHandshakeTimeoutNs = 5 * progress::kNsPerSecond;
constexpr int64_t kSettlingNs = progress::kNsPerSecond;
constexpr size_t kMaxSessions = 1024;
constexpr int kOtherTimeoutMs = 1000;
constexpr int kInterfaceTries = 50;
constexpr int64_t kInterfacePauseNs = 20 * progress::kNsPerMs;

}  // namespace

Result<std::unique_ptr<Node>> Node::start(NodeOptions options) {
  if (options.addresses.empty()) return fail(EINVAL, "a node needs an address");
  if (options.node.empty()) options.node = text_of(options.addresses.front().address);
  const bool has_ipv6 = std::any_of(options.addresses.begin(), options.addresses.end(),
                                    [](const Prefix& prefix) { return !prefix.is_ipv4(); });
  if (has_ipv6) options.addresses.push_back(link_local_of(options.node));
  static_assert(kMaxAddresses == 16);
  if (options.addresses.size() > kMaxAddresses)
    return fail(EINVAL, "a node has at most 16 addresses; with an IPv6 address, its link-local address counts, too");
  if (!is_name(options.network, kLongestNetwork) || !is_name(options.node, kLongestNode))
    return fail(EINVAL, kNamesHave);
  auto loop = progress::Loop::open(*options.clock);
  if (!loop) return tl::unexpected(loop.error());
  std::unique_ptr<Node> node(new Node(std::move(options), std::move(*loop)));
  if (auto opened = node->open(); !opened) return tl::unexpected(opened.error());
  return node;
}

Result<void> Node::open() {
  started_ns_ = clock_.now_ns();
  const auto open_control_socket = [this] {
    return ControlSocket::open(
        *loop_, options_.network, options_.node,
        [this](const std::string& question) { return answer_at_control_socket(question); }, clock_);
  };
  auto control_socket = open_control_socket();
  // A node that was just killed may still have its socket open, but does not answer.
  for (int tries = kInterfaceTries; !control_socket && control_socket.error().code() == EEXIST && tries > 0; --tries) {
    if (ControlSocket::ask(options_.network, options_.node, R"({"do":"who"})", kOtherTimeoutMs)) break;
    progress::sleep_for(kInterfacePauseNs);
    control_socket = open_control_socket();
  }
  if (!control_socket) return tl::unexpected(control_socket.error());
  control_socket_ = std::move(*control_socket);
  // Before the interface exists, because its address is no path to other nodes.
  const std::vector<DeviceName> devices = list_devices();
  if (devices.empty()) return fail(ENODEV, "no NUPA device (check NUPA_DEVICES)");
  // The device of a pool leads to the pool alone.
  const auto leads_to_networks = [](const DeviceName& name) { return name.neighbours.empty(); };
  auto chosen = std::find_if(devices.begin(), devices.end(), leads_to_networks);
  if (chosen == devices.end()) chosen = devices.begin();
  auto device = open_device(chosen->name);
  if (!device) return tl::unexpected(device.error());
  device_ = std::move(*device);
  auto pd = device_->alloc_pd();
  if (!pd) return tl::unexpected(pd.error());
  pd_ = std::move(*pd);
  auto channel = device_->create_channel();
  if (!channel) return tl::unexpected(channel.error());
  channel_ = std::move(*channel);
  fcntl(channel_->fd(), F_SETFL, O_NONBLOCK);
  auto channel_ready = loop_->watch(channel_->signal_fd(), [this](uint32_t) {
    [[maybe_unused]] auto taken = channel_->wait();
    look_.run_soon();
  });
  if (!channel_ready) return tl::unexpected(channel_ready.error());
  channel_ready_ = std::move(*channel_ready);
  constexpr uint32_t kEntries = 8 * kMaxSessions;
  auto cq = device_->create_cq({.entries = kEntries, .channel = channel_.get()});
  if (!cq) return tl::unexpected(cq.error());
  cq_ = std::move(*cq);
  for (const uint32_t index : {1u, 0u})  // an address of the host if there is one, otherwise the link-local address
    if (auto entry = device_->query_gid(1, index); entry && gid_ == Gid{}) gid_ = entry->gid;

  auto tun = TunDevice::open(options_.interface, options_.queues);
  // The kernel may still be removing the interface of a node that was just killed.
  for (int tries = kInterfaceTries; !tun && tun.error().code() == EBUSY && tries > 0; --tries) {
    progress::sleep_for(kInterfacePauseNs);
    tun = TunDevice::open(options_.interface, options_.queues);
  }
  if (!tun) return tl::unexpected(tun.error());
  tun_ = std::make_unique<TunDevice>(std::move(*tun));
  tun_->have_own_addresses_only(!options_.addresses.back().is_ipv4());
  int error = tun_->set_mtu(options_.mtu);
  for (const Prefix& prefix : options_.addresses)
    if (error == 0) error = tun_->add_address(prefix);
  if (error == 0) error = tun_->bring_up();
  if (error != 0)
    return fail(error, "cannot set the MTU and the addresses of interface ", options_.interface, ": ",
                std::strerror(error));

  auto manager = ConnectionManager::open(events_);
  if (!manager) return tl::unexpected(manager.error());
  manager_ = std::move(*manager);
  PeerInfo self;
  self.node = options_.node;
  self.addresses = options_.addresses;
  self.mtu = options_.mtu;
  self.takes_datagrams = tun_->takes_datagrams();
  if (getrandom(&self.instance, sizeof self.instance, 0) != sizeof self.instance)
    return base::fail_call(errno, "cannot get random numbers from the kernel");
  context_ = std::make_unique<NodeContext>(NodeContext{*device_,
                                                       *pd_,
                                                       *cq_,
                                                       *manager_,
                                                       options_.key,
                                                       options_.network,
                                                       self,
                                                       {},
                                                       1,
                                                       clock_,
                                                       static_cast<uint32_t>(chosen - devices.begin())});
  for (const base::UniqueFd& queue : tun_->queues()) {
    auto packet_loop = PacketLoop::start(
        *device_, queue.get(), {options_.addresses, options_.mtu},
        {[this] { look_.run_soon(); }, [this](int why) { events_.push(0, Events::InterfaceLost{why}); }});
    if (!packet_loop) return tl::unexpected(packet_loop.error());
    context_->packet_loops.push_back(std::move(*packet_loop));
  }
  ListenerAddress listener;
  listener.service_id = service_of(options_.network, options_.node);
  error = manager_->bind(Events::kOfNode, listener);
  if (error == 0) error = manager_->listen(Events::kOfNode);
  if (error != 0)
    return fail(error, "node ", options_.node, " of network ", options_.network,
                " cannot listen for connections: ", std::strerror(error));
  listener.service_id = service_of(options_.network);
  // If two nodes of a network share a host's network, only the first one can be found by the host's address.
  if (manager_->bind(Events::kOfNetwork, listener) == 0) manager_->listen(Events::kOfNetwork);

  search_ = std::make_unique<Search>(
      *loop_, options_.network, *manager_, gid_,
      Search::Hooks{[this](uint64_t service, const ConnectionRoute& route) { return connect(service, route); },
                    [this](const std::string& node) { return is_connected(node); }, [this] { look_.run_soon(); }});
  for (const auto& [network, name] : ControlSocket::list(options_.network))
    if (name != options_.node) search_->add_node(name);
  for (const Gid& address : options_.peers) search_->add_address(address);
  for (const DeviceName& each : devices)
    for (const Gid& address : each.neighbours) search_->add_neighbour(address);
  return {};
}

Node::~Node() {
  search_.reset();
  sessions_.clear();
  if (context_ != nullptr) context_->packet_loops.clear();
  manager_.reset();
  tun_.reset();
}

bool Node::is_settled(int64_t now) const {
  if (now - started_ns_ >= kSettlingNs) return true;
  bool all = true;
  search_->each([&](const Search::Target& target) {
    const Session* const session = session_of(target.session);
    const bool is_up = session != nullptr && session->state() == Session::State::kUp;
    all &= is_up || !target.why_not.empty();
  });
  return all;
}

int Node::run(int until_fd, const std::function<void()>& on_settled) {
  on_settled_ = on_settled;
  const auto until = loop_->watch(until_fd, [this](uint32_t) { loop_->stop(); });
  if (!until) {
    NUPA_ERROR("net %s: %s", options_.network.c_str(), until.error().what());
    return until.error().code();
  }
  look_.run_soon();
  loop_->run();
  return error_;
}

void Node::look_after_all() {
  // The queue is armed before this check, so anything that arrives later wakes this thread.
  cq_->arm(true);
  take_completions();
  take_events();
  const int64_t now = clock_.now_ns();
  look_after(now);
  if (measurement_ && measurement_->ends_ns <= now) control_socket_->answer_waiting(status());
  if (!settled_ && is_settled(now)) {
    settled_ = true;
    on_settled_();
  }
  look_.set_at_latest(next_deadline());
}

Session* Node::session_of(uint64_t owner) const {
  const auto found = sessions_.find(owner);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void Node::take_events() {
  for (Events::Event& event : events_.take()) take(event);
}

void Node::take(Events::Event& event) {
  if (const auto* lost = std::get_if<Events::InterfaceLost>(&event.what); lost != nullptr && error_ == 0) {
    error_ = lost->error;
    NUPA_ERROR("net %s: interface %s %s: node %s exits", options_.network.c_str(), options_.interface.c_str(),
               error_ == ENODEV ? "was removed" : "cannot be served without memory", options_.node.c_str());
    loop_->stop();
  }
  if (const auto* asked = std::get_if<Events::Asked>(&event.what)) {
    if (sessions_.size() >= kMaxSessions) {
      manager_->reject(asked->id, RejectReason::kNoResources, {});
      manager_->release(asked->id);
      return;
    }
    auto session = Session::answer(*context_, asked->owner, asked->id, asked->request);
    if (session)
      sessions_[asked->owner] = std::move(*session);
    else if (session.error().code() == EACCES)
      ++unknown_peers_;
    else
      NUPA_WARN("net: a connection request was not accepted: %s", session.error().what());
  }
  Session* const session = session_of(event.owner);
  if (session == nullptr) return;
  if (const auto* replied = std::get_if<Events::Replied>(&event.what)) session->on_reply(replied->reply);
  if (const auto* ended = std::get_if<Events::Ended>(&event.what)) session->end(ended->why);
}

void Node::take_completions() {
  constexpr int kCount = 32;
  WorkCompletion completions[kCount];
  for (int count; (count = cq_->poll(completions, kCount)) > 0;)
    for (int i = 0; i < count; ++i)
      if (Session* session = session_of(completions[i].wr_id >> 1); session != nullptr)
        session->on_completion(completions[i]);
}

// Connections.

void Node::look_after(int64_t now) {
  for (auto next = sessions_.begin(); next != sessions_.end();) {
    const auto at = next++;
    look_at(*at->second, now);
    if (at->second->state() != Session::State::kOver) continue;
    forget(*at->second, now);
    sessions_.erase(at);
  }
  search_->look(now);
}

void Node::look_at(Session& session, int64_t now) {
  if (session.has_new_peer_info()) {
    const std::string objection = objection_to(session);
    if (objection.empty())
      session.accept();
    else
      session.reject(objection);
  }
  if (session.state() == Session::State::kUp) {
    Peer& peer = peers_[session.peer_info()->node];
    if (peer.session != session.owner()) come_up(session, now);
    if (const int error = session.channel_error(); error != 0)
      session.end(std::string("a channel failed: ") + strerror(error));
  } else if (session.state() != Session::State::kOver && now - session.began_ns() >= kHandshakeTimeoutNs) {
    session.end(session.why().empty() ? "the peer does not answer" : session.why());
  }
}

std::string Node::objection_to(const Session& session) {
  const PeerInfo& peer_info = *session.peer_info();
  if (peer_info.instance == context_->self.instance) return "this is the same node";
  if (peer_info.node == options_.node) return "the node name " + peer_info.node + " is in use";
  for (const Prefix& prefix : peer_info.addresses) {
    if (context_->self.has(prefix.address))
      return "address " + text_of(prefix.address) + " belongs to node " + options_.node;
    // Sessions that are agreed but not up count, too, as they may have arrived at the same moment.
    for (const auto& [owner, other] : sessions_) {
      const bool has_agreed = other->state() == Session::State::kAgreed || other->state() == Session::State::kUp;
      if (has_agreed && other->peer_info()->node != peer_info.node && other->peer_info()->has(prefix.address))
        return "address " + text_of(prefix.address) + " belongs to node " + other->peer_info()->node;
    }
  }
  const auto known = peers_.find(peer_info.node);
  if (known == peers_.end() || known->second.session == 0 || known->second.instance != peer_info.instance) return {};
  // Both nodes have connected at once: the connection that the lesser name requested stays. Otherwise the older
  // connection is dead, and this side has not noticed that yet.
  const Session* present = session_of(known->second.session);
  if (present == nullptr || present->asks() == session.asks()) return {};
  return is_the_one_to_stay(session) ? "" : "the nodes are already connected";
}

void Node::come_up(Session& session, int64_t now) {
  const PeerInfo& peer_info = *session.peer_info();
  Peer& peer = peers_[peer_info.node];
  if (Session* before = session_of(peer.session); before != nullptr) {
    if (peer.instance == peer_info.instance && before->asks() != session.asks() && !is_the_one_to_stay(session))
      return session.end("the nodes are already connected");
    before->end("replaced by a newer connection");
    forget(*before, now);
  }
  peer.session = session.owner();
  peer.instance = peer_info.instance;
  peer.addresses = peer_info.addresses;
  peer.mtu = peer_info.mtu;
  peer.since_ns = now;
  ++peer.connections;
  session.activate();
  search_->came_up(session);
  NUPA_INFO("net %s: node %s connected", options_.network.c_str(), peer_info.node.c_str());
}

void Node::forget(Session& session, int64_t now) {
  search_->ended(session, now);
  if (session.state() == Session::State::kOver)
    NUPA_DEBUG("net %s: a connection to %s ended: %s", options_.network.c_str(),
               session.peer_info() != nullptr ? session.peer_info()->node.c_str() : "an unknown node",
               session.why().c_str());
  if (session.peer_info() == nullptr) return;
  // A rejected connection that this node requested is shown with the address of the request.
  if (session.was_refused() && !session.asks()) note_refusal(session, now);
  const auto found = peers_.find(session.peer_info()->node);
  if (found == peers_.end() || found->second.session != session.owner()) return;
  Peer& peer = found->second;
  peer.before.add(session);
  peer.session = 0;
  peer.why_not = session.why();
  peer.since_ns = now;
  NUPA_INFO("net %s: node %s disconnected: %s", options_.network.c_str(), found->first.c_str(), session.why().c_str());
}

void Node::note_refusal(const Session& session, int64_t now) {
  Peer& peer = peers_[session.peer_info()->node];
  if (peer.session != 0) return;
  // The node retries, so the same reason is logged only once.
  if (peer.why_not != session.why()) NUPA_WARN("net %s: %s", options_.network.c_str(), session.why().c_str());
  peer.addresses = session.peer_info()->addresses;
  peer.mtu = session.peer_info()->mtu;
  peer.why_not = session.why();
  peer.since_ns = now;
}

Result<uint64_t> Node::connect(uint64_t service, const ConnectionRoute& route) {
  const uint64_t owner = events_.new_owner();
  auto session = Session::ask(*context_, owner, service, route);
  if (!session) return tl::unexpected(session.error());
  sessions_[owner] = std::move(*session);
  return owner;
}

bool Node::is_connected(const std::string& node) const {
  const auto peer = peers_.find(node);
  return peer != peers_.end() && peer->second.session != 0;
}

int64_t Node::next_deadline() const {
  int64_t next = std::min(search_->next_deadline(), settled_ ? INT64_MAX : started_ns_ + kSettlingNs);
  if (measurement_) next = std::min(next, measurement_->ends_ns);
  for (const auto& [owner, session] : sessions_)
    if (session->state() != Session::State::kUp) next = std::min(next, session->began_ns() + kHandshakeTimeoutNs);
  return next;
}

}  // namespace nupa::netdev
