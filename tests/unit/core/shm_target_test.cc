// SPDX-License-Identifier: Apache-2.0
/// Tests of which peers may send to a queue pair over shared memory, and which values of a peer are checked.
#include <fcntl.h>
#include <poll.h>

#include <cstddef>
#include <utility>

#include "core/seam/shared_target.h"
#include "shm_fixture.h"
#include "shm_targets.h"

namespace nupa::core {
namespace {

constexpr Way kShortTimeout{.timeout = 1, .retry_cnt = 0};

TEST_F(ShmTarget, Request_TargetConnectedToAnother_IsUnanswered) {  // IBTA 9.6: RC packets are of one connection
  make_pair();
  Qp* third = make_qp();
  ASSERT_EQ(connect(*third, b->number(), kShortTimeout), 0);
  expect_unanswered(*third);
  EXPECT_EQ(state_of(*b), QpState::kRts);
  expect_served(*a);
}

TEST_F(ShmTarget, Send_TargetConnectedToAnother_TakesNoReceive) {
  make_pair();
  Qp* third = make_qp();
  ASSERT_EQ(connect(*third, b->number(), kShortTimeout), 0);
  ASSERT_EQ(receive(*b, 7), 0);
  ASSERT_EQ(send(*third, 9), 0);
  EXPECT_EQ(next().status, WcStatus::kRetryExcErr);
  EXPECT_TRUE(is_empty());
  ASSERT_EQ(send(*a, 1), 0);
  EXPECT_EQ(next().wr_id + next().wr_id, 8u);
}

TEST_F(ShmTarget, Reset_RequestOfTheOldPeer_IsUnanswered) {  // IBTA 10.3.1.1
  a = make_qp();
  b = make_qp();
  Qp* c = make_qp();
  ASSERT_EQ(connect(*a, b->number(), kShortTimeout), 0);
  ASSERT_EQ(connect(*b, a->number()), 0);
  expect_served(*a);
  ASSERT_EQ(move(*b, QpState::kReset), 0);
  ASSERT_EQ(connect(*b, c->number()), 0);
  ASSERT_EQ(connect(*c, b->number()), 0);
  expect_unanswered(*a);
  EXPECT_EQ(state_of(*b), QpState::kRts);
  expect_served(*c);
}

TEST_F(ShmTarget, Request_NumberOfADestroyedQueuePair_IsUnanswered) {
  make_pair(QpType::kRc, kShortTimeout);
  expect_served(*a);
  const uint32_t index = b->index();
  const uint64_t before = tables().qp[index].state.load();
  qps.pop_back();  // b
  EXPECT_EQ(tables().qp[index].in_use.load(), 0u);
  EXPECT_GT(shm::epoch_of(tables().qp[index].state.load()), shm::epoch_of(before));
  expect_unanswered(*a);
}

TEST_F(ShmTarget, Request_NumberOfNoQueuePair_IsUnanswered) {
  a = make_qp();
  ASSERT_EQ(connect(*a, shm::number_of(process().slot(), shm::kSlotQp - 1), kShortTimeout), 0);
  expect_unanswered(*a);
}

TEST_F(ShmTarget, Ready_EachState_IsTrueFromRtrToSqd) {  // IBTA 10.3.1
  make_pair();
  SharedTarget target = target_of(*b);
  EXPECT_TRUE(takes_requests(target, *a));
  ASSERT_EQ(move(*b, QpState::kSqd), 0);
  EXPECT_TRUE(takes_requests(target, *a));
  ASSERT_EQ(move(*b, QpState::kErr), 0);
  EXPECT_FALSE(takes_requests(target, *a));
  ASSERT_EQ(move(*b, QpState::kReset), 0);
  EXPECT_FALSE(takes_requests(target, *a));
  ASSERT_EQ(to_init(*b), 0);
  EXPECT_FALSE(takes_requests(target, *a));
  ASSERT_EQ(to_rtr(*b, a->number()), 0);
  EXPECT_TRUE(takes_requests(target, *a));
  ASSERT_EQ(to_rts(*b), 0);
  EXPECT_TRUE(takes_requests(target, *a));
}

TEST_F(ShmTarget, Ready_QueuePairIsDestroyed_IsFalse) {
  make_pair();
  shared(*b).in_use.store(0);  // as its owner does first
  SharedTarget target = target_of(*b);
  EXPECT_FALSE(takes_requests(target, *a));
  shared(*b).in_use.store(1);
  EXPECT_TRUE(takes_requests(target, *a));
}

TEST_F(ShmTarget, Datagram_AddressOfAnotherHost_IsNotDelivered) {
  b = make_qp(QpType::kUd);
  ASSERT_EQ(connect(*b, 0), 0);
  for (const uint64_t id : {7, 8, 9}) ASSERT_EQ(receive(*b, id), 0);
  Gid elsewhere = own_gid();
  elsewhere.raw[15] ^= 0x55;
  const auto near = make_ah(own_gid());
  const auto far = make_ah(elsewhere);
  for (const AddressHandle* to : {near.get(), far.get(), near.get()}) ASSERT_EQ(send_to(*b, to, b->number()), 0);
  int sent = 0, received = 0;
  for (WorkCompletion wc{}; cq->poll(&wc, 1) == 1;) {
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    (wc.wr_id == 1 ? sent : received) += 1;
  }
  EXPECT_EQ(sent, 3);
  EXPECT_EQ(received, 2);
}

TEST_F(ShmTarget, Datagram_ReceiverInInit_IsNotDelivered) {  // IBTA 10.3.1.2
  a = make_qp(QpType::kUd);
  ASSERT_EQ(connect(*a, 0), 0);
  b = make_qp(QpType::kUd);
  ASSERT_EQ(to_init(*b), 0);
  ASSERT_EQ(receive(*b, 7), 0);
  const auto ah = make_ah(own_gid());
  ASSERT_EQ(send_to(*a, ah.get(), b->number()), 0);
  EXPECT_EQ(next().wr_id, 1u);
  EXPECT_TRUE(is_empty());
  ASSERT_EQ(to_rtr(*b, 0), 0);
  ASSERT_EQ(send_to(*a, ah.get(), b->number()), 0);
  EXPECT_EQ(next().wr_id + next().wr_id, 8u);
}

TEST_F(ShmTarget, AttachMulticast_TableIsFull_FailsWithEnomem) {
  b = make_qp(QpType::kUd);
  Gid group;
  group.raw[0] = 0xff;
  group.raw[1] = 0x0e;
  shm::SegmentHeader& header = *tables().header;
  constexpr uint32_t kUnusedEntry = shm::kMaxQp + 1;
  for (shm::McastShared& place : header.mcast) place.qp.store(kUnusedEntry);
  EXPECT_EQ(b->attach_multicast(group, 0), ENOMEM);
  header.mcast[shm::kMaxMcast - 1].qp.store(0);
  EXPECT_EQ(b->attach_multicast(group, 0), 0);
  EXPECT_EQ(header.mcast_high_water.load(), shm::kMaxMcast);
  EXPECT_EQ(b->detach_multicast(group, 0), 0);
  for (shm::McastShared& place : header.mcast) place.qp.store(0);
}

TEST_F(ShmTarget, Multicast_InvalidMemberInTheTable_IsSkipped) {
  b = make_qp(QpType::kUd);
  ASSERT_EQ(connect(*b, 0), 0);
  ASSERT_EQ(receive(*b, 7), 0);
  Gid group;
  group.raw[0] = 0xff;
  group.raw[1] = 0x0e;
  group.raw[15] = 9;
  shm::SegmentHeader& header = *tables().header;
  ASSERT_EQ(b->attach_multicast(group, 0), 0);
  shm::McastShared& wrong = header.mcast[header.mcast_high_water.load()];
  wrong.gid = group;
  wrong.qp.store(~0u);
  header.mcast_high_water.fetch_add(1);
  const auto ah = make_ah(group);
  ASSERT_EQ(send_to(*b, ah.get(), 0xffffff), 0);
  EXPECT_EQ(next().status, WcStatus::kSuccess);
  EXPECT_EQ(next().status, WcStatus::kSuccess);
  wrong.qp.store(0);
  EXPECT_EQ(b->detach_multicast(group, 0), 0);
}

TEST_F(ShmTarget, Multicast_SenderIsAMember_ReceivesItUnlessLoopbackIsBlocked) {  // IBV_QP_CREATE_BLOCK_SELF_MCAST_LB
  Gid group;
  group.raw[0] = 0xff;
  group.raw[1] = 0x0e;
  group.raw[15] = 10;
  const auto ah = make_ah(group);
  for (const bool hears_itself : {true, false}) {
    qps.push_back(std::move(*handle->create_qp(
        pd.get(),
        {.type = QpType::kUd, .send_cq = cq, .recv_cq = cq, .cap = {8, 8, 4, 4, 64}, .hears_itself = hears_itself})));
    a = static_cast<Qp*>(qps.back().get());
    b = make_qp(QpType::kUd);
    for (Qp* member : {a, b}) {
      ASSERT_EQ(connect(*member, 0), 0);
      ASSERT_EQ(receive(*member, member == a ? 7 : 8), 0);
      ASSERT_EQ(member->attach_multicast(group, 0), 0);
    }
    ASSERT_EQ(send_to(*a, ah.get(), 0xffffff, 1, 0), 0);
    EXPECT_EQ(next().wr_id, hears_itself ? 7u : 8u);
    if (hears_itself) {
      EXPECT_EQ(next().wr_id, 8u);
    }
    EXPECT_TRUE(is_empty());
    for (Qp* member : {a, b}) EXPECT_EQ(member->detach_multicast(group, 0), 0);
  }
}

TEST_F(ShmTarget, FindDomainQueue_NumberOrDomainDiffers_IsNotFound) {  // IBTA A14.5
  Srq* srq = make_srq(4);
  shm::SrqShared& shown = tables().srq[srq->index()];
  const auto found = [&](uint32_t number, uint64_t domain) {
    return find_domain_queue(process().node(), number, domain).has_value();
  };
  constexpr uint64_t kDomain = 5;
  shown.xrcd = kDomain;
  EXPECT_FALSE(found(srq->number(), kDomain)) << "it is no XRC queue";
  shown.type = static_cast<uint32_t>(SrqType::kXrc);
  EXPECT_TRUE(found(srq->number(), kDomain));
  EXPECT_FALSE(found(srq->number(), kDomain + 1));
  shown.number ^= 1;
  EXPECT_FALSE(found(srq->number() ^ 1, kDomain));
  shown.number ^= 1;
  shown.cq = shm::kMaxCq;
  EXPECT_FALSE(found(srq->number(), kDomain));
  shown.cq = 1;
  const auto queue = find_domain_queue(process().node(), srq->number(), kDomain);
  ASSERT_TRUE(queue);
  EXPECT_TRUE(queue->stands());
  shown.in_use.store(0);
  EXPECT_FALSE(queue->stands());
  EXPECT_FALSE(found(srq->number(), kDomain));
  shown.in_use.store(1);
  shown.type = static_cast<uint32_t>(SrqType::kBasic);
}

TEST_F(ShmTarget, Ready_OtherProcessOrQueuePair_IsFalse) {
  make_pair();
  SharedTarget target = target_of(*b);
  EXPECT_FALSE(target.ready(process().slot() + 1, a->number()));
  EXPECT_FALSE(target.ready(process().slot(), a->number() + 1));
  EXPECT_TRUE(target.ready(process().slot(), a->number()));
}

TEST_F(ShmTarget, Claim_QueuePairInItsNextLife_PutsTheReceiveBack) {
  make_pair();
  SharedTarget target = target_of(*b);
  ASSERT_TRUE(takes_requests(target, *a));
  ASSERT_EQ(move(*b, QpState::kReset), 0);  // after it was looked at, before the claim
  ASSERT_EQ(connect(*b, a->number()), 0);
  ASSERT_EQ(receive(*b, 7), 0);
  EXPECT_FALSE(target.take());
  ASSERT_TRUE(takes_requests(target, *a));
  const auto claim = target.take();
  ASSERT_TRUE(claim) << "the receive is lost";
  EXPECT_EQ(claim.slot->wr_id, 7u);
  EXPECT_EQ(claim.slot->claim_qp.load(), b->index() + 1) << "the owner does not find which queue pair claimed it";
  target.put_back(claim);
}

TEST_F(ShmTarget, Claim_QueuePairThatStillTakesRequests_HasTheReceive) {  // IBTA 10.3.1: RTR, RTS, SQD
  make_pair();
  ASSERT_EQ(receive(*b, 7), 0);
  SharedTarget target = target_of(*b);
  ASSERT_TRUE(takes_requests(target, *a));
  ASSERT_EQ(move(*b, QpState::kSqd), 0);
  const auto claim = target.take();
  ASSERT_TRUE(claim);
  EXPECT_EQ(claim.slot->wr_id, 7u);
  target.put_back(claim);
}

TEST_F(ShmTarget, Claim_QueuePairInError_PutsTheReceiveBack) {
  make_pair();
  ASSERT_EQ(receive(*b, 7), 0);
  SharedTarget target = target_of(*b);
  ASSERT_TRUE(takes_requests(target, *a));
  tables().qp[b->index()].state.store(
      shm::pack_state(shm::epoch_of(tables().qp[b->index()].state.load()), QpState::kErr));
  EXPECT_FALSE(target.take());
  ASSERT_EQ(move(*b, QpState::kErr), 0);
  EXPECT_EQ(next().status, WcStatus::kWrFlushErr);
}

TEST_F(ShmTarget, Failure_NotedAfterAReset_IsNoEventOfTheNextLife) {
  make_pair();
  const uint64_t epoch = shm::epoch_of(shared(*b).state.load());
  ASSERT_EQ(move(*b, QpState::kReset), 0);
  ASSERT_EQ(connect(*b, a->number()), 0);
  // By a peer that looked at the state before the reset, and writes after it.
  shared(*b).error.store(shm::pack_error(epoch, EventType::kQpAccessErr));
  ASSERT_EQ(move(*b, QpState::kErr), 0);
  host::call_attention(process().node().self(), shm::attention::kQp, b->index());
  ASSERT_TRUE(soon([&] { return shared(*b).error.load() == 0; }));
  // When the service thread comes again it has done with that.
  shared(*b).wake.store(1);
  host::call_attention(process().node().self(), shm::attention::kQp, b->index());
  ASSERT_TRUE(soon([&] { return shared(*b).wake.load() == 0; }));
  ASSERT_EQ(fcntl(handle->async_fd(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_FALSE(handle->next_event());
}

TEST_F(ShmTarget, Fail_TargetOfAnEarlierLife_LeavesThePresentOne) {
  make_pair();
  SharedTarget target = target_of(*b);
  ASSERT_TRUE(takes_requests(target, *a));
  ASSERT_EQ(move(*b, QpState::kReset), 0);
  ASSERT_EQ(connect(*b, a->number()), 0);
  target.fail(EventType::kQpAccessErr);
  EXPECT_EQ(state_of(*b), QpState::kRts);
  EXPECT_EQ(shared(*b).error.load(), 0u);
  ASSERT_TRUE(takes_requests(target, *a));
  target.fail(std::nullopt);
  EXPECT_EQ(state_of(*b), QpState::kErr);
}

TEST_F(ShmTarget, Ready_InvalidIndicesInAPeersTables_IsRefused) {  // another process may write what it likes
  make_pair();
  shm::QpShared& theirs = shared(*b);
  const uint32_t queue = theirs.recv_cq.load();
  theirs.recv_cq.store(shm::kMaxCq);
  SharedTarget target = target_of(*b);
  EXPECT_FALSE(takes_requests(target, *a));
  theirs.recv_cq.store(shm::kMaxCq - 1);
  EXPECT_TRUE(takes_requests(target, *a));
  theirs.recv_cq.store(queue);
  theirs.srq.store(shm::kMaxSrq + 1);
  SharedTarget other = target_of(*b);
  EXPECT_FALSE(takes_requests(other, *a));
  theirs.srq.store(0);
  ASSERT_EQ(receive(*b, 7), 0);
  const uint64_t where = theirs.recv.where.load();
  // A ring that lies beyond the end of the file is none.
  for (const uint64_t wrong : {shm::pack_ring(uint64_t{1} << 40, shm::ring_log2(where)),
                               shm::pack_ring(shm::ring_offset(where), shm::kMaxRingLog2 + 1),
                               // So many slots that their bytes wrap around to none.
                               shm::pack_ring(shm::ring_offset(where), 63)}) {
    theirs.recv.where.store(wrong);
    SharedTarget third = target_of(*b);
    EXPECT_TRUE(takes_requests(third, *a));
    EXPECT_FALSE(third.take());
  }
  theirs.recv.where.store(where);
  shm::CqShared& completions = tables().cq[cq->index()];
  const uint64_t place = completions.where.load();
  for (const uint64_t wrong : {uint64_t{0}, shm::pack_ring(uint64_t{1} << 40, shm::ring_log2(place)),
                               shm::pack_ring(shm::ring_offset(place), 63)}) {
    completions.where.store(wrong);
    host::CompletionPort port(process().node().self(), cq->index());
    shm::CqEntry entry;
    EXPECT_EQ(port.push(process().tag(), nullptr, false, entry), host::CompletionPort::Pushed::kNo);
  }
  completions.where.store(place);
}

TEST_F(ShmTarget, Take_EntryCountBeyondTheSlot_IsLimitedToTheSlot) {  // another process may write what it likes
  make_pair();
  const shm::ReceiveRing ring = open_ring(process().node().self(), shared(*b).recv);
  ASSERT_TRUE(ring.valid());
  ASSERT_EQ(receive(*b, 7), 0);
  // As an entry of a list the next slot's beginning is one of a thousand bytes.
  const uint32_t held = shm::ReceiveRing::entries_for(shared(*b).recv.stride);
  ring.slot(1).wr_id = 1000;
  ring.slot(0).num_sge = held + 1;
  SharedTarget target = target_of(*b);
  ASSERT_TRUE(takes_requests(target, *a));
  const auto claim = target.take();
  ASSERT_TRUE(claim);
  EXPECT_EQ(claim.entries, held);
  EXPECT_EQ(claim.room(), 64u);
  // The bytes that its own entries have no room for go nowhere.
  Piece piece{reinterpret_cast<std::byte*>(memory), 80};
  EXPECT_EQ(target.place(claim, 0, &piece, 1, 80, nullptr), WcStatus::kSuccess);
  target.complete(claim, {}, WcStatus::kSuccess);
  EXPECT_EQ(memory[4096 + 64], 0);
  EXPECT_EQ(next().wr_id, 7u);
}

TEST_F(ShmTarget, Place_InParts_ContinuesAndTellsWhereItEnded) {
  make_pair();
  ASSERT_EQ(receive(*b, 7), 0);
  SharedTarget target = target_of(*b);
  ASSERT_TRUE(takes_requests(target, *a));
  const auto claim = target.take();
  ASSERT_TRUE(claim);
  std::strcpy(memory, "in parts");
  const auto part = [&](size_t from, uint64_t length) {
    return Piece{reinterpret_cast<std::byte*>(memory) + from, length};
  };
  const Piece first = part(0, 3), second = part(3, 6);
  const std::byte* behind = nullptr;
  EXPECT_EQ(target.place(claim, 0, &first, 1, 3, &behind), WcStatus::kSuccess);
  EXPECT_EQ(behind, reinterpret_cast<std::byte*>(memory) + 4096 + 3);
  EXPECT_EQ(target.place(claim, 3, &second, 1, 6, nullptr), WcStatus::kSuccess);
  EXPECT_STREQ(memory + 4096, "in parts");
  claim.slot->sge[0].lkey ^= 1;
  EXPECT_EQ(target.place(claim, 0, nullptr, 0, 0, nullptr), WcStatus::kSuccess) << "nothing needs no key";
  EXPECT_EQ(target.place(claim, 0, &first, 1, 3, nullptr), WcStatus::kRemOpErr);
  target.complete(claim, {}, WcStatus::kSuccess);
  EXPECT_EQ(next().wr_id, 7u);
}

TEST_F(ShmTarget, Place_SeveralPieces_PlacesEachOfThem) {
  make_pair();
  std::strcpy(memory, "two pieces");
  for (const auto guard : {SharedTarget::Guard::kNone, SharedTarget::Guard::kOwnMemory}) {
    ASSERT_EQ(receive(*b, 7), 0);
    SharedTarget target(process().node(), process().memories(), process().node().self(), b->index(), &due, guard);
    ASSERT_TRUE(takes_requests(target, *a));
    const auto claim = target.take();
    ASSERT_TRUE(claim);
    std::memset(memory + 4096, 0, 64);
    const Piece pieces[] = {{reinterpret_cast<std::byte*>(memory), 4}, {reinterpret_cast<std::byte*>(memory) + 4, 7}};
    EXPECT_EQ(target.place(claim, 0, pieces, 2, 11, nullptr), WcStatus::kSuccess);
    EXPECT_STREQ(memory + 4096, "two pieces");
    target.complete(claim, {}, WcStatus::kSuccess);
    EXPECT_EQ(next().wr_id, 7u);
  }
}

TEST_F(ShmTarget, Take_InvalidStride_IsRefused) {
  make_pair();
  ASSERT_EQ(receive(*b, 7), 0);
  shm::RecvRing& theirs = shared(*b).recv;
  const uint32_t stride = theirs.stride;
  const uint32_t beyond = static_cast<uint32_t>((uint64_t{1} << 31) >> 3);
  for (const uint32_t wrong : {0u, 32u, stride - 8, stride + 8, ~0u - 63, beyond}) {
    theirs.stride = wrong;
    SharedTarget target = target_of(*b);
    ASSERT_TRUE(takes_requests(target, *a));
    EXPECT_FALSE(target.take()) << wrong;
  }
  theirs.stride = stride;
  SharedTarget target = target_of(*b);
  ASSERT_TRUE(takes_requests(target, *a));
  const auto claim = target.take();
  ASSERT_TRUE(claim);
  target.put_back(claim);
}

}  // namespace
}  // namespace nupa::core
