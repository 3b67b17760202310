// SPDX-License-Identifier: Apache-2.0
/// Event channels. A channel's descriptor counts the waiting events, so O_NONBLOCK, poll and epoll work as with the
/// kernel's channels.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/gid.h"
#include "base/probe.h"
#include "rdmacm/id.h"
#include "progress/condition.h"
#include "progress/waiter.h"

namespace nupa::rdmacm {
namespace {

progress::Condition g_acknowledged;
/// Channels with events that are not signalled yet. Protected by the events' lock.
std::vector<Channel*>& unsignalled_channels() {
  static auto* channels = new std::vector<Channel*>;
  return *channels;
}

/// Channels that the program has destroyed, protected by the events' lock. They remain closed channels until the
/// program opens new ones. A thread may call rdma_get_cm_event() after another thread has destroyed the channel, and
/// must not read memory that is used for something else.
Channel* g_spare = nullptr;

std::unique_ptr<Channel> take_spare() {
  std::lock_guard lock(events_mutex());
  if (g_spare == nullptr) return std::make_unique<Channel>();
  std::unique_ptr<Channel> channel(std::exchange(g_spare, g_spare->next_spare));
  channel->next_spare = nullptr;
  channel->closed = false;
  return channel;
}

/// Waits with the events' lock until the program has acknowledged all events, so that `count` is 0. A forked child does
/// not wait: threads of the parent have those events, and nobody acknowledges them in the child.
void await_acknowledged(std::unique_lock<std::mutex>& lock, const Id& id, const uint32_t& count) {
  if (id.process == getpid()) g_acknowledged.wait(lock, [&] { return count == 0; });
}

/// An event leaves `waiting` that no thread of the program takes.
void uncount(Channel& channel) {
  if (channel.unsignalled > 0)
    --channel.unsignalled;
  else
    channel.events->take_back();
}

/// Adds to the events that are not signalled yet.
void count(Channel& channel) {
  if (channel.unsignalled++ == 0) unsignalled_channels().push_back(&channel);
}

/// Drops the waiting events for which `drops` is true. The events' lock is held.
template <class Drops>
void drop_waiting(Channel& channel, Drops&& drops) {
  for (auto it = channel.waiting.begin(); it != channel.waiting.end();) {
    if (!drops(**it)) {
      ++it;
      continue;
    }
    uncount(channel);
    it = channel.waiting.erase(it);
  }
}

/// Returns the id whose count includes this event. For a request this is the listener, until the program has
/// acknowledged the request.
Id& counted_by(const Event& event) { return event.listener != nullptr ? *event.listener : *event.id; }

uint8_t data_length(size_t length) { return static_cast<uint8_t>(std::min<size_t>(length, 255)); }

void show_connection(Id& id, Event& event) {
  rdma_conn_param& seen = event.seen.param.conn;
  if (event.request) {
    const ConnectionRequest& request = *event.request;
    seen.responder_resources = request.initiator_depth;
    seen.initiator_depth = request.responder_resources;
    seen.flow_control = request.flow_control ? 1 : 0;
    seen.retry_count = request.retry_count;
    seen.rnr_retry_count = request.rnr_retry_count;
    seen.srq = request.srq ? 1 : 0;
    seen.qp_num = request.qp_num;
    id.responder_resources = request.initiator_depth;
    id.initiator_depth = request.responder_resources;
    id.retry_count = request.retry_count;
    id.rnr_retry_count = request.rnr_retry_count;
    id.remote_qpn = request.qp_num;
    id.send_psn = request.starting_psn;
    id.receive_psn = random_psn();
    id.agreed = true;
  }
}

/// Sets the child's addresses from the header of an IP service, or from the path for AF_IB.
void read_ends(Id& child, const Id& listener, std::span<const std::byte> data, const ConnectionPath& path,
               uint64_t service_id) {
  child.source.family = child.destination.family = listener.source.family;
  if (listener.source.family == AF_IB) {
    child.source.gid = path.local;
    child.source.service_id = service_id;
    child.source.mask = ~uint64_t{0};
    child.destination.gid = path.remote;
    return;
  }
  child.source.port = static_cast<uint16_t>(service_id);
  const int version = static_cast<uint8_t>(data[1]) >> 4;
  if (version != 4 && version != 6) {
    // The peer has used a GID as the address.
    child.source.gid = path.local;
    child.destination.gid = path.remote;
    child.source.family = child.destination.family = base::is_ipv4(path.local) ? AF_INET : AF_INET6;
    return;
  }
  const bool ipv4 = version == 4;
  child.source.family = child.destination.family = ipv4 ? AF_INET : AF_INET6;
  const auto read = [&](size_t at) {
    if (ipv4) return base::ipv4_gid(&data[at + base::kIpv4InGid]);
    Gid gid;
    std::memcpy(gid.raw.data(), &data[at], 16);
    return gid;
  };
  child.destination.gid = read(4);
  child.source.gid = read(20);
  child.destination.port = static_cast<uint16_t>(static_cast<uint16_t>(data[2]) << 8 | static_cast<uint16_t>(data[3]));
}

/// True if a request is for the listener's kind of queue pair. Port space IB has several kinds.
bool fits(const Event& event, ibv_qp_type of_listener) {
  const auto asks_for = [&](QpType type) { return event.request && event.request->type == type; };
  switch (of_listener) {
    case IBV_QPT_UD:
      return event.datagram.has_value();
    case IBV_QPT_RC:
      return asks_for(QpType::kRc);
    case IBV_QPT_UC:
      return asks_for(QpType::kUc);
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
      return asks_for(QpType::kXrcRecv);
    default:
      return true;
  }
}

/// Completes a new connection for the program. Returns an errno value.
int finish_request(Id& child, Event& event) {
  Id& listener = *event.listener;
  if (!fits(event, listener.shown.qp_type)) return EINVAL;
  const ConnectionPath path = event.request ? event.request->path : event.datagram->path;
  const uint64_t service_id = event.request ? event.request->service_id : event.datagram->service_id;
  const std::span<const std::byte> data = event.request
                                              ? std::span<const std::byte>(event.request->private_data.bytes)
                                              : std::span<const std::byte>(event.datagram->private_data.bytes);
  read_ends(child, listener, data, path, service_id);
  const size_t skipped = listener.source.family == AF_IB ? 0 : kIpHeaderBytes;
  event.set_data(data.data() + skipped, data.size() - skipped);
  auto route = manager()->find_address(path.local);
  if (!route) route = manager()->find_address(child.source.gid);
  if (!route) return route.error().code();
  ConnectionPath mine = path;
  mine.local = route->path.local;
  route->path = mine;
  if (const int error = use_device(child, *route); error != 0) return error;
  show_addresses(child);
  fill_path_record(child);
  show_connection(child, event);
  return 0;
}

void show_datagram_peer(Event& event) {
  const DatagramReply& reply = *event.datagram_reply;
  Id& id = *event.id;
  rdma_ud_param& seen = event.seen.param.ud;
  const ConnectionPath& path = id.route.path;
  std::memcpy(&seen.ah_attr.grh.dgid, path.remote.raw.data(), 16);
  seen.ah_attr.grh.sgid_index = static_cast<uint8_t>(id.route.gid_index);
  seen.ah_attr.grh.hop_limit = path.hop_limit;
  seen.ah_attr.grh.traffic_class = path.traffic_class;
  seen.ah_attr.grh.flow_label = path.flow_label;
  seen.ah_attr.is_global = 1;
  seen.ah_attr.port_num = 1;
  seen.qp_num = reply.qp_num;
  seen.qkey = reply.qkey;
}

/// Does the work that is left for the program's thread. Returns false if the program must not get the event.
bool finish(Event& event) {
  Id& id = *event.id;
  switch (event.number()) {
    case RDMA_CM_EVENT_CONNECT_REQUEST: {
      const bool usable = finish_request(id, event) == 0;
      // The request of a synchronous listener needs a channel, and no descriptor may be left.
      if (usable && (!event.listener->sync || rdma_migrate_id(&id.shown, nullptr) == 0)) return true;
      destroy(&id);  // this also rejects the request
      return false;
    }
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      finish_reply(id, event);
      return true;
    case RDMA_CM_EVENT_REJECTED: {
      {
        // As with rdma-core, a failed attempt ends with one event, and CONNECT_ERROR may have been reported.
        std::lock_guard lock(id.mutex);
        if (id.connect_failed) return false;
        id.connect_failed = true;
      }
      to_error(id);
      return true;
    }
    case RDMA_CM_EVENT_DISCONNECTED: {
      std::lock_guard lock(id.mutex);
      return !id.connect_failed;
    }
    case RDMA_CM_EVENT_MULTICAST_JOIN:
      finish_join(event);
      return true;
    default:
      if (event.datagram_reply && event.number() == RDMA_CM_EVENT_ESTABLISHED) show_datagram_peer(event);
      return true;
  }
}

}  // namespace

Event::Event(Id* id_, rdma_cm_event_type type, int status) : id(id_) {
  seen.id = &id_->shown;
  seen.event = type;
  seen.status = status;
}

int Event::number() const {
  static_assert(sizeof seen.event == sizeof(int));
  int number = 0;
  std::memcpy(&number, &seen.event, sizeof number);
  return number;
}

void Event::set_number(int number) { std::memcpy(&seen.event, &number, sizeof number); }

void Event::set_data(const std::byte* bytes, size_t length) {
  const size_t kept = std::min({length, data.size(), size_t{255}});
  if (kept > 0) std::memcpy(data.data(), bytes, kept);
  const void* where = kept > 0 ? data.data() : nullptr;
  // Both parts of the union begin with the same fields.
  seen.param.conn.private_data = where;
  seen.param.conn.private_data_len = data_length(kept);
}

std::mutex& events_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

void renew_events_in_child() { g_acknowledged.renew_in_child(); }

void push_locked(std::unique_ptr<Event> event) {
  Channel* channel = counted_by(*event).channel();
  channel->waiting.push_back(std::move(event));
  count(*channel);
}

void signal_events() {
  for (;;) {
    std::shared_ptr<progress::EventDescriptor> events;
    uint32_t added = 0;
    {
      std::lock_guard lock(events_mutex());
      if (unsignalled_channels().empty()) return;
      Channel& channel = *unsignalled_channels().back();
      unsignalled_channels().pop_back();
      events = channel.events;
      added = std::exchange(channel.unsignalled, 0);
    }
    if (events != nullptr && added > 0) events->count(added);
  }
}

void push(std::unique_ptr<Event> event) {
  {
    std::lock_guard lock(events_mutex());
    push_locked(std::move(event));
  }
  signal_events();
}

void push(Id& id, rdma_cm_event_type type, int status) { push(std::make_unique<Event>(&id, type, status)); }

int wait_for_event(Id& id) {
  if (!id.sync) return 0;
  if (id.shown.event != nullptr) {
    rdma_ack_cm_event(id.shown.event);
    id.shown.event = nullptr;
  }
  if (rdma_get_cm_event(id.shown.channel, &id.shown.event) != 0) return -1;
  const rdma_cm_event& event = *id.shown.event;
  if (event.status == 0) return 0;
  const bool is_rejected = reinterpret_cast<const Event&>(event).number() == RDMA_CM_EVENT_REJECTED;
  return answer(is_rejected ? ECONNREFUSED : event.status < 0 ? -event.status : event.status);
}

std::vector<Id*> take_requests(Id& listener) {
  std::lock_guard lock(events_mutex());
  std::vector<Id*> children;
  drop_waiting(*listener.channel(), [&](const Event& event) {
    if (event.listener != &listener) return false;
    children.push_back(event.id);
    return true;
  });
  return children;
}

void settle_events(Id& id, const Membership& membership) {
  std::unique_lock lock(events_mutex());
  drop_waiting(*id.channel(), [&](const Event& event) { return event.membership == &membership; });
  await_acknowledged(lock, id, membership.unacknowledged);
}

void settle_events(Id& id) {
  std::unique_lock lock(events_mutex());
  drop_waiting(*id.channel(), [&](const Event& event) { return event.id == &id; });
  await_acknowledged(lock, id, id.unacknowledged);
}

}  // namespace nupa::rdmacm

