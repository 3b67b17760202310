// SPDX-License-Identifier: Apache-2.0
/// Turns notifications of the communication manager into events. The manager's lock is held, so nothing here may call
/// the manager.
#include "rdmacm/id.h"

namespace nupa::rdmacm {
namespace {

Id& id_at(uint64_t owner) { return *reinterpret_cast<Id*>(owner); }

void add(std::unique_ptr<Event> event) {
  std::lock_guard lock(events_mutex());
  push_locked(std::move(event));
}

void add(Id& id, rdma_cm_event_type type, int status = 0) { add(std::make_unique<Event>(&id, type, status)); }

class Sink final : public ConnectionSink {
 public:
  uint64_t on_request(uint64_t owner, ConnectionId connection, const ConnectionRequest& request) override {
    Id& listener = id_at(owner);
    std::lock_guard lock(events_mutex());
    return add_request(listener, connection, [&](Event& event) { event.request = request; });
  }

  uint64_t on_datagram_request(uint64_t owner, ConnectionId connection, const DatagramRequest& request) override {
    Id& listener = id_at(owner);
    std::lock_guard lock(events_mutex());
    return add_request(listener, connection, [&](Event& event) { event.datagram = request; });
  }

  void on_reply(uint64_t owner, const ConnectionReply& reply) override {
    auto event = std::make_unique<Event>(&id_at(owner), RDMA_CM_EVENT_CONNECT_RESPONSE);
    event->reply = reply;
    event->set_data(reply.private_data.bytes.data(), reply.private_data.bytes.size());
    add(std::move(event));
  }

  void on_established(uint64_t owner, const PrivateData<224>&) override {
    add(id_at(owner), RDMA_CM_EVENT_ESTABLISHED);
  }

  void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>& data) override {
    auto event = std::make_unique<Event>(&id_at(owner), RDMA_CM_EVENT_REJECTED, reason);
    event->set_data(data.bytes.data(), data.bytes.size());
    add(std::move(event));
  }

  void on_unreachable(uint64_t owner) override { add(id_at(owner), RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT); }

  void on_disconnected(uint64_t owner, bool) override { add(id_at(owner), RDMA_CM_EVENT_DISCONNECTED); }

  void on_time_wait_exit(uint64_t owner) override { add(id_at(owner), RDMA_CM_EVENT_TIMEWAIT_EXIT); }

  void on_datagram_reply(uint64_t owner, const DatagramReply& reply) override {
    const bool valid = reply.status == DatagramStatus::kValid;
    auto event = std::make_unique<Event>(&id_at(owner), valid ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_UNREACHABLE,
                                         static_cast<int>(reply.status));
    event->datagram_reply = reply;
    event->set_data(reply.private_data.bytes.data(), reply.private_data.bytes.size());
    add(std::move(event));
  }

  void after_notifications() override { signal_events(); }

 private:
  /// Called with the events' lock held. Returns 0 if more requests wait than the listener permits.
  template <class Fill>
  static uint64_t add_request(Id& listener, ConnectionId connection, Fill&& fill) {
    if (listener.waiting_requests >= listener.backlog) return 0;
    Id* child =
        make_id(false, listener.shown.channel, listener.shown.context, listener.shown.ps, listener.shown.qp_type);
    if (child == nullptr) return 0;
    child->state = State::kRequested;
    child->connection = connection;
    auto event = std::make_unique<Event>(child, RDMA_CM_EVENT_CONNECT_REQUEST);
    event->listener = &listener;
    event->seen.listen_id = &listener.shown;
    fill(*event);
    ++listener.waiting_requests;
    push_locked(std::move(event));
    return child->owner();
  }
};

}  // namespace

ConnectionSink& sink() {
  static auto* made = new Sink;
  return *made;
}

}  // namespace nupa::rdmacm
