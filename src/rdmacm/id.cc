// SPDX-License-Identifier: Apache-2.0
/// Identifiers: creation, destruction and options.
#include "rdmacm/id.h"

#include <cstring>
#include <unordered_set>

#include "progress/lifecycle.h"

namespace nupa::rdmacm {
namespace {

struct Living {
  std::mutex mutex;
  std::unordered_set<const rdma_cm_id*> ids;
};
Living& living() {
  static auto* made = new Living;
  return *made;
}

Id* as_id(const rdma_cm_id* shown) { return reinterpret_cast<Id*>(const_cast<rdma_cm_id*>(shown)); }

/// In a forked child: connections and services belong to the parent. A thread of the parent may have been inside a
/// call.
void renew_in_child(Id& id) {
  new (&id.mutex) std::mutex;
  id.connection = 0;
  id.has_service = false;
}

/// Holds the events' lock and the list of ids over fork(), so that a child may destroy its ids. This stage comes after
/// those of the communication manager, whose locks are always taken first. The locks of ids, devices and the manager
/// are held during verbs calls and before locks that the fork already has. A fork cannot wait for them, so the child
/// gets new ones.
class Ids final : public progress::ForkParticipant {
 public:
  void before_fork() override {
    events_mutex().lock();
    living().mutex.lock();
  }
  void in_parent() override {
    living().mutex.unlock();
    events_mutex().unlock();
  }
  bool in_child() override {
    for (const rdma_cm_id* shown : living().ids) renew_in_child(*as_id(shown));
    in_parent();
    renew_events_in_child();
    renew_devices_in_child();
    return true;
  }
};
[[gnu::constructor]] void join_forks() {
  static Ids* const ids = new Ids;  // forks may happen while static objects are destroyed
  progress::join_forks(progress::ForkStage::kEvents, ids);
}

}  // namespace

Id* id_of(const rdma_cm_id* id) {
  Living& all = living();
  std::lock_guard lock(all.mutex);
  if (all.ids.count(id) != 0) return as_id(id);
  errno = EINVAL;
  return nullptr;
}

Id* make_id(bool sync, rdma_event_channel* channel, void* context, rdma_port_space ps, ibv_qp_type type) {
  auto* id = new (std::nothrow) Id(sync);
  if (id == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  id->shown.channel = channel;
  id->shown.context = context;
  id->shown.ps = ps;
  id->shown.qp_type = type;
  id->qkey = kDatagramQkey;
  Living& all = living();
  std::lock_guard lock(all.mutex);
  all.ids.insert(&id->shown);
  return id;
}

void destroy(Id* id) {
  const bool own = id->process == getpid();
  {
    Living& all = living();
    std::lock_guard lock(all.mutex);
    all.ids.erase(&id->shown);
  }
  // After this the manager sends no notifications for the id.
  if (id->has_service) manager()->unbind(id->owner());
  if (id->connection != 0) manager()->release(id->connection);
  if (id->shown.event != nullptr) {
    rdma_ack_cm_event(id->shown.event);
    id->shown.event = nullptr;
  }
  for (Id* child : take_requests(*id)) destroy(child);
  settle_events(*id);
  if (own) leave_all(*id);  // no thread takes an event any more that attaches the queue pair
  if (id->sync) rdma_destroy_event_channel(id->shown.channel);
  // A forked child leaves the rest unchanged. The parent's queue pair stays in its groups, and a thread of the parent
  // may have been changing the id.
  if (own) delete id;
}

namespace {

constexpr ibv_qp_type type_of(rdma_port_space ps) {
  return ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC;
}

template <class T>
int read_option(const void* value, size_t length, T* out) {
  if (value == nullptr || length != sizeof *out) return EINVAL;
  std::memcpy(out, value, sizeof *out);
  return 0;
}

int set_id_option(Id& id, int name, const void* value, size_t length) {
  switch (name) {
    case RDMA_OPTION_ID_TOS: {
      const int error = read_option(value, length, &id.tos);
      id.has_tos = id.has_tos || error == 0;
      return error;
    }
    case RDMA_OPTION_ID_REUSEADDR: {
      int on = 0;
      if (const int error = read_option(value, length, &on); error != 0) return error;
      if (id.state != State::kIdle && (id.reuse || on == 0) && id.reuse != (on != 0)) return EINVAL;
      id.reuse = on != 0;
      return 0;
    }
    case RDMA_OPTION_ID_AFONLY: {
      int on = 0;
      if (const int error = read_option(value, length, &on); error != 0) return error;
      if (id.state != State::kIdle) return EINVAL;
      id.af_only = on != 0;
      return 0;
    }
    case RDMA_OPTION_ID_ACK_TIMEOUT: {
      constexpr uint8_t kLongest = 31;
      uint8_t code = 0;
      if (const int error = read_option(value, length, &code); error != 0) return error;
      if (code > kLongest) return EINVAL;
      id.ack_timeout = code;
      id.route.path.ack_timeout = code;
      return 0;
    }
    default:
      return ENOSYS;
  }
}

/// Sets a path from records that the program found. As with rdma_ucm, the first record counts that is valid for both
/// directions and for connection messages.
int set_path(Id& id, const void* value, size_t length) {
  if (value == nullptr || length == 0 || length % sizeof(ibv_path_data) != 0) return EINVAL;
  if (id.state != State::kAddressResolved) return EINVAL;
  constexpr uint32_t kWanted = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
  const auto* next = static_cast<const std::byte*>(value);
  const auto* end = next + length;
  ibv_path_data data{};
  for (; next != end && data.flags != kWanted; next += sizeof data) std::memcpy(&data, next, sizeof data);
  if (data.flags != kWanted) return EINVAL;
  Gid local;
  std::memcpy(local.raw.data(), &data.path.sgid, 16);
  if (local != id.route.path.local) return EINVAL;
  ConnectionPath& path = id.route.path;
  std::memcpy(path.remote.raw.data(), &data.path.dgid, 16);
  const uint32_t flow_and_hop = be32toh(data.path.flowlabel_hoplimit);
  path.flow_label = flow_and_hop >> 8 & 0xfffff;
  path.hop_limit = static_cast<uint8_t>(flow_and_hop);
  path.traffic_class = data.path.tclass;
  if ((data.path.mtu & 0x3f) != 0) path.mtu = static_cast<Mtu>(data.path.mtu & 0x3f);
  id.state = State::kRouteResolved;
  fill_path_record(id);
  return 0;
}

}  // namespace
}  // namespace nupa::rdmacm

using namespace nupa::rdmacm;

namespace {

int create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context, rdma_port_space ps, ibv_qp_type type) {
  if (id == nullptr) return answer(EINVAL);
  if (ps != RDMA_PS_IPOIB && ps != RDMA_PS_TCP && ps != RDMA_PS_UDP && ps != RDMA_PS_IB)
    return answer(EPROTONOSUPPORT, "no such port space");
  const bool sync = channel == nullptr;
  if (sync && (channel = rdma_create_event_channel()) == nullptr) return -1;
  Id* made = make_id(sync, channel, context, ps, type);
  if (made == nullptr) {
    if (sync) rdma_destroy_event_channel(channel);
    return -1;
  }
  *id = &made->shown;
  return 0;
}

}  // namespace

