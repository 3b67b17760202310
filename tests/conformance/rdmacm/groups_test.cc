// SPDX-License-Identifier: Apache-2.0
/// Multicast groups through the drop-in: joining, when queue pairs are attached, and the events.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "fixture.h"

namespace nupa::test {
namespace {

/// Called in this thread before it puts a queue pair into a group.
thread_local std::function<void()> before_attach;

}  // namespace
}  // namespace nupa::test

extern "C" __attribute__((visibility("default"))) int attach_with_a_step(ibv_qp* qp, const ibv_gid* gid,
                                                                         uint16_t lid) __asm__("ibv_attach_mcast");
int attach_with_a_step(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  static auto* const real =
      reinterpret_cast<int (*)(ibv_qp*, const ibv_gid*, uint16_t)>(dlsym(RTLD_NEXT, "ibv_attach_mcast"));
  if (nupa::test::before_attach) std::exchange(nupa::test::before_attach, nullptr)();
  return real(qp, gid, lid);
}

namespace nupa::test {
namespace {

ibv_gid gid_of(const char* ipv4) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  EXPECT_EQ(inet_pton(AF_INET, ipv4, &gid.raw[12]), 1);
  return gid;
}

/// Whether the queue pair was in the group; it is not any more.
bool was_in_group(ibv_qp* qp, const char* group) {
  const ibv_gid gid = gid_of(group);
  return ibv_detach_mcast(qp, &gid, 0) == 0;
}

class RdmaCmGroups : public RdmaCm {
 protected:
  void SetUp() override {
    id_ = bound(active_.get());
    make_qp(id_.get());
  }
  static OwnId bound(rdma_event_channel* channel) {
    OwnId id = make_id(channel, RDMA_PS_UDP);
    EXPECT_EQ(bind_to(id.get(), "127.0.0.1"), 0) << errno;
    return id;
  }
  static int join_as(rdma_cm_id* id, const char* group, uint32_t flags, uint32_t mask = 3) {
    Address at(group);
    rdma_cm_join_mc_attr_ex join{};
    join.comp_mask = mask;
    join.join_flags = flags;
    join.addr = at.get();
    return rdma_join_multicast_ex(id, &join, nullptr);
  }
  void join(const char* group) {
    ASSERT_EQ(rdma_join_multicast(id_.get(), Address(group).get(), nullptr), 0) << errno;
    EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_MULTICAST_JOIN);
  }

  /// Another thread does `leave` when this one has taken the event of a join and is about to attach the queue pair.
  /// This one goes on when the other has come to a wait.
  void join_while_another_thread(const char* group, const std::function<void()>& leave) {
    ASSERT_EQ(rdma_join_multicast(id_.get(), Address(group).get(), nullptr), 0) << errno;
    std::thread leaver;
    before_attach = [&] {
      std::promise<pid_t> started;
      leaver = std::thread([&] {
        started.set_value(gettid());
        leave();
      });
      const pid_t thread = started.get_future().get();
      EXPECT_TRUE(soon([&] { return stands_still(thread); }));
    };
    rdma_cm_event* event = active_.take();
    ASSERT_NE(event, nullptr);
    EXPECT_EQ(event->event, RDMA_CM_EVENT_MULTICAST_JOIN);
    EXPECT_EQ(rdma_ack_cm_event(event), 0);
    ASSERT_TRUE(leaver.joinable());
    leaver.join();
  }
  /// A queue pair of the program's, which outlives the id.
  struct OwnQueuePair {
    ibv_cq* cq = nullptr;
    ibv_qp* qp = nullptr;
    explicit OwnQueuePair(rdma_cm_id* id) : cq(ibv_create_cq(id->verbs, 8, nullptr, nullptr, 0)) {
      ibv_qp_init_attr attr{};
      attr.send_cq = attr.recv_cq = cq;
      attr.cap.max_send_wr = attr.cap.max_recv_wr = attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
      attr.qp_type = IBV_QPT_UD;
      qp = ibv_create_qp(id->pd, &attr);
      EXPECT_NE(qp, nullptr);
      rdma_destroy_qp(id);
      id->qp = qp;
    }
    ~OwnQueuePair() {
      EXPECT_EQ(ibv_destroy_qp(qp), 0);
      EXPECT_EQ(ibv_destroy_cq(cq), 0);
    }
    OwnQueuePair(const OwnQueuePair&) = delete;
    OwnQueuePair& operator=(const OwnQueuePair&) = delete;
  };

  OwnId id_;
};

TEST_F(RdmaCmGroups, DestroyId_InAChild_LeavesTheParentsQueuePairInItsGroup) {
  join("239.1.2.3");
  EXPECT_TRUE(holds_in_child([&] { EXPECT_EQ(rdma_destroy_id(id_.get()), 0) << errno; }));
  EXPECT_TRUE(was_in_group(id_->qp, "239.1.2.3"));
}

