// SPDX-License-Identifier: Apache-2.0
/// Event channels: calls that wait for acknowledgements, and ids that move to another channel.
#include <fcntl.h>

#include <atomic>
#include <thread>

#include "calls.h"
#include "fixture.h"

namespace nupa::test {
namespace {

TEST_F(RdmaCmCalls, DestroyId_OfASynchronousId_ClosesItsChannel) {
  constexpr int kTimes = 64;
  const auto before = open_descriptors();
  for (int i = 0; i < kTimes; ++i) make_id(nullptr).reset();
  EXPECT_LT(open_descriptors() - before, kTimes / 2);
}

TEST_F(RdmaCmCalls, DestroyId_TwoUnacknowledgedEvents_WaitsForBoth) {
  OwnId id = addressed();
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  rdma_cm_event* first = active_.take();
  ASSERT_NE(first, nullptr);
  ASSERT_EQ(set_id_byte(id.get(), RDMA_OPTION_ID_TOS, 0), 0);
  // A second event of the same id: an answer to its request.
  listen();
  listener_.reset();
  make_qp(id.get());
  ASSERT_EQ(rdma_connect(id.get(), nullptr), 0) << errno;
  rdma_cm_event* second = active_.take();
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->event, RDMA_CM_EVENT_REJECTED);
  rdma_destroy_qp(id.get());
  expect_waits_until([&] { id.reset(); }, {[&] { EXPECT_EQ(rdma_ack_cm_event(second), 0); },
                                           [&] { EXPECT_EQ(rdma_ack_cm_event(first), 0); }});
}

TEST_F(RdmaCmCalls, DestroyId_OfAListener_WaitsForUnacknowledgedRequests) {
  listen();
  const OwnId one = connecting(), other = connecting();
  rdma_cm_event *first = passive_.take(), *second = passive_.take();
  ASSERT_TRUE(first != nullptr && second != nullptr);
  const OwnId first_id(first->id), second_id(second->id);
  expect_waits_until([&] { listener_.reset(); }, {[&] { EXPECT_EQ(rdma_ack_cm_event(first), 0); },
                                                  [&] { EXPECT_EQ(rdma_ack_cm_event(second), 0); }});
}

TEST_F(RdmaCmCalls, DestroyId_OfARequest_DoesNotWaitForItsEvent) {
  listen();
  const OwnId active = connecting();
  rdma_cm_event* event = passive_.take();
  ASSERT_NE(event, nullptr);
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    EXPECT_EQ(rdma_destroy_id(event->id), 0);
    destroyed = true;
  });
  EXPECT_TRUE(soon([&] { return destroyed.load(); }));
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  destroyer.join();
}

TEST_F(RdmaCmCalls, MigrateId_UnacknowledgedEvent_WaitsForIt) {
  const Events other;
  OwnId id = make_id(active_.get());
  ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0);
  rdma_cm_event* event = active_.take();
  ASSERT_NE(event, nullptr);
  expect_waits_until([&] { EXPECT_EQ(rdma_migrate_id(id.get(), other.get()), 0) << errno; },
                     {[&] { EXPECT_EQ(rdma_ack_cm_event(event), 0); }});
  EXPECT_EQ(id->channel, other.get());
  id.reset();
}

TEST_F(RdmaCmCalls, MigrateId_TwoEventsWait_KeepsTheirOrder) {
  const Events other;
  OwnId id = make_id(active_.get());
  ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0);
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0) << "while its event waits: " << errno;
  ASSERT_EQ(rdma_migrate_id(id.get(), other.get()), 0);
  EXPECT_TRUE(active_.silent());
  EXPECT_EQ(other.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(other.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_TRUE(other.silent());
  id.reset();
}

TEST_F(RdmaCmCalls, MigrateId_SynchronousIdToAChannel_ClosesItsOwn) {
  constexpr int kTimes = 64;
  const auto before = open_descriptors();
  for (int i = 0; i < kTimes; ++i) {
    const OwnId id = make_id(nullptr);
    ASSERT_EQ(rdma_migrate_id(id.get(), active_.get()), 0) << errno;
  }
  EXPECT_LT(open_descriptors() - before, kTimes / 2);
}

TEST_F(RdmaCmCalls, MigrateId_ToItsOwnChannel_ChangesNothing) {
  OwnId id = make_id(active_.get());
  ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0);
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  ASSERT_EQ(rdma_migrate_id(id.get(), active_.get()), 0) << errno;
  EXPECT_EQ(id->channel, active_.get());
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_TRUE(active_.silent());
}

TEST_F(RdmaCmCalls, MigrateId_OfARequest_LeavesTheListenersEvents) {
  const Events other;
  listen();
  const OwnId active = connecting();
  OwnId passive = requested();
  ASSERT_TRUE(passive);
  ASSERT_EQ(rdma_migrate_id(passive.get(), other.get()), 0) << errno;
  make_qp(passive.get());
  ASSERT_EQ(rdma_accept(passive.get(), nullptr), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(other.next().type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_TRUE(passive_.silent());
  passive.reset();
}

TEST_F(RdmaCmCalls, Events_OfSeveralIds_KeepTheirOrder) {
  OwnId ids[3];
  for (OwnId& id : ids) {
    id = make_id(active_.get());
    ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0);
  }
  for (OwnId& id : ids) ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  ids[1].reset();
  for (const int type : {RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED})
    for (const int i : {0, 2}) {
      const Seen seen = active_.next();
      ASSERT_EQ(seen.type, type);
      EXPECT_EQ(seen.id, ids[i].get());
    }
  EXPECT_TRUE(active_.silent()) << "its events went with it";
}

TEST_F(RdmaCmCalls, EventChannel_IsClosedAtExec) {
  EXPECT_NE(fcntl(active_.get()->fd, F_GETFD) & FD_CLOEXEC, 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(error_of(rdma_get_cm_event(active_.get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_get_cm_event(nullptr, &event)), EINVAL);
}

TEST_F(RdmaCmCalls, SynchronousCalls_ShowTheLastEventOnly) {
  const OwnId id = make_id(nullptr);
  ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0) << errno;
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0) << errno;
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_EQ(id->event->id, id.get());
}

}  // namespace
}  // namespace nupa::test