NUPA_RDMACM int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context, rdma_port_space ps) {
  return create_id(channel, id, context, ps, type_of(ps));
}

NUPA_RDMACM int rdma_destroy_id(rdma_cm_id* id) {
  Id* known = id_of(id);
  if (known == nullptr) return -1;
  destroy(known);
  return 0;
}

NUPA_RDMACM int rdma_set_option(rdma_cm_id* shown, int level, int optname, void* optval, size_t optlen) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  {
    std::lock_guard lock(id.mutex);
    if (level == RDMA_OPTION_ID) return answer(set_id_option(id, optname, optval, optlen));
    if (level != RDMA_OPTION_IB || optname != RDMA_OPTION_IB_PATH) return answer(ENOSYS);
    if (const int error = set_path(id, optval, optlen); error != 0) return answer(error);
  }
  push(id, RDMA_CM_EVENT_ROUTE_RESOLVED);
  return wait_for_event(id);
}

NUPA_RDMACM int rdma_create_ep(rdma_cm_id** shown, rdma_addrinfo* res, ibv_pd* pd, ibv_qp_init_attr* qp_init_attr) {
  if (shown == nullptr || res == nullptr) return answer(EINVAL);
  rdma_cm_id* made = nullptr;
  if (create_id(nullptr, &made, nullptr, static_cast<rdma_port_space>(res->ai_port_space),
                static_cast<ibv_qp_type>(res->ai_qp_type)) != 0)
    return -1;
  const auto give_up = [&] {
    const int error = errno;
    rdma_destroy_ep(made);
    return answer(error);
  };
  Id& id = *reinterpret_cast<Id*>(made);
  if ((res->ai_flags & RAI_PASSIVE) != 0) {
    if (rdma_bind_addr(made, res->ai_src_addr) != 0) return give_up();
    if (qp_init_attr != nullptr) {
      id.child_qp = *qp_init_attr;
      id.child_qp->qp_type = static_cast<ibv_qp_type>(res->ai_qp_type);
    }
    id.child_pd = pd;
    *shown = made;
    return 0;
  }
  constexpr int kTimeoutMs = 2000;
  if (rdma_resolve_addr(made, res->ai_src_addr, res->ai_dst_addr, kTimeoutMs) != 0) return give_up();
  if (res->ai_route_len != 0) {
    if (rdma_set_option(made, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, res->ai_route, res->ai_route_len) != 0)
      return give_up();
  } else if (rdma_resolve_route(made, kTimeoutMs) != 0) {
    return give_up();
  }
  if (qp_init_attr != nullptr) {
    qp_init_attr->qp_type = static_cast<ibv_qp_type>(res->ai_qp_type);
    if (rdma_create_qp(made, pd, qp_init_attr) != 0) return give_up();
  }
  if (res->ai_connect_len > 0) {
    const auto* bytes = static_cast<const std::byte*>(res->ai_connect);
    id.connect_data.assign(bytes, bytes + res->ai_connect_len);
  }
  *shown = made;
  return 0;
}