using namespace nupa::rdmacm;

NUPA_RDMACM rdma_event_channel* rdma_create_event_channel(void) {
  auto events = nupa::progress::EventDescriptor::open(lowest_descriptor());
  if (!events) {
    errno = events.error().code();
    return nullptr;
  }
  auto channel = take_spare();
  channel->events = std::move(*events);
  channel->shown.fd = channel->events->release_fd();
  return &channel.release()->shown;
}

NUPA_RDMACM void rdma_destroy_event_channel(rdma_event_channel* shown) {
  auto* channel = reinterpret_cast<Channel*>(shown);
  std::lock_guard lock(events_mutex());
  channel->closed = true;
  ::close(shown->fd);
  if (channel->readers > 0) return;  // the last reader cleans up
  channel->events.reset();
  channel->unsignalled = 0;
  channel->waiting.clear();
  channel->next_spare = std::exchange(g_spare, channel);
}

namespace {

/// Some programs close a channel at exit while another thread waits on it, or is about to. With the kernel's descriptor
/// that thread would keep waiting. An error would make it report a failure, so it waits here until the process exits.
[[noreturn]] void wait_for_the_end() { nupa::progress::sleep_for_ever(); }

/// Returns the next event for the program and counts it as unacknowledged. Returns null with errno set on failure.
std::unique_ptr<Event> take_event(Channel& channel) {
  for (;;) {
    const int error = channel.events->take(channel.shown.fd);
    std::lock_guard lock(events_mutex());
    if (channel.closed) return nullptr;
    if (error != 0) {
      errno = error;
      return nullptr;
    }
    if (channel.waiting.empty()) continue;  // its id was destroyed meanwhile
    std::unique_ptr<Event> next = std::move(channel.waiting.front());
    channel.waiting.pop_front();
    Id& counted = counted_by(*next);
    ++counted.unacknowledged;
    if (next->membership != nullptr) ++next->membership->unacknowledged;
    if (next->listener != nullptr) --counted.waiting_requests;
    return next;
  }
}

}  // namespace

