// SPDX-License-Identifier: Apache-2.0
/// Ids through the drop-in: ports and listeners, states, options, channels, and destruction.
#include <fcntl.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "fixture.h"

namespace nupa::test {
namespace {

int set_flag(rdma_cm_id* id, int option, int on) { return rdma_set_option(id, RDMA_OPTION_ID, option, &on, sizeof on); }

TEST_F(RdmaCm, Bind_OverlappingAddressAndPort_FailsWithEaddrinuse) {
  for (const auto& [first, second] : {std::pair("0.0.0.0", "0.0.0.0"),
                                      {"0.0.0.0", "127.0.0.1"},
                                      {"127.0.0.1", "0.0.0.0"},
                                      {"127.0.0.1", "127.0.0.1"},
                                      {"::", "0.0.0.0"},
                                      {"0.0.0.0", "::"},
                                      {"::", "::1"},
                                      {"::1", "::"}}) {
    OwnId one = make_id(passive_.get());
    ASSERT_EQ(bind_to(one.get(), first), 0) << errno;
    OwnId other = make_id(passive_.get());
    EXPECT_EQ(error_of(bind_to(other.get(), second, port_of(one.get()))), EADDRINUSE) << first << " " << second;
    one.reset();
  }
}

TEST_F(RdmaCm, DestroyId_OfAListener_FreesItsPort) {
  OwnId one = make_id(passive_.get());
  ASSERT_EQ(bind_to(one.get(), "0.0.0.0"), 0);
  const uint16_t port = port_of(one.get());
  ASSERT_EQ(rdma_listen(one.get(), 1), 0);
  one.reset();
  OwnId other = make_id(passive_.get());
  EXPECT_EQ(bind_to(other.get(), "0.0.0.0", port), 0) << errno;
  EXPECT_EQ(rdma_listen(other.get(), 1), 0) << errno;
}

TEST_F(RdmaCm, Bind_OtherFamilyOrPortSpace_SharesThePort) {
  OwnId ipv4 = make_id(passive_.get());
  ASSERT_EQ(bind_to(ipv4.get(), "0.0.0.0"), 0);
  const uint16_t port = port_of(ipv4.get());
  ASSERT_EQ(rdma_listen(ipv4.get(), 1), 0);
  OwnId ipv6 = make_id(passive_.get());
  ASSERT_EQ(set_flag(ipv6.get(), RDMA_OPTION_ID_AFONLY, 1), 0);
  EXPECT_EQ(bind_to(ipv6.get(), "::", port), 0) << errno;
  EXPECT_EQ(rdma_listen(ipv6.get(), 1), 0) << errno;
  OwnId datagrams = make_id(passive_.get(), RDMA_PS_UDP);
  EXPECT_EQ(bind_to(datagrams.get(), "0.0.0.0", port), 0) << "another port space";
}

TEST_F(RdmaCm, Bind_AnotherAddress_SharesThePort) {
  OwnId one = make_id(passive_.get());
  ASSERT_EQ(bind_to(one.get(), "127.0.0.1"), 0);
  OwnId other = make_id(passive_.get());
  EXPECT_EQ(bind_to(other.get(), "127.0.0.2", port_of(one.get())), 0) << "two addresses: " << errno;
}

TEST_F(RdmaCm, Listen_SharedPort_SucceedsForTheFirstOnly) {
  OwnId one = make_id(passive_.get()), other = make_id(passive_.get());
  ASSERT_EQ(set_flag(one.get(), RDMA_OPTION_ID_REUSEADDR, 1), 0);
  ASSERT_EQ(set_flag(other.get(), RDMA_OPTION_ID_REUSEADDR, 1), 0);
  ASSERT_EQ(bind_to(one.get(), "127.0.0.1"), 0);
  ASSERT_EQ(bind_to(other.get(), "127.0.0.1"), 0);
  const uint16_t port = port_of(one.get());
  one.reset();
  other.reset();
  one = make_id(passive_.get());
  other = make_id(passive_.get());
  for (rdma_cm_id* id : {one.get(), other.get()}) {
    ASSERT_EQ(set_flag(id, RDMA_OPTION_ID_REUSEADDR, 1), 0);
    ASSERT_EQ(bind_to(id, "127.0.0.1", port), 0) << errno;
  }
  EXPECT_EQ(rdma_listen(one.get(), 1), 0) << errno;
  EXPECT_EQ(error_of(rdma_listen(other.get(), 1)), EADDRINUSE);
}

TEST_F(RdmaCm, Bind_PortZero_GetsAFreePort) {
  OwnId one = make_id(passive_.get()), other = make_id(passive_.get());
  EXPECT_EQ(port_of(one.get()), 0);
  ASSERT_EQ(bind_to(one.get(), "0.0.0.0"), 0);
  ASSERT_EQ(bind_to(other.get(), "0.0.0.0"), 0);
  EXPECT_NE(port_of(one.get()), 0);
  EXPECT_NE(port_of(one.get()), port_of(other.get()));
  EXPECT_EQ(one->verbs, nullptr) << "all devices";
}

TEST_F(RdmaCm, Listen_WithoutBind_GetsAFreePort) {
  OwnId id = make_id(passive_.get());
  ASSERT_EQ(rdma_listen(id.get(), 1), 0) << errno;
  EXPECT_NE(port_of(id.get()), 0);
}

TEST_F(RdmaCm, Bind_WrongAddresses_AreRefused) {
  OwnId id = make_id(passive_.get());
  EXPECT_NE(error_of(bind_to(id.get(), "192.0.2.77")), 0);
  EXPECT_EQ(error_of(rdma_bind_addr(id.get(), nullptr)), EINVAL);
  sockaddr_storage strange{};
  strange.ss_family = AF_UNIX;
  EXPECT_EQ(error_of(rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&strange))), EAFNOSUPPORT);
  EXPECT_EQ(bind_to(id.get(), "127.0.0.1"), 0) << "after all that: " << errno;
  EXPECT_EQ(error_of(bind_to(id.get(), "127.0.0.1")), EINVAL) << "it is bound";
}