NUPA_RDMACM void rdma_destroy_ep(rdma_cm_id* id) {
  if (id->qp != nullptr) rdma_destroy_qp(id);
  if (id->srq != nullptr) rdma_destroy_srq(id);
  rdma_destroy_id(id);
}

NUPA_RDMACM int rdma_get_request(rdma_cm_id* listen, rdma_cm_id** shown) {
  Id* known = id_of(listen);
  if (known == nullptr) return -1;
  Id& listener = *known;
  if (!listener.sync || shown == nullptr) return answer(EINVAL);
  if (listen->event != nullptr) {
    rdma_ack_cm_event(listen->event);
    listen->event = nullptr;
  }
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(listen->channel, &event) != 0) return -1;
  const auto give_up = [&](int error) {
    listen->event = event;
    return answer(error);
  };
  if (event->status != 0) return give_up(event->status < 0 ? -event->status : event->status);
  if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) return give_up(EINVAL);
  if (listener.child_qp) {
    ibv_qp_init_attr attr = *listener.child_qp;
    if (rdma_create_qp(event->id, listener.child_pd, &attr) != 0) {
      const int error = errno;
      rdma_cm_id* child = event->id;
      rdma_ack_cm_event(event);
      rdma_destroy_id(child);
      return answer(error);
    }
  }
  *shown = event->id;
  (*shown)->event = event;
  return 0;
}