NUPA_RDMACM int rdma_get_cm_event(rdma_event_channel* shown, rdma_cm_event** event) {
  if (event == nullptr || shown == nullptr) return answer(EINVAL);
  auto* channel = reinterpret_cast<Channel*>(shown);
  const bool open = [&] {
    std::lock_guard lock(events_mutex());
    if (!channel->closed) ++channel->readers;
    return !channel->closed;
  }();
  if (!open) wait_for_the_end();
  for (;;) {
    std::unique_ptr<Event> next = take_event(*channel);
    const int error = errno;
    const bool told = next == nullptr || finish(*next);
    {
      std::lock_guard lock(events_mutex());
      if (next == nullptr && channel->closed) break;
      if (told) --channel->readers;
      if (!told) {
        --counted_by(*next).unacknowledged;
        g_acknowledged.notify_all();
      }
    }
    if (!told) continue;
    if (next == nullptr) return answer(error);
    NUPA_PROBE(cm_event, next->seen.id, static_cast<uint32_t>(next->number()), next->seen.status);
    explain_event(*next);
    *event = &next.release()->seen;
    return 0;
  }
  wait_for_the_end();
}

NUPA_RDMACM int rdma_ack_cm_event(rdma_cm_event* seen) {
  if (seen == nullptr) return answer(EINVAL);
  const std::unique_ptr<Event> event(reinterpret_cast<Event*>(seen));
  std::lock_guard lock(events_mutex());
  if (event->membership != nullptr) --event->membership->unacknowledged;
  --counted_by(*event).unacknowledged;
  g_acknowledged.notify_all();
  return 0;
}

