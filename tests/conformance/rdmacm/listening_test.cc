// SPDX-License-Identifier: Apache-2.0
/// Listeners, the requests that wait for them, and endpoints that are made in one call.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "../../support/sanitizers.h"
#include "calls.h"
#include "fixture.h"

namespace nupa::test {
namespace {

constexpr size_t kIpRequestRoom = 56;  // of a REQ's 92 bytes an IP service has 36 (IBTA annex A11)

// Listening.

TEST_F(RdmaCmCalls, Backlog_OfOne_HoldsOneRequest) {
  listen(RDMA_PS_TCP, "127.0.0.1", 1);
  const OwnId one = connecting(), other = connecting();
  ASSERT_TRUE(passive_.ready(kSoonMs));
  listener_.reset();
  int taken = 0, not_taken = 0;
  for (int i = 0; i < 2; ++i) {
    const Seen seen = active_.next();
    EXPECT_EQ(seen.type, RDMA_CM_EVENT_REJECTED);
    taken += seen.status == 28 ? 1 : 0;     // IBTA: rejected by the consumer, of which it was
    not_taken += seen.status == 8 ? 1 : 0;  // it asked again, and nobody has the service
  }
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(not_taken, 1);
}

TEST_F(RdmaCmCalls, Backlog_ZeroOrNegative_IsTheLongest) {
  for (const int backlog : {0, -1}) {
    listen(RDMA_PS_TCP, "127.0.0.1", backlog);
    const OwnId one = connecting(), other = connecting();
    const OwnId first = requested();
    ASSERT_TRUE(first) << backlog;
    const OwnId second = requested();
    ASSERT_TRUE(second) << backlog;
    listener_.reset();
  }
}

/// A field of /proc/self/fdinfo; empty: the descriptor has none of that name.
std::string info_of(int fd, const std::string& field) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(fd));
  for (std::string word; info >> word;)
    if (word == field && info >> word) return word;
  return {};
}

/// How many events wait in the channel: the eventfd behind its descriptor counts them.
int waiting_events(const rdma_event_channel* channel) {
  const std::string behind = info_of(channel->fd, "tfd:");
  const std::string count = behind.empty() ? std::string() : info_of(std::stoi(behind), "eventfd-count:");
  return count.empty() ? -1 : std::stoi(count, nullptr, 16);
}