TEST_F(RdmaCm, Calls_InAWrongState_AreRefused) {
  listen();
  OwnId id = make_id(active_.get());
  EXPECT_EQ(error_of(rdma_resolve_route(id.get(), 100)), EINVAL);
  EXPECT_EQ(error_of(rdma_connect(id.get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_accept(id.get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_reject(id.get(), nullptr, 0)), EINVAL);
  EXPECT_EQ(error_of(rdma_disconnect(id.get())), EINVAL);
  EXPECT_EQ(error_of(rdma_establish(id.get())), EINVAL);
  EXPECT_EQ(error_of(rdma_notify(id.get(), IBV_EVENT_COMM_EST)), EINVAL);
  ibv_qp_attr attr{};
  int mask;
  EXPECT_EQ(error_of(rdma_init_qp_attr(id.get(), &attr, &mask)), EINVAL);
  ibv_qp_init_attr init{};
  EXPECT_EQ(error_of(rdma_create_qp(id.get(), nullptr, &init)), EINVAL) << "no device yet";
  Address to("127.0.0.1", port_);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, nullptr, 100)), EINVAL);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, to.get(), 100), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, to.get(), 100)), EINVAL);
  EXPECT_EQ(error_of(rdma_listen(id.get(), 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_connect(id.get(), nullptr)), EINVAL) << "no route yet";
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_EQ(error_of(rdma_resolve_route(id.get(), 100)), EINVAL);
  make_qp(id.get());
  ASSERT_EQ(rdma_connect(id.get(), nullptr), 0) << errno;
  EXPECT_EQ(error_of(rdma_connect(id.get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_accept(id.get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_disconnect(id.get())), EINVAL) << "not connected";
  OwnId passive = requested();
  EXPECT_EQ(error_of(rdma_disconnect(passive.get())), EINVAL);
  EXPECT_EQ(error_of(rdma_connect(passive.get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_listen(passive.get(), 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_listen(listener_.get(), 1)), EINVAL) << "it listens";
  EXPECT_EQ(error_of(rdma_connect(listener_.get(), nullptr)), EINVAL);
}

TEST_F(RdmaCm, Connect_MoreResourcesThanTheDeviceHas_IsRefused) {
  listen();
  OwnId id = resolved();
  make_qp(id.get());
  ibv_device_attr device;
  ASSERT_EQ(ibv_query_device(id->verbs, &device), 0);
  rdma_conn_param param = param_of();
  param.responder_resources = static_cast<uint8_t>(device.max_qp_rd_atom + 1);
  EXPECT_EQ(error_of(rdma_connect(id.get(), &param)), EINVAL);
  param = param_of();
  param.private_data_len = 4;
  EXPECT_EQ(error_of(rdma_connect(id.get(), &param)), EINVAL) << "of no data";
}

TEST_F(RdmaCm, SetOption_WrongArguments_AreRefused) {
  OwnId id = make_id(active_.get());
  uint8_t byte = 32;
  int number = 1;
  EXPECT_EQ(error_of(rdma_set_option(id.get(), 77, 0, &number, sizeof number)), ENOSYS);
  EXPECT_EQ(error_of(rdma_set_option(id.get(), RDMA_OPTION_ID, 77, &number, sizeof number)), ENOSYS);
  EXPECT_EQ(error_of(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &number, sizeof number)), EINVAL);
  EXPECT_EQ(error_of(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &byte, 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, nullptr, 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_set_option(id.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &byte, 1)), EINVAL);
  ASSERT_EQ(bind_to(id.get(), "127.0.0.1"), 0);
  EXPECT_EQ(error_of(set_flag(id.get(), RDMA_OPTION_ID_AFONLY, 1)), EINVAL) << "it is bound";
}

TEST_F(RdmaCm, SetOption_PathRecord_ResolvesTheRoute) {
  listen();
  OwnId id = make_id(active_.get());
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", port_).get(), 100), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  ibv_path_data path{};
  path.flags = IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_BIDIRECTIONAL;
  path.path.sgid = id->route.addr.addr.ibaddr.sgid;
  path.path.dgid = id->route.addr.addr.ibaddr.dgid;
  path.path.pkey = 0xffff;
  path.path.reversible_numpath = 0x81;
  ASSERT_EQ(rdma_set_option(id.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof path), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  make_qp(id.get());
  ASSERT_EQ(rdma_connect(id.get(), nullptr), 0) << errno;
  OwnId passive = accepted();
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
}

// Channels.

TEST_F(RdmaCm, GetCmEvent_NonblockingChannelWithoutEvents_FailsWithEagain) {
  const int flags = fcntl(active_.get()->fd, F_GETFL);
  ASSERT_EQ(fcntl(active_.get()->fd, F_SETFL, flags | O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(error_of(rdma_get_cm_event(active_.get(), &event)), EAGAIN);
  EXPECT_FALSE(active_.ready(0));
  OwnId id = make_id(active_.get());
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", 1).get(), 100), 0);
  EXPECT_TRUE(active_.ready(kSoonMs));
  EXPECT_TRUE(active_.ready(0)) << "until it is taken";
  ASSERT_EQ(rdma_get_cm_event(active_.get(), &event), 0);
  EXPECT_FALSE(active_.ready(0));
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  EXPECT_EQ(error_of(rdma_get_cm_event(active_.get(), &event)), EAGAIN);
  EXPECT_EQ(error_of(rdma_get_cm_event(nullptr, &event)), EINVAL);
  EXPECT_EQ(error_of(rdma_ack_cm_event(nullptr)), EINVAL);
}

TEST_F(RdmaCm, MigrateId_WaitingEvents_MoveWithTheId) {
  Events other;
  OwnId id = make_id(active_.get()), stays = make_id(active_.get());
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", 1).get(), 100), 0);
  ASSERT_EQ(rdma_resolve_addr(stays.get(), nullptr, Address("127.0.0.1", 1).get(), 100), 0);
  ASSERT_TRUE(active_.ready(kSoonMs));
  ASSERT_EQ(rdma_migrate_id(id.get(), other.get()), 0) << errno;
  EXPECT_EQ(id->channel, other.get());
  Seen seen = other.next();
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(seen.id, id.get());
  seen = active_.next();
  EXPECT_EQ(seen.id, stays.get());
  EXPECT_TRUE(active_.silent());
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  EXPECT_EQ(other.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  id.reset();
}

TEST_F(RdmaCm, MigrateListener_WaitingRequests_MoveWithIt) {
  Events other;
  listen();
  OwnId active = connecting();
  ASSERT_TRUE(passive_.ready(kSoonMs));
  ASSERT_EQ(rdma_migrate_id(listener_.get(), other.get()), 0);
  const Seen seen = other.next();
  ASSERT_EQ(seen.type, RDMA_CM_EVENT_CONNECT_REQUEST);
  OwnId passive(seen.id);
  EXPECT_EQ(passive->channel, other.get());
  make_qp(passive.get());
  ASSERT_EQ(rdma_accept(passive.get(), nullptr), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(other.next().type, RDMA_CM_EVENT_ESTABLISHED);
  listener_.reset();
  passive.reset();
}

TEST_F(RdmaCm, MigrateListener_WaitingRequestWasCanceled_MovesTheRequestThenTheRejection) {
  Events other;
  listen();
  connecting().reset();
  // The request, and the rejection that took it back.
  ASSERT_TRUE(passive_.ready(kSoonMs));
  OwnId last = connecting();
  ASSERT_EQ(rdma_migrate_id(listener_.get(), other.get()), 0) << errno;
  EXPECT_TRUE(passive_.silent());
  const Seen request = other.next();
  ASSERT_EQ(request.type, RDMA_CM_EVENT_CONNECT_REQUEST);
  OwnId child(request.id);
  const Seen taken_back = other.next();
  EXPECT_EQ(taken_back.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(taken_back.id, child.get());
  const Seen second = other.next();
  ASSERT_EQ(second.type, RDMA_CM_EVENT_CONNECT_REQUEST);
  const OwnId other_child(second.id);
  listener_.reset();
}

TEST_F(RdmaCm, MigrateId_ToNoChannelAndBack_IsSynchronousMeanwhile) {
  OwnId id = make_id(active_.get());
  ASSERT_EQ(rdma_migrate_id(id.get(), nullptr), 0) << errno;
  EXPECT_EQ(error_of(rdma_migrate_id(id.get(), nullptr)), EINVAL);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", 1).get(), 100), 0);
  ASSERT_NE(id->event, nullptr);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_migrate_id(id.get(), active_.get()), 0);
  EXPECT_EQ(id->event, nullptr);
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  ASSERT_EQ(id->event, nullptr);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

TEST_F(RdmaCm, DestroyId_UnacknowledgedEvent_WaitsForIt) {
  OwnId id = make_id(active_.get());
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", 1).get(), 100), 0);
  rdma_cm_event* event = active_.take();
  ASSERT_NE(event, nullptr);
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    id.reset();
    destroyed = true;
  });
  // sleep: a call that does not wait would return within that time
  std::this_thread::sleep_for(std::chrono::milliseconds(kWhileMs));
  EXPECT_FALSE(destroyed);
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  destroyer.join();
}

TEST_F(RdmaCm, DestroyId_ReaderTookTheEventsCount_DoesNotWaitForIt) {
  // A reader that sleeps in the descriptor counts down before it can see which event there is.
  int last = 0;
  std::thread reader([&] {
    for (bool over = false; !over;) {
      rdma_cm_event* event = nullptr;
      ASSERT_EQ(rdma_get_cm_event(active_.get(), &event), 0);
      over = event->id->context == &last;
      EXPECT_EQ(rdma_ack_cm_event(event), 0);
    }
  });
  std::atomic<bool> done{false};
  std::thread watch([&] {
    // Nothing could end the two threads.
    if (!soon([&] { return done.load(); })) std::abort();
  });
  constexpr int kIds = 5000;
  for (int i = 0; i < kIds; ++i) {
    OwnId id = make_id(active_.get());
    EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", 1).get(), 100), 0);
  }
  OwnId id = make_id(active_.get(), RDMA_PS_TCP, &last);
  EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", 1).get(), 100), 0);
  reader.join();
  done = true;
  watch.join();
}

TEST_F(RdmaCm, DestroyId_OfAListener_WaitsForTakenRequests) {
  listen();
  OwnId active = connecting();
  rdma_cm_event* event = passive_.take();
  ASSERT_NE(event, nullptr);
  OwnId passive(event->id);
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    listener_.reset();
    destroyed = true;
  });
  // sleep: a call that does not wait would return within that time
  std::this_thread::sleep_for(std::chrono::milliseconds(kWhileMs));
  EXPECT_FALSE(destroyed);
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  destroyer.join();
  make_qp(passive.get());
  EXPECT_EQ(rdma_accept(passive.get(), nullptr), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
}

TEST_F(RdmaCm, DestroyId_WaitingEvents_AreNotReported) {
  OwnId id = make_id(active_.get());
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", 1).get(), 100), 0);
  ASSERT_TRUE(active_.ready(kSoonMs));
  id.reset();
  EXPECT_TRUE(active_.silent());
}

TEST_F(RdmaCm, Calls_OnADestroyedId_AreRefused) {
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(active_.get(), &id, nullptr, RDMA_PS_TCP), 0);
  ASSERT_EQ(rdma_destroy_id(id), 0);
  EXPECT_EQ(error_of(rdma_destroy_id(id)), EINVAL);
  EXPECT_EQ(error_of(rdma_connect(id, nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_accept(id, nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_listen(id, 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_disconnect(id)), EINVAL);
  EXPECT_EQ(error_of(rdma_resolve_route(id, 1)), EINVAL);
  EXPECT_EQ(error_of(bind_to(id, "127.0.0.1")), EINVAL);
  EXPECT_EQ(error_of(rdma_migrate_id(id, active_.get())), EINVAL);
  EXPECT_EQ(error_of(rdma_create_id(active_.get(), nullptr, nullptr, RDMA_PS_TCP)), EINVAL);
}

/// Pages that hold registered memory are the parent's until the child has copied them; the library's ids may lie there.
TEST_F(RdmaCm, Connection_IdBesideRegisteredMemory_OutlivesAChild) {
  listen();
  const OwnId active = resolved();
  make_qp(active.get());
  // Any byte of the page stands for a block of the program's that lies there.
  auto* const page = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(active.get()) & ~uintptr_t{4095});
  ibv_mr* const memory = ibv_reg_mr(active->pd, page, 1, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_NE(memory, nullptr);
  rdma_conn_param param = param_of();
  ASSERT_EQ(rdma_connect(active.get(), &param), 0) << errno;
  const OwnId passive = accepted();
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(passive_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_TRUE(holds_in_child([] {}));
  EXPECT_EQ(error_of(rdma_disconnect(active.get())), 0);
  EXPECT_EQ(passive_.next().type, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(ibv_dereg_mr(memory), 0);
}

}  // namespace
}  // namespace nupa::test
