// SPDX-License-Identifier: Apache-2.0
#pragma once
/// For tests of librdmacm: channels that wait for an event for a limited time, and ids that are destroyed with their
/// test. Active and passive sides are ids of one process.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../support/soon.h"

namespace nupa::test {

constexpr int kSoonMs = 20000;  ///< a sanitizer on a busy machine
constexpr int kWhileMs = 50;    ///< an event that has not arrived by then is taken not to arrive

inline bool runs_over(const char* name) {
  const char* transport = std::getenv("NUPA_TRANSPORT");
  return transport != nullptr && std::strcmp(transport, name) == 0;
}

/// Messages between programs of one host are packets or records, too: they arrive some time after the call, and another
/// process may pass them on.
inline bool sends_packets() { return runs_over("roce") || runs_over("pool"); }

/// An event, after it was acknowledged.
struct Seen {
  int type = -1;  ///< none came
  int status = 0;
  rdma_cm_id* id = nullptr;
  rdma_cm_id* listener = nullptr;
  std::string data;
  rdma_conn_param connection{};
  rdma_ud_param datagram{};
};

inline Seen seen_of(rdma_cm_event* event, bool is_datagram = false) {
  Seen seen;
  std::memcpy(&seen.type, &event->event, sizeof seen.type);  // a later release's is no value of the enumeration
  seen.status = event->status;
  seen.id = event->id;
  seen.listener = event->listen_id;
  seen.connection = event->param.conn;
  if (is_datagram) seen.datagram = event->param.ud;
  const void* data = is_datagram ? event->param.ud.private_data : event->param.conn.private_data;
  const size_t length = is_datagram ? event->param.ud.private_data_len : event->param.conn.private_data_len;
  if (length > 0) seen.data.assign(static_cast<const char*>(data), length);
  return seen;
}

class Events {
 public:
  Events() : channel_(rdma_create_event_channel()) {}
  ~Events() { rdma_destroy_event_channel(channel_); }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  rdma_event_channel* get() const { return channel_; }
  bool ready(int patience_ms) const {
    pollfd one{channel_->fd, POLLIN, 0};
    return ::poll(&one, 1, patience_ms) == 1;
  }
  /// To be acknowledged by the caller; null: none came.
  rdma_cm_event* take() const {
    rdma_cm_event* event = nullptr;
    if (!ready(kSoonMs) || rdma_get_cm_event(channel_, &event) != 0) return nullptr;
    return event;
  }
  Seen next() const {
    rdma_cm_event* event = take();
    if (event == nullptr) return {};
    const bool is_datagram = event->id->ps == RDMA_PS_UDP;
    Seen seen = seen_of(event, is_datagram);
    EXPECT_EQ(rdma_ack_cm_event(event), 0);
    return seen;
  }
  bool silent() const { return !ready(kWhileMs); }

 private:
  rdma_event_channel* channel_;
};

struct IdDelete {
  void operator()(rdma_cm_id* id) const { rdma_destroy_ep(id); }
};
using OwnId = std::unique_ptr<rdma_cm_id, IdDelete>;

inline OwnId make_id(rdma_event_channel* channel, rdma_port_space ps = RDMA_PS_TCP, void* context = nullptr) {
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(channel, &id, context, ps), 0) << errno;
  return OwnId(id);
}

/// IPv4 or IPv6.
struct Address {
  sockaddr_storage bytes{};
  explicit Address(const char* text, uint16_t port = 0) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&bytes);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&bytes);
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
      v4->sin_family = AF_INET;
      v4->sin_port = htons(port);
    } else {
      EXPECT_EQ(inet_pton(AF_INET6, text, &v6->sin6_addr), 1);
      v6->sin6_family = AF_INET6;
      v6->sin6_port = htons(port);
    }
  }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
};

inline int bind_to(rdma_cm_id* id, const char* address, uint16_t port = 0) {
  return rdma_bind_addr(id, Address(address, port).get());
}
inline uint16_t port_of(rdma_cm_id* id) { return ntohs(rdma_get_src_port(id)); }

inline void make_qp(rdma_cm_id* id) {
  ibv_qp_init_attr attr{};
  attr.cap.max_send_wr = attr.cap.max_recv_wr = 8;
  attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  attr.qp_type = id->qp_type;
  attr.sq_sig_all = 1;
  ASSERT_EQ(rdma_create_qp(id, nullptr, &attr), 0) << errno;
}

/// `data` has to last as long as what it returns.
inline rdma_conn_param param_of(std::string_view data = {}) {
  rdma_conn_param param{};
  param.private_data = data.empty() ? nullptr : data.data();
  param.private_data_len = static_cast<uint8_t>(data.size());
  param.responder_resources = param.initiator_depth = 1;
  param.retry_count = param.rnr_retry_count = 7;
  return param;
}

/// How many descriptors this process has. The library's threads may open a few of their own at any time.
inline std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

/// An errno, or 0, of a call that answers 0 or -1.
inline int error_of(int result) { return result == 0 ? 0 : errno; }

/// Runs `body` in a fork's child. False: an expectation failed there, or it did not come back.
inline bool holds_in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSoonMs / 1000);
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

/// A listener and whoever connects to it.
class RdmaCm : public ::testing::Test {
 protected:
  void listen(rdma_port_space ps = RDMA_PS_TCP, const char* address = "127.0.0.1", int backlog = 16) {
    listener_ = make_id(passive_.get(), ps);
    ASSERT_EQ(bind_to(listener_.get(), address), 0) << errno;
    ASSERT_EQ(rdma_listen(listener_.get(), backlog), 0) << errno;
    port_ = port_of(listener_.get());
  }

  /// An id that knows its way to the listener.
  OwnId resolved(const char* address = "127.0.0.1", rdma_port_space ps = RDMA_PS_TCP, uint16_t port = 0) {
    OwnId id = make_id(active_.get(), ps);
    EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, Address(address, port == 0 ? port_ : port).get(), 2000), 0) << errno;
    EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(rdma_resolve_route(id.get(), 2000), 0) << errno;
    EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
    return id;
  }

  OwnId connecting(const std::string& data = "") {
    OwnId id = resolved();
    make_qp(id.get());
    rdma_conn_param param = param_of(data);
    EXPECT_EQ(rdma_connect(id.get(), &param), 0) << errno;
    return id;
  }

  /// The id of the next request.
  OwnId requested() {
    const Seen seen = passive_.next();
    EXPECT_EQ(seen.type, RDMA_CM_EVENT_CONNECT_REQUEST);
    EXPECT_EQ(seen.listener, listener_.get());
    return OwnId(seen.type == RDMA_CM_EVENT_CONNECT_REQUEST ? seen.id : nullptr);
  }

  OwnId accepted(const std::string& data = "") {
    OwnId id = requested();
    if (!id) return id;
    make_qp(id.get());
    rdma_conn_param param = param_of(data);
    EXPECT_EQ(rdma_accept(id.get(), &param), 0) << errno;
    return id;
  }

  /// The two ends of a connection.
  std::pair<OwnId, OwnId> connected() {
    OwnId active = connecting();
    OwnId passive = accepted();
    EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_EQ(passive_.next().type, RDMA_CM_EVENT_ESTABLISHED);
    return {std::move(active), std::move(passive)};
  }

  Events active_;
  Events passive_;
  OwnId listener_;
  uint16_t port_ = 0;
};

}  // namespace nupa::test
