// SPDX-License-Identifier: Apache-2.0
#include "gateway/gateway.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "base/gid_text.h"
#include "base/log.h"
#include "base/system_error.h"

namespace nupa::gateway {
namespace {

constexpr uint64_t kTcpPortSpace = uint64_t{0x0106} << 16;  // RDMA_PS_TCP, annex A11
constexpr uint64_t kAllPorts = 0xffff;
constexpr int kCompletions = 64;
/// The gateway looks for work for so long before it sleeps: a sleeping thread costs each message two wake-ups.
constexpr int64_t kAwakeNs = 50'000;
/// A turn ends after this time, so that descriptors and timers have their turns.
constexpr int64_t kTurnNs = 1'000'000;
/// How often the gateway looks whether a far end waits for a receive.
constexpr int64_t kLookNs = 5'000'000;
/// Requests under way when one side disconnects have this time to arrive at the other side.
constexpr int64_t kCloseNs = 100'000'000;

/// Owners of connections: an even number for the near side, the next one for the far side. Listeners are counted
/// from 1.
constexpr uint64_t kFirstOwner = 1u << 20;
constexpr uint64_t owner_of(uint64_t number, bool near) { return kFirstOwner + 2 * number + (near ? 0 : 1); }
constexpr uint64_t number_of(uint64_t owner) { return (owner - kFirstOwner) / 2; }
constexpr bool is_near(uint64_t owner) { return (owner - kFirstOwner) % 2 == 0; }

}  // namespace

Result<std::unique_ptr<Gateway>> Gateway::open(const GatewayOptions& options) {
  std::unique_ptr<Gateway> gateway(new Gateway(options));
  if (auto opened = gateway->open(); !opened) return tl::unexpected(opened.error());
  return gateway;
}

Result<void> Gateway::open() {
  auto loop = progress::Loop::open();
  if (!loop) return tl::unexpected(loop.error());
  loop_ = std::move(*loop);
  go_on_ = std::make_unique<progress::Loop::Timer>(*loop_, [this](int64_t) { work(); });
  auto manager = ConnectionManager::open(*this);
  if (!manager) return tl::unexpected(manager.error());
  manager_ = std::move(*manager);
  for (size_t i = 0; i < options_.mappings.size(); ++i) {
    const Mapping& mapping = options_.mappings[i];
    const auto found = manager_->find_address(mapping.listen);
    if (!found) return tl::unexpected(found.error());
    if (auto side = side_of(found->device); !side) return tl::unexpected(side.error());
    ListenerAddress address;
    address.service_id = kTcpPortSpace | mapping.listen_port;
    if (mapping.listen_port == 0) address.mask = ~kAllPorts;
    address.any_address = false;
    address.address = mapping.listen;
    const uint64_t owner = i + 1;
    int error = manager_->bind(owner, address);
    if (error == 0) error = manager_->listen(owner);
    if (error != 0) return base::fail_call(error, "cannot listen for ", mapping.text());
  }
  return {};
}

Gateway::~Gateway() {
  channel_ready_.reset();
  manager_.reset();
  connections_.clear();
  go_on_.reset();  // relays and events of the manager have used it
  // The channel belongs to the first device, and the completion queues use it.
  for (auto& [index, open] : devices_) open.cq.reset();
  channel_.reset();
}

Result<Side> Gateway::side_of(uint32_t index) {
  auto found = devices_.find(index);
  if (found == devices_.end()) {
    const auto listed = list_devices();
    if (index >= listed.size()) return fail(ENODEV, "no NUPA device has number ", std::to_string(index));
    auto device = open_device(listed[index].name);
    if (!device) return tl::unexpected(device.error());
    OpenDevice made;
    made.device = std::move(*device);
    if (channel_ == nullptr) {
      auto channel = made.device->create_channel();
      if (!channel) return tl::unexpected(channel.error());
      channel_ = std::move(*channel);
      if (fcntl(channel_->fd(), F_SETFL, O_NONBLOCK) != 0)
        return base::fail_call(errno, "cannot make a completion channel non-blocking");
    }
    auto pd = made.device->alloc_pd();
    if (!pd) return tl::unexpected(pd.error());
    made.pd = std::move(*pd);
    auto cq = made.device->create_cq(
        {.entries = 2 * Direction::kDepth * options_.most_connections, .channel = channel_.get()});
    if (!cq) return tl::unexpected(cq.error());
    made.cq = std::move(*cq);
    found = devices_.emplace(index, std::move(made)).first;
  }
  const OpenDevice& open = found->second;
  return Side{open.device.get(), open.pd.get(), open.cq.get()};
}

// ---- events of the communication manager ----------------------------------------------------------------------------

void Gateway::note(uint64_t owner, decltype(Event::what) what) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back({owner, std::move(what)});
  }
  has_work_ = true;
  if (sleeps_.exchange(false)) go_on_->run_soon();
}