TEST_F(RdmaCmGroups, Join_WrongArguments_AreRefused) {
  constexpr uint32_t kAddress = RDMA_CM_JOIN_MC_ATTR_ADDRESS, kFlags = RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
  EXPECT_EQ(error_of(rdma_join_multicast_ex(id_.get(), nullptr, nullptr)), EINVAL);
  EXPECT_EQ(error_of(join_as(id_.get(), "239.1.2.3", 0, RDMA_CM_JOIN_MC_ATTR_RESERVED)), ENOTSUP);
  EXPECT_EQ(error_of(join_as(id_.get(), "239.1.2.3", 0, kFlags)), EINVAL) << "no address";
  EXPECT_EQ(error_of(join_as(id_.get(), "239.1.2.3", 0, kAddress)), EINVAL) << "no flags";
  EXPECT_EQ(error_of(join_as(id_.get(), "239.1.2.3", RDMA_MC_JOIN_FLAG_RESERVED)), EINVAL);
  EXPECT_EQ(error_of(rdma_join_multicast(id_.get(), nullptr, nullptr)), EINVAL);
  sockaddr_storage strange{};
  strange.ss_family = AF_UNIX;
  EXPECT_EQ(error_of(rdma_join_multicast(id_.get(), reinterpret_cast<sockaddr*>(&strange), nullptr)), EAFNOSUPPORT);
  EXPECT_EQ(error_of(rdma_leave_multicast(id_.get(), reinterpret_cast<sockaddr*>(&strange))), EAFNOSUPPORT);
  EXPECT_EQ(error_of(rdma_leave_multicast(id_.get(), nullptr)), EINVAL);
  const OwnId unbound = make_id(active_.get(), RDMA_PS_UDP);
  EXPECT_EQ(error_of(rdma_join_multicast(unbound.get(), Address("239.1.2.3").get(), nullptr)), EINVAL)
      << "it has no device";
  for (const char* none : {"223.255.255.255", "240.0.0.0", "fe80::1"})
    EXPECT_EQ(error_of(rdma_join_multicast(id_.get(), Address(none).get(), nullptr)), EINVAL) << none;
  EXPECT_TRUE(active_.silent());
  const OwnId alone = bound(active_.get());
  for (const char* group : {"224.0.0.0", "239.255.255.255", "ff12::1"}) {
    EXPECT_EQ(rdma_join_multicast(alone.get(), Address(group).get(), nullptr), 0) << group << " " << errno;
    EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_MULTICAST_JOIN) << group << " without a queue pair";
  }
}

TEST_F(RdmaCmGroups, Join_Event_HasTheGroupsAddressHandle) {
  int context = 0;
  ASSERT_EQ(rdma_join_multicast(id_.get(), Address("239.1.2.3").get(), &context), 0) << errno;
  rdma_cm_event* event = active_.take();
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(event->status, 0);
  EXPECT_EQ(event->id, id_.get());
  const rdma_ud_param& told = event->param.ud;
  EXPECT_EQ(told.private_data, &context);
  const ibv_gid group = gid_of("239.1.2.3");
  EXPECT_EQ(std::memcmp(&told.ah_attr.grh.dgid, &group, sizeof group), 0);
  EXPECT_EQ(told.ah_attr.is_global, 1);
  EXPECT_EQ(told.ah_attr.port_num, 1);
  EXPECT_EQ(told.ah_attr.grh.hop_limit, 64);
  EXPECT_EQ(told.qp_num, 0xffffffu);
  ibv_gid own;
  ASSERT_EQ(ibv_query_gid(id_->verbs, 1, told.ah_attr.grh.sgid_index, &own), 0);
  EXPECT_EQ(std::memcmp(&own, &id_->route.addr.addr.ibaddr.sgid, sizeof own), 0);
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
}

TEST_F(RdmaCmGroups, Join_EventTaken_AttachesTheQueuePair) {
  ASSERT_EQ(rdma_join_multicast(id_.get(), Address("239.1.2.3").get(), nullptr), 0);
  ASSERT_TRUE(active_.ready(kSoonMs));
  EXPECT_FALSE(was_in_group(id_->qp, "239.1.2.3"));
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_TRUE(was_in_group(id_->qp, "239.1.2.3"));
}