TEST_F(RdmaCmCalls, EventChannel_PolledForBoth_IsNeverWritable) {
  Events events;
  pollfd both{events.get()->fd, POLLIN | POLLOUT, 0};
  EXPECT_EQ(poll(&both, 1, 0), 0);
  EXPECT_NE(fcntl(events.get()->fd, F_GETFD) & FD_CLOEXEC, 0);
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(events.get(), &id, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000), 0);
  EXPECT_EQ(poll(&both, 1, kSoonMs), 1);
  EXPECT_EQ(both.revents, POLLIN);
  rdma_cm_event* event = nullptr;
  ASSERT_EQ(rdma_get_cm_event(events.get(), &event), 0);
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  EXPECT_EQ(poll(&both, 1, 0), 0);
  ASSERT_EQ(fcntl(events.get()->fd, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(rdma_get_cm_event(events.get(), &event), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(RdmaCmCalls, EventChannel_DescriptorMovedToNonblocking_GetCmEventDoesNotWait) {
  Events events;
  const int moved = fcntl(events.get()->fd, F_DUPFD_CLOEXEC, 200);
  ASSERT_GE(moved, 200);
  close(events.get()->fd);
  events.get()->fd = moved;
  ASSERT_EQ(fcntl(moved, F_SETFL, O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(rdma_get_cm_event(events.get(), &event), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(RdmaCmCalls, GetCmEvent_ChannelWasDestroyed_WaitsUntilTheProcessExits) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  // rping's thread calls for the next event while its main thread ends.
  EXPECT_TRUE(holds_in_child([] {
    std::vector<std::vector<char>> others;
    others.reserve(32);
    rdma_event_channel* destroyed = rdma_create_event_channel();
    rdma_destroy_event_channel(destroyed);
    while (others.size() < 32) others.emplace_back(16 * (others.size() + 1));  // one of them where a freed channel was
    std::atomic<pid_t> caller{0};
    std::atomic<bool> returned{false};
    std::thread([&] {
      caller = gettid();
      rdma_cm_event* event = nullptr;
      rdma_get_cm_event(destroyed, &event);
      returned = true;
    }).detach();
    while (caller == 0 || !stands_still(caller)) std::this_thread::yield();
    Events events;
    OwnId id = make_id(events.get());
    EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", 1).get(), 100), 0);
    EXPECT_EQ(events.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_FALSE(returned);
  }));
}

TEST_F(RdmaCmCalls, Backlog_MoreThanTheLimit_IsCut) {
  constexpr int kLongest = 1024;  // rdma_listen() of rdma_ucm
  listen(RDMA_PS_TCP, "127.0.0.1", 1 << 20);
  std::vector<OwnId> active;
  rdma_conn_param param = param_of();
  while (active.size() < kLongest + 3) {
    active.push_back(resolved());
    ++param.qp_num;  // another connection of the same one would end the one before
    ASSERT_EQ(rdma_connect(active.back().get(), &param), 0) << errno;
  }
  const int waiting = waiting_events(passive_.get());
  EXPECT_LE(waiting, kLongest);
  EXPECT_TRUE(waiting == kLongest || sends_packets()) << waiting << " of the requests have arrived";
  listener_.reset();
}

TEST_F(RdmaCmCalls, GetRequest_ListenerWithAChannel_IsRefused) {
  listen();
  const OwnId active = connecting();
  ASSERT_TRUE(passive_.ready(kSoonMs));
  rdma_cm_id* request = nullptr;
  EXPECT_EQ(error_of(rdma_get_request(listener_.get(), &request)), EINVAL) << "it has the program's channel";
  const OwnId taken(request);
  const OwnId waits = make_id(nullptr);
  EXPECT_EQ(error_of(rdma_get_request(waits.get(), nullptr)), EINVAL);
}

/// A synchronous listener, and who asks it by a channel.
class RdmaCmRequests : public RdmaCmCalls {
 protected:
  void listen_alone(rdma_port_space ps) {
    listener_ = make_id(nullptr, ps);
    ASSERT_EQ(bind_to(listener_.get(), "127.0.0.1"), 0);
    ASSERT_EQ(rdma_listen(listener_.get(), 4), 0);
    port_ = port_of(listener_.get());
  }
  OwnId asking(rdma_port_space ps) {
    OwnId id = resolved("127.0.0.1", ps);
    make_qp(id.get());
    EXPECT_EQ(rdma_connect(id.get(), nullptr), 0) << errno;
    return id;
  }
  OwnId taken() {
    rdma_cm_id* raw = nullptr;
    EXPECT_EQ(rdma_get_request(listener_.get(), &raw), 0) << errno;
    return OwnId(raw);
  }
};

TEST_F(RdmaCmRequests, GetRequest_Id_HasItsEventUntilItIsAnswered) {
  // What is not acknowledged would hold up the listener, which may end first.
  listen_alone(RDMA_PS_UDP);
  const OwnId active = asking(RDMA_PS_UDP);
  OwnId accepted = taken();
  ASSERT_TRUE(accepted);
  ASSERT_NE(accepted->event, nullptr);
  EXPECT_EQ(accepted->event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(accepted->event->listen_id, listener_.get());
  EXPECT_EQ(accepted->event->id, accepted.get());
  EXPECT_NE(accepted->channel, listener_->channel);
  make_qp(accepted.get());
  ASSERT_EQ(rdma_accept(accepted.get(), nullptr), 0) << errno;
  EXPECT_EQ(accepted->event, nullptr) << "accepted";
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  const OwnId second = asking(RDMA_PS_UDP);
  OwnId rejected = taken();
  ASSERT_TRUE(rejected);
  ASSERT_EQ(rdma_reject(rejected.get(), nullptr, 0), 0) << errno;
  EXPECT_EQ(rejected->event, nullptr) << "rejected";
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_UNREACHABLE);
  if (accepted->event != nullptr || rejected->event != nullptr) return;  // the listener would wait without end
  listener_.reset();
}

TEST_F(RdmaCmRequests, GetRequest_QueuePairCannotBeMade_RejectsTheRequest) {
  rdma_addrinfo hints{};
  hints.ai_flags = RAI_PASSIVE;
  hints.ai_port_space = RDMA_PS_TCP;
  rdma_addrinfo* list = nullptr;
  ASSERT_EQ(rdma_getaddrinfo("127.0.0.1", "0", &hints, &list), 0);
  ibv_qp_init_attr attr{};
  attr.cap.max_send_wr = ~0u;
  attr.cap.max_recv_wr = attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  rdma_cm_id* raw = nullptr;
  ASSERT_EQ(rdma_create_ep(&raw, list, nullptr, &attr), 0) << errno;
  rdma_freeaddrinfo(list);
  listener_.reset(raw);
  ASSERT_EQ(rdma_listen(raw, 4), 0);
  port_ = port_of(raw);
  const OwnId active = asking(RDMA_PS_TCP);
  rdma_cm_id* request = nullptr;
  EXPECT_NE(error_of(rdma_get_request(raw, &request)), 0);
  EXPECT_EQ(request, nullptr);
  const Seen seen = active_.next();
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(seen.status, 28);
}

TEST_F(RdmaCmRequests, GetRequest_NoDescriptorIsFree_RejectsTheRequest) {
  // That of a synchronous listener has a channel of its own.
  listen_alone(RDMA_PS_TCP);
  const OwnId first = asking(RDMA_PS_TCP);
  pollfd asked{listener_->channel->fd, POLLIN, 0};
  ASSERT_EQ(::poll(&asked, 1, kSoonMs), 1);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = ::dup(asked.fd);
  ::close(lowest);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(lowest);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  OwnId next;
  std::thread server([&] { next = taken(); });
  const Seen seen = active_.next();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(seen.status, 28);
  const OwnId second = asking(RDMA_PS_TCP);
  server.join();
  ASSERT_TRUE(next) << "the listener goes on";
  EXPECT_NE(next->channel, listener_->channel);
}

// Endpoints.

class RdmaCmEndpoints : public RdmaCmCalls {
 protected:
  RdmaCmEndpoints() {
    info_.ai_port_space = RDMA_PS_TCP;
    info_.ai_qp_type = IBV_QPT_RC;
    queues_.cap.max_send_wr = queues_.cap.max_recv_wr = 4;
    queues_.cap.max_send_sge = queues_.cap.max_recv_sge = 1;
  }
  int create(ibv_pd* pd, ibv_qp_init_attr* queues) {
    rdma_cm_id* raw = nullptr;
    const int result = rdma_create_ep(&raw, &info_, pd, queues);
    EXPECT_EQ(raw == nullptr, result != 0);
    made_.reset(raw);
    return result;
  }

  rdma_addrinfo info_{};
  ibv_qp_init_attr queues_{};
  OwnId made_;
};

TEST_F(RdmaCmEndpoints, CreateEp_Fails_LeavesNothing) {
  listen();
  rdma_cm_id* raw = nullptr;
  EXPECT_EQ(error_of(rdma_create_ep(nullptr, &info_, nullptr, nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_create_ep(&raw, nullptr, nullptr, nullptr)), EINVAL);
  EXPECT_EQ(error_of(create(nullptr, nullptr)), EINVAL) << "no destination";
  Address to("127.0.0.1", port_);
  info_.ai_flags = RAI_PASSIVE;
  EXPECT_EQ(error_of(create(nullptr, nullptr)), EINVAL) << "no source";
  info_.ai_src_addr = to.get();
  EXPECT_EQ(error_of(create(nullptr, nullptr)), EADDRINUSE);
  info_ = {};
  info_.ai_dst_addr = to.get();
  EXPECT_EQ(error_of(create(nullptr, nullptr)), EPROTONOSUPPORT) << "no port space";
  info_.ai_port_space = RDMA_PS_TCP;
  info_.ai_qp_type = IBV_QPT_RC;
  ibv_path_data path{};
  info_.ai_route = &path;
  info_.ai_route_len = sizeof path;
  EXPECT_EQ(error_of(create(nullptr, nullptr)), EINVAL) << "a route that is none";
  info_.ai_route_len = 0;
  queues_.cap.max_send_wr = ~0u;
  EXPECT_NE(error_of(create(nullptr, &queues_)), 0);
}

TEST_F(RdmaCmEndpoints, CreateEp_Active_IsReadyToConnect) {
  listen();
  Address from("127.0.0.3"), to("127.0.0.1", port_);
  info_.ai_src_addr = from.get();
  info_.ai_dst_addr = to.get();
  const std::string first = "of the name service ";
  info_.ai_connect = const_cast<char*>(first.data());
  info_.ai_connect_len = first.size();
  queues_.qp_type = IBV_QPT_UD;  // the address information goes before
  ASSERT_EQ(create(nullptr, &queues_), 0) << errno;
  EXPECT_EQ(queues_.qp_type, IBV_QPT_RC);
  ASSERT_NE(made_->qp, nullptr);
  EXPECT_EQ(made_->qp->qp_type, IBV_QPT_RC);
  EXPECT_EQ(made_->qp_type, IBV_QPT_RC);
  EXPECT_EQ(made_->route.num_paths, 1);
  EXPECT_EQ(source_of(made_.get()), "127.0.0.3");
  ASSERT_EQ(rdma_migrate_id(made_.get(), active_.get()), 0) << errno;
  const std::string too_long(kIpRequestRoom - first.size() + 1, 'x'), rest(kIpRequestRoom - first.size(), 'r');
  rdma_conn_param param = param_of(too_long);
  EXPECT_EQ(error_of(rdma_connect(made_.get(), &param)), EINVAL);
  param = param_of(rest);
  ASSERT_EQ(rdma_connect(made_.get(), &param), 0) << errno;
  const Seen seen = passive_.next();
  ASSERT_EQ(seen.type, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(seen.data, first + rest);
  const OwnId passive(seen.id);
}

TEST_F(RdmaCmEndpoints, CreateEp_WithARoute_UsesTheRoute) {
  OwnId known = addressed();
  ibv_path_data path = path_data_of(known.get(), kUsablePath, 13);
  Address to("127.0.0.1", 7);
  info_.ai_dst_addr = to.get();
  info_.ai_route = &path;
  info_.ai_route_len = sizeof path;
  ASSERT_EQ(create(nullptr, nullptr), 0) << errno;
  ASSERT_EQ(made_->route.num_paths, 1);
  EXPECT_EQ(made_->route.path_rec->hop_limit, 13);
  EXPECT_EQ(made_->qp, nullptr) << "none is asked for";
}

TEST_F(RdmaCmEndpoints, CreateEp_Passive_GivesRequestsAQueuePair) {
  OwnId known = addressed();
  ibv_pd* pd = ibv_alloc_pd(known->verbs);
  ASSERT_NE(pd, nullptr);
  Address at("127.0.0.1");
  info_.ai_flags = RAI_PASSIVE;
  info_.ai_src_addr = at.get();
  ASSERT_EQ(create(pd, &queues_), 0) << errno;
  EXPECT_EQ(made_->qp, nullptr);
  ASSERT_EQ(rdma_listen(made_.get(), 4), 0) << errno;
  port_ = port_of(made_.get());
  OwnId active = connecting();
  rdma_cm_id* raw = nullptr;
  ASSERT_EQ(rdma_get_request(made_.get(), &raw), 0) << errno;
  OwnId passive(raw);
  ASSERT_NE(raw->qp, nullptr);
  EXPECT_EQ(raw->qp->pd, pd);
  EXPECT_EQ(raw->pd, pd);
  passive.reset();
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

}  // namespace
}  // namespace nupa::test