NUPA_RDMACM int rdma_migrate_id(rdma_cm_id* shown, rdma_event_channel* channel) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  const bool sync = channel == nullptr;
  if (id.sync && sync) return answer(EINVAL);
  if (sync) {
    channel = rdma_create_event_channel();
    if (channel == nullptr) return -1;
  }
  if (id.sync && shown->event != nullptr) {
    rdma_ack_cm_event(shown->event);
    shown->event = nullptr;
  }
  auto* to = reinterpret_cast<Channel*>(channel);
  Channel* from;
  bool was_sync;
  {
    std::unique_lock lock(events_mutex());
    g_acknowledged.wait(lock, [&] { return id.unacknowledged == 0; });
    from = id.channel();
    if (from == to) return 0;
    for (auto it = from->waiting.begin(); it != from->waiting.end();) {
      // The ids of a listener's requests move with it, and so do their own events behind the requests.
      if (&counted_by(**it) != &id && (*it)->id->shown.channel != channel) {
        ++it;
        continue;
      }
      (*it)->id->shown.channel = channel;
      to->waiting.push_back(std::move(*it));
      it = from->waiting.erase(it);
      uncount(*from);
      count(*to);
    }
    was_sync = id.sync;
    id.sync = sync;
    id.shown.channel = channel;
  }
  signal_events();
  if (was_sync) rdma_destroy_event_channel(&from->shown);
  return 0;
}