TEST_F(RdmaCmGroups, Join_SendOnly_DoesNotAttachTheQueuePair) {
  ASSERT_EQ(join_as(id_.get(), "239.1.2.3", RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_FALSE(was_in_group(id_->qp, "239.1.2.3"));
  ASSERT_EQ(join_as(id_.get(), "239.1.2.4", RDMA_MC_JOIN_FLAG_FULLMEMBER), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_TRUE(was_in_group(id_->qp, "239.1.2.4"));
}

TEST_F(RdmaCmGroups, Leave_OneOfTwoGroups_DetachesFromThatGroup) {
  join("239.1.2.3");
  join("239.1.2.4");
  ASSERT_EQ(rdma_leave_multicast(id_.get(), Address("239.1.2.3").get()), 0) << errno;
  EXPECT_FALSE(was_in_group(id_->qp, "239.1.2.3"));
  EXPECT_TRUE(was_in_group(id_->qp, "239.1.2.4"));
  EXPECT_EQ(error_of(rdma_leave_multicast(id_.get(), Address("239.1.2.3").get())), EADDRNOTAVAIL);
}

TEST_F(RdmaCmGroups, DestroyId_InTwoGroups_DetachesFromBoth) {
  const OwnQueuePair own(id_.get());
  join("239.1.2.3");
  join("239.1.2.4");
  EXPECT_EQ(rdma_destroy_id(id_.release()), 0);
  EXPECT_FALSE(was_in_group(own.qp, "239.1.2.3"));
  EXPECT_FALSE(was_in_group(own.qp, "239.1.2.4"));
}

TEST_F(RdmaCmGroups, Leave_WhileAnotherThreadTakesTheEvent_DetachesTheQueuePair) {
  join_while_another_thread(
      "239.1.2.3", [this] { EXPECT_EQ(rdma_leave_multicast(id_.get(), Address("239.1.2.3").get()), 0) << errno; });
  EXPECT_FALSE(was_in_group(id_->qp, "239.1.2.3"));
}

TEST_F(RdmaCmGroups, DestroyId_WhileAnotherThreadTakesTheEvent_DetachesTheQueuePair) {
  const OwnQueuePair own(id_.get());
  join_while_another_thread("239.1.2.3", [this] { EXPECT_EQ(rdma_destroy_id(id_.release()), 0); });
  EXPECT_FALSE(was_in_group(own.qp, "239.1.2.3"));
}

TEST_F(RdmaCmGroups, Join_ConnectedQueuePair_ReportsAMulticastError) {
  const OwnId connected = make_id(active_.get());
  ASSERT_EQ(bind_to(connected.get(), "127.0.0.1"), 0);
  make_qp(connected.get());
  ibv_qp* own = std::exchange(id_->qp, connected->qp);
  ASSERT_EQ(rdma_join_multicast(id_.get(), Address("239.1.2.3").get(), nullptr), 0) << errno;
  const Seen seen = active_.next();
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_MULTICAST_ERROR);
  EXPECT_EQ(seen.status, -EINVAL);
  id_->qp = own;
  EXPECT_EQ(rdma_leave_multicast(id_.get(), Address("239.1.2.3").get()), 0) << errno;

  const OwnId waits = bound(nullptr);
  waits->qp = connected->qp;
  EXPECT_EQ(error_of(rdma_join_multicast(waits.get(), Address("239.1.2.3").get(), nullptr)), EINVAL);
  ASSERT_NE(waits->event, nullptr);
  EXPECT_EQ(waits->event->event, RDMA_CM_EVENT_MULTICAST_ERROR);
  waits->qp = nullptr;
}

TEST_F(RdmaCmGroups, Leave_UnacknowledgedEvent_WaitsForIt) {
  ASSERT_EQ(rdma_join_multicast(id_.get(), Address("239.1.2.3").get(), nullptr), 0);
  rdma_cm_event* event = active_.take();
  ASSERT_NE(event, nullptr);
  join("239.1.2.4");  // another group's event holds up nobody
  std::atomic<bool> left{false};
  std::thread leaver([&] {
    EXPECT_EQ(rdma_leave_multicast(id_.get(), Address("239.1.2.3").get()), 0) << errno;
    left = true;
  });
  // sleep: a call that does not wait would return within that time
  std::this_thread::sleep_for(std::chrono::milliseconds(kWhileMs));
  EXPECT_FALSE(left);
  EXPECT_EQ(rdma_leave_multicast(id_.get(), Address("239.1.2.4").get()), 0) << errno;
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  leaver.join();
}

TEST_F(RdmaCmGroups, Leave_EventsOfTwoGroups_RemovesItsOwnOnly) {
  ASSERT_EQ(rdma_join_multicast(id_.get(), Address("239.1.2.3").get(), &active_), 0);
  ASSERT_EQ(rdma_join_multicast(id_.get(), Address("239.1.2.4").get(), &passive_), 0);
  ASSERT_TRUE(active_.ready(kSoonMs));
  ASSERT_EQ(rdma_leave_multicast(id_.get(), Address("239.1.2.3").get()), 0) << errno;
  rdma_cm_event* event = active_.take();
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(event->param.ud.private_data, &passive_);
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  EXPECT_TRUE(active_.silent());
}

}  // namespace
}  // namespace nupa::test