uint64_t Gateway::on_request(uint64_t owner, ConnectionId id, const ConnectionRequest& request) {
  uint64_t made;
  {
    const std::lock_guard lock(mutex_);
    made = owner_of(next_number_++, true);
  }
  note(made, Requested{owner, id, request});
  return made;
}

uint64_t Gateway::on_datagram_request(uint64_t, ConnectionId, const DatagramRequest&) { return 0; }
void Gateway::on_reply(uint64_t owner, const ConnectionReply& reply) { note(owner, Replied{reply}); }
void Gateway::on_established(uint64_t owner, const PrivateData<224>&) { note(owner, Established{}); }
void Gateway::on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>& data) {
  note(owner, Rejected{reason, data});
}
void Gateway::on_unreachable(uint64_t owner) { note(owner, Unreachable{}); }
void Gateway::on_disconnected(uint64_t owner, bool) { note(owner, Ended{}); }

// ---- the gateway's thread -------------------------------------------------------------------------------------------

Result<void> Gateway::run(int ended) {
  auto watch = loop_->watch(ended, [this](uint32_t) { loop_->stop(); });
  if (!watch) return tl::unexpected(watch.error());
  auto channel_ready = loop_->watch(channel_->signal_fd(), [this](uint32_t) {
    [[maybe_unused]] auto taken = channel_->wait();
    go_on_->run_soon();
  });
  if (!channel_ready) return tl::unexpected(channel_ready.error());
  channel_ready_ = std::move(*channel_ready);
  go_on_->run_soon();
  loop_->run();
  channel_ready_.reset();
  return {};
}

void Gateway::arm() {
  for (auto& [index, open] : devices_) open.cq->arm(false);
}

void Gateway::work() {
  sleeps_ = false;
  const int64_t begin = base::now_ns();
  active_ns_ = begin;
  for (bool armed = false;;) {
    bool busy = take_completions();
    if (has_work_.exchange(false)) {
      busy = take_events() || busy;
      move_requests();
    }
    const int64_t now = base::now_ns();
    if (now - looked_ns_ >= kLookNs) {
      looked_ns_ = now;
      look();
      close_ended(now);
    }
    if (busy) {
      active_ns_ = now;
      armed = false;
    }
    if (now - begin >= kTurnNs && (busy || now - active_ns_ < kAwakeNs)) return go_on_->run_soon();
    if (now - active_ns_ < kAwakeNs) continue;
    if (armed) break;
    // Once more after arming: earlier completions raise no event.
    arm();
    sleeps_ = true;
    armed = true;
  }
  bool is_under_way = false;
  for (auto& [number, connection] : connections_)
    is_under_way =
        is_under_way || connection.closes_by_ns != 0 || (connection.splice != nullptr && !connection.splice->is_idle());
  if (is_under_way) go_on_->set_at_latest(base::now_ns() + kLookNs);
  if (has_work_) go_on_->run_soon();
}

bool Gateway::take_completions() {
  bool found = false;
  for (auto& [index, open] : devices_) {
    std::array<WorkCompletion, kCompletions> completions;
    const int count = open.cq->poll(completions.data(), kCompletions);
    std::array<Direction*, kCompletions> touched;
    size_t directions = 0;
    for (int i = 0; i < count; ++i) {
      auto* const direction = reinterpret_cast<Direction*>(completions[static_cast<size_t>(i)].wr_id);
      direction->note_end(completions[static_cast<size_t>(i)].status);
      if (std::find(touched.begin(), touched.begin() + directions, direction) == touched.begin() + directions)
        touched[directions++] = direction;
    }
    for (size_t i = 0; i < directions; ++i) touched[i]->settle();
    found = found || count > 0;
  }
  return found;
}

void Gateway::move_requests() {
  for (auto& [number, connection] : connections_)
    if (connection.splice != nullptr) connection.splice->move();
}

void Gateway::look() {
  for (auto& [number, connection] : connections_)
    if (connection.splice != nullptr) connection.splice->look();
}

bool Gateway::take_events() {
  std::vector<Event> events;
  {
    const std::lock_guard lock(mutex_);
    events.swap(events_);
  }
  for (Event& event : events) {
    if (auto* const requested = std::get_if<Requested>(&event.what)) {
      handle(event.owner, *requested);
      continue;
    }
    const auto found = connections_.find(number_of(event.owner));
    if (found == connections_.end()) continue;
    const bool near = is_near(event.owner);
    std::visit(
        [&](auto& what) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(what)>, Requested>) handle(found->second, near, what);
        },
        event.what);
  }
  return !events.empty();
}

void Gateway::handle(uint64_t owner, Requested& event) {
  Connection& connection = connections_[number_of(owner)];
  connection.number = number_of(owner);
  connection.mapping = &options_.mappings[event.listener - 1];
  connection.near = event.id;
  if (event.request.type != QpType::kRc)
    return reject(connection, static_cast<uint16_t>(RejectReason::kInvalidTransportType), {});
  if (connections_.size() > options_.most_connections)
    return reject(connection, static_cast<uint16_t>(RejectReason::kNoResources), {});
  if (auto asked = ask_far(connection, event.request); !asked) {
    NUPA_WARN("%s: a connection is rejected: %s", connection.mapping->text().c_str(), asked.error().what());
    reject(connection, static_cast<uint16_t>(RejectReason::kNoResources), {});
  }
}

Result<void> Gateway::ask_far(Connection& connection, const ConnectionRequest& request) {
  const Mapping& mapping = *connection.mapping;
  const auto near_route = manager_->find_address(mapping.listen);
  if (!near_route) return tl::unexpected(near_route.error());
  const auto far_route = manager_->find_route(mapping.far, 0, nullptr);
  if (!far_route) return tl::unexpected(far_route.error());
  const auto near = side_of(near_route->device);
  if (!near) return tl::unexpected(near.error());
  const auto far = side_of(far_route->device);
  if (!far) return tl::unexpected(far.error());
  auto splice = Splice::create(*near, *near_route, *far, *far_route, request, options_.window, [this] {
    has_work_.store(true);
    if (sleeps_.exchange(false)) go_on_->run_soon();
  });
  if (!splice) return tl::unexpected(splice.error());
  connection.splice = std::move(*splice);
  const int error = manager_->connect(connection.splice->far_request(mapping), connection.splice->far_route(),
                                      owner_of(connection.number, false), &connection.far);
  if (error != 0) return base::fail_call(error, "cannot connect to ", base::gid_text(mapping.far));
  return {};
}

void Gateway::handle(Connection& connection, bool near, const Replied& event) {
  if (near || connection.is_accepted) return;
  int error = connection.splice->connect(event.reply);
  if (error == 0) error = manager_->accept(connection.near, connection.splice->near_reply(event.reply));
  connection.is_accepted = error == 0;
  if (error == 0) return;
  NUPA_WARN("%s: a connection is rejected: errno %d", connection.mapping->text().c_str(), error);
  reject(connection, static_cast<uint16_t>(RejectReason::kNoResources), {});
}

void Gateway::handle(Connection& connection, bool near, const Established&) {
  if (!near || connection.is_established) return;
  if (manager_->establish(connection.far) != 0) return end(connection);
  connection.is_established = true;
  connection.splice->begin();
  connection.splice->move();
}

void Gateway::handle(Connection& connection, bool near, const Rejected& event) {
  if (near || connection.is_accepted) return end(connection);
  reject(connection, event.reason, event.data);
}

void Gateway::handle(Connection& connection, bool near, const Unreachable&) {
  if (near || connection.is_accepted) return end(connection);
  reject(connection, static_cast<uint16_t>(RejectReason::kTimeout), {});
}

void Gateway::handle(Connection& connection, bool near, const Ended&) {
  if (!connection.is_established) return end(connection);
  if (connection.closes_by_ns != 0) return end(connection);  // the other side's end, or both at once
  connection.near_has_ended = near;
  connection.closes_by_ns = base::now_ns() + kCloseNs;
  looked_ns_ = 0;
}

void Gateway::close_ended(int64_t now) {
  std::vector<uint64_t> gone;
  for (auto& [number, connection] : connections_) {
    if (connection.closes_by_ns == 0 || connection.closes_by_ns == INT64_MAX) continue;
    if (!connection.splice->is_idle() && now < connection.closes_by_ns) continue;
    // The queue pairs end first, as at a program that disconnects: each sends the answers that are due.
    connection.closes_by_ns = INT64_MAX;
    connection.splice.reset();
    if (manager_->disconnect(connection.near_has_ended ? connection.far : connection.near) != 0) gone.push_back(number);
  }
  for (const uint64_t number : gone) end(connections_.at(number));
}

void Gateway::reject(Connection& connection, uint16_t reason, const PrivateData<148>& data) {
  manager_->reject(connection.near, static_cast<RejectReason>(reason), data);
  connection.near = 0;
  end(connection);
}

void Gateway::end(Connection& connection) {
  connection.splice.reset();
  if (connection.near != 0) manager_->release(connection.near);
  if (connection.far != 0) manager_->release(connection.far);
  const uint64_t number = connection.number;
  connections_.erase(number);
}

}  // namespace nupa::gateway
