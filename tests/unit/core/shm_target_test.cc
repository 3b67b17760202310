// SPDX-License-Identifier: Apache-2.0
/// Who may send to a queue pair over shared memory: the one that it is connected to, in its present life, in a state
/// that takes requests.
#ifndef NUPA_TEST_DROPIN
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

#include "host/peer_table.h"
#include "shm_fixture.h"
#include "core/seam/shared_target.h"

namespace nupa::core {
namespace {

constexpr Way kImpatient{.timeout = 1, .retry_cnt = 0};

class ShmTarget : public ShmTest {
 protected:
  /// `from` finds nobody at its other end: the request fails, and memory stays as it was.
  void expect_unanswered(Qp& from) {
    std::memset(memory + 4096, 0, 8);
    std::strcpy(memory, "refused");
    ASSERT_EQ(write(from, 9), 0);
    const WorkCompletion wc = next();
    EXPECT_EQ(wc.wr_id, 9u);
    EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
    EXPECT_EQ(memory[4096], 0);
  }
  void expect_served(Qp& from) {
    std::strcpy(memory, "served");
    ASSERT_EQ(write(from, 8), 0);
    const WorkCompletion wc = next();
    EXPECT_EQ(wc.wr_id, 8u);
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_STREQ(memory + 4096, "served");
  }
  /// What an initiator has of queue pair `qp`.
  SharedTarget target_of(Qp& qp) {
    Process& here = process();
    return {here.node(), here.memories(), here.node().self(), qp.index(), &due};
  }
  bool takes_requests(SharedTarget& target, Qp& from) { return target.ready(process().slot(), from.number()); }

  host::DueEvent due;
};

TEST_F(ShmTarget, QueuePairThatIsConnectedElsewhereIsOutOfReach) {  // IBTA 9.6: RC packets are of one connection
  make_pair();
  Qp* third = make_qp();
  ASSERT_EQ(connect(*third, b->number(), kImpatient), 0);
  expect_unanswered(*third);
  EXPECT_EQ(state_of(*b), QpState::kRts);
  expect_served(*a);
}

TEST_F(ShmTarget, QueuePairThatIsConnectedElsewhereKeepsItsReceives) {
  make_pair();
  Qp* third = make_qp();
  ASSERT_EQ(connect(*third, b->number(), kImpatient), 0);
  ASSERT_EQ(receive(*b, 7), 0);
  ASSERT_EQ(send(*third, 9), 0);
  EXPECT_EQ(next().status, WcStatus::kRetryExcErr);
  EXPECT_TRUE(is_empty());
  ASSERT_EQ(send(*a, 1), 0);
  EXPECT_EQ(next().wr_id + next().wr_id, 8u);
}

TEST_F(ShmTarget, ResetEndsWhatTheOldPeerMayDo) {  // IBTA 10.3.1.1
  a = make_qp();
  b = make_qp();
  Qp* c = make_qp();
  ASSERT_EQ(connect(*a, b->number(), kImpatient), 0);
  ASSERT_EQ(connect(*b, a->number()), 0);
  expect_served(*a);
  ASSERT_EQ(move(*b, QpState::kReset), 0);
  ASSERT_EQ(connect(*b, c->number()), 0);
  ASSERT_EQ(connect(*c, b->number()), 0);
  expect_unanswered(*a);
  EXPECT_EQ(state_of(*b), QpState::kRts);
  expect_served(*c);
}

TEST_F(ShmTarget, NumberUsedAgainIsNotTheOldQueuePair) {
  make_pair(QpType::kRc, kImpatient);
  expect_served(*a);
  const uint32_t index = b->index();
  const uint64_t before = tables().qp[index].state.load();
  qps.pop_back();  // b
  EXPECT_EQ(tables().qp[index].in_use.load(), 0u);
  EXPECT_GT(shm::epoch_of(tables().qp[index].state.load()), shm::epoch_of(before));
  expect_unanswered(*a);
}

TEST_F(ShmTarget, NumberThatNoQueuePairEverHad_IsOutOfReach) {
  a = make_qp();
  ASSERT_EQ(connect(*a, shm::number_of(process().slot(), shm::kSlotQp - 1), kImpatient), 0);
  expect_unanswered(*a);
}

TEST_F(ShmTarget, OnlyStatesThatReceiveTakeRequests) {  // IBTA 10.3.1
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

TEST_F(ShmTarget, QueuePairThatIsGoneTakesNothing) {
  make_pair();
  shared(*b).in_use.store(0);  // as its owner does first
  SharedTarget target = target_of(*b);
  EXPECT_FALSE(takes_requests(target, *a));
  shared(*b).in_use.store(1);
  EXPECT_TRUE(takes_requests(target, *a));
}

TEST_F(ShmTarget, DatagramGoesToTheAddressOfItsHandleNotToItsNumberAlone) {
  b = make_qp(QpType::kUd);
  ASSERT_EQ(connect(*b, 0), 0);
  for (const uint64_t id : {7, 8, 9}) ASSERT_EQ(receive(*b, id), 0);
  AddressVector here;
  here.is_global = true;
  here.sgid_index = 1;
  here.dgid = handle->query_gid(1, 1)->gid;
  AddressVector elsewhere = here;
  elsewhere.dgid.raw[15] ^= 0x55;
  auto near = std::move(*handle->create_ah(*pd, here));
  auto far = std::move(*handle->create_ah(*pd, elsewhere));
  const Sge sge = span(0, 8);
  for (const AddressHandle* to : {near.get(), far.get(), near.get()}) {
    SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend};
    wr.flags = send_flag::kSignaled;
    wr.ah = to;
    wr.remote_qpn = b->number();
    wr.remote_qkey = kQkey;
    ASSERT_EQ(b->post_send(wr), 0);
  }
  int sent = 0, received = 0;
  for (WorkCompletion wc{}; cq->poll(&wc, 1) == 1;) {
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    (wc.wr_id == 1 ? sent : received) += 1;
  }
  EXPECT_EQ(sent, 3);
  EXPECT_EQ(received, 2);
}

TEST_F(ShmTarget, DatagramFindsItsReceiverInRtrAtTheEarliest) {  // IBTA 10.3.1.2
  a = make_qp(QpType::kUd);
  ASSERT_EQ(connect(*a, 0), 0);
  b = make_qp(QpType::kUd);
  ASSERT_EQ(to_init(*b), 0);
  ASSERT_EQ(receive(*b, 7), 0);
  AddressVector here;
  here.is_global = true;
  here.sgid_index = 1;
  here.dgid = handle->query_gid(1, 1)->gid;
  auto ah = std::move(*handle->create_ah(*pd, here));
  const Sge sge = span(0, 8);
  SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend};
  wr.flags = send_flag::kSignaled;
  wr.ah = ah.get();
  wr.remote_qpn = b->number();
  wr.remote_qkey = kQkey;
  ASSERT_EQ(a->post_send(wr), 0);
  EXPECT_EQ(next().wr_id, 1u);
  EXPECT_TRUE(is_empty());
  ASSERT_EQ(to_rtr(*b, 0), 0);
  ASSERT_EQ(a->post_send(wr), 0);
  EXPECT_EQ(next().wr_id + next().wr_id, 8u);
}

TEST_F(ShmTarget, ATableOfGroupsThatIsFullTakesNoMore) {
  b = make_qp(QpType::kUd);
  Gid group;
  group.raw[0] = 0xff;
  group.raw[1] = 0x0e;
  shm::SegmentHeader& header = *tables().header;
  constexpr uint32_t kNobody = shm::kMaxQp + 1;
  for (shm::McastShared& place : header.mcast) place.qp.store(kNobody);
  EXPECT_EQ(b->attach_multicast(group, 0), ENOMEM);
  header.mcast[shm::kMaxMcast - 1].qp.store(0);
  EXPECT_EQ(b->attach_multicast(group, 0), 0);
  EXPECT_EQ(header.mcast_high_water.load(), shm::kMaxMcast);
  EXPECT_EQ(b->detach_multicast(group, 0), 0);
  for (shm::McastShared& place : header.mcast) place.qp.store(0);
}

TEST_F(ShmTarget, MembersOfAGroupAreNotBelieved) {
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
  AddressVector to;
  to.is_global = true;
  to.sgid_index = 1;
  to.dgid = group;
  auto ah = std::move(*handle->create_ah(*pd, to));
  const Sge sge = span(0, 8);
  SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend};
  wr.flags = send_flag::kSignaled;
  wr.ah = ah.get();
  wr.remote_qpn = 0xffffff;
  wr.remote_qkey = kQkey;
  ASSERT_EQ(b->post_send(wr), 0);
  EXPECT_EQ(next().status, WcStatus::kSuccess);
  EXPECT_EQ(next().status, WcStatus::kSuccess);
  wrong.qp.store(0);
  EXPECT_EQ(b->detach_multicast(group, 0), 0);
}

TEST_F(ShmTarget, SenderToAGroupHearsItselfUnlessItDoesNotWantTo) {  // IBV_QP_CREATE_BLOCK_SELF_MCAST_LB
  Gid group;
  group.raw[0] = 0xff;
  group.raw[1] = 0x0e;
  group.raw[15] = 10;
  AddressVector to;
  to.is_global = true;
  to.sgid_index = 1;
  to.dgid = group;
  auto ah = std::move(*handle->create_ah(*pd, to));
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
    const Sge sge = span(0, 8);
    SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend};
    wr.ah = ah.get();
    wr.remote_qpn = 0xffffff;
    wr.remote_qkey = kQkey;
    ASSERT_EQ(a->post_send(wr), 0);
    EXPECT_EQ(next().wr_id, hears_itself ? 7u : 8u);
    if (hears_itself) {
      EXPECT_EQ(next().wr_id, 8u);
    }
    EXPECT_TRUE(is_empty());
    for (Qp* member : {a, b}) EXPECT_EQ(member->detach_multicast(group, 0), 0);
  }
}

TEST_F(ShmTarget, QueueOfADomainIsWhatItsNumberAndItsDomainSay) {  // IBTA A14.5
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

TEST_F(ShmTarget, ConnectionIsOfOneProcess) {
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
  EXPECT_EQ(claim.slot->claim_qp.load(), b->index() + 1) << "an owner cannot tell for whom it is claimed";
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

TEST_F(ShmTarget, FailureOfAnEarlierLifeLeavesThePresentOneAlone) {
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

/// A peer's request fails a queue pair in the very middle of a change of its state: when the change has been allowed
/// and reads what it sets. That lies on a page which is not there until then.
class ShmStateChange : public ShmTarget {
 protected:
  static constexpr size_t kPage = 4096;

  void SetUp() override {
    ShmTarget::SetUp();
    void* mapped = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    pages = static_cast<char*>(mapped);
    struct sigaction wanted {};
    wanted.sa_sigaction = on_fault;
    wanted.sa_flags = SA_SIGINFO;
    ASSERT_EQ(sigaction(SIGSEGV, &wanted, &before), 0);
  }
  void TearDown() override {
    sigaction(SIGSEGV, &before, nullptr);
    munmap(pages, 2 * kPage);
    ShmTarget::TearDown();
  }
  /// As they are read: en_sqd_async_notify is on the second page, what stands before it on the first.
  QpAttr* attributes() {
    constexpr size_t kBefore = offsetof(QpAttr, en_sqd_async_notify) / alignof(QpAttr) * alignof(QpAttr);
    return new (pages + kPage - kBefore) QpAttr();
  }
  static void on_fault(int, siginfo_t* info, void*) {
    const auto* at = static_cast<const char*>(info->si_addr);
    if (at < pages + kPage || at >= pages + 2 * kPage || target == nullptr) _exit(77);
    mprotect(pages + kPage, kPage, PROT_READ | PROT_WRITE);
    target->fail(EventType::kQpAccessErr);
    target = nullptr;
  }

  static inline char* pages = nullptr;
  static inline SharedTarget* target = nullptr;  ///< of the queue pair that fails
  struct sigaction before {};
};

TEST_F(ShmStateChange, FailureMeanwhile_StaysInErrorState) {  // IBTA 10.3.1: only RESET leads out of it
  make_pair();
  ASSERT_EQ(receive(*b, 7), 0);
  SharedTarget reached = target_of(*b);
  ASSERT_TRUE(takes_requests(reached, *a));
  target = &reached;
  QpAttr* attr = attributes();
  attr->state = QpState::kSqd;
  ASSERT_EQ(mprotect(pages + kPage, kPage, PROT_NONE), 0);
  EXPECT_EQ(b->modify(*attr, qp_attr::kState | qp_attr::kEnSqdAsyncNotify), 0);
  ASSERT_EQ(target, nullptr) << "nothing happened in the middle";
  EXPECT_EQ(state_of(*b), QpState::kErr);
  const WorkCompletion wc = next();
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(wc.status, WcStatus::kWrFlushErr);
  pollfd event{handle->async_fd(), POLLIN, 0};
  ASSERT_TRUE(soon([&] { return poll(&event, 1, 0) == 1; }));
  const auto told = handle->next_event();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->type, EventType::kQpAccessErr);
  EXPECT_EQ(told->qp, b);
}

TEST_F(ShmTarget, DeathOfAnEarlierProcessOfTheSlot_LeavesTheConnectionToTheNewOne) {
  make_pair();
  host::Introduced hello{};
  hello.hello.slot = process().slot();
  hello.hello.instance = process().node().self().instance() + 1;
  const auto dead = host::PeerTable::make(std::move(hello), false);
  events().on_peer_gone(*dead);
  EXPECT_EQ(state_of(*a), QpState::kRts);
  EXPECT_EQ(state_of(*b), QpState::kRts);
  expect_served(*a);
}

TEST_F(ShmTarget, TablesOfAPeerAreNotBelieved) {  // another process may write what it likes
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

TEST_F(ShmTarget, ListOfAReceiveEndsWhereItsSlotEnds) {  // another process may write what it likes
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

TEST_F(ShmTarget, SlotsDoNotOverlap) {
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

TEST_F(ShmTarget, FirstRequestIsToldInEachLife) {  // IBTA 11.6.3.1, COMM_EST
  a = make_qp();
  b = make_qp();
  ASSERT_EQ(connect(*a, b->number()), 0);
  for (int life = 0; life < 2; ++life) {
    ASSERT_EQ(to_init(*b), 0);
    ASSERT_EQ(to_rtr(*b, a->number()), 0);
    expect_served(*a);
    expect_served(*a);
    pollfd told{handle->async_fd(), POLLIN, 0};
    ASSERT_EQ(poll(&told, 1, 20'000), 1);
    const auto event = handle->next_event();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->type, EventType::kCommEst);
    EXPECT_EQ(event->qp, b);
    host::call_attention(process().node().self(), shm::attention::kQp, b->index());
    events().on_attention();  // or the service thread does, and this waits for it
    pollfd another{handle->async_fd(), POLLIN, 0};
    EXPECT_EQ(poll(&another, 1, 0), 0) << "once in a life";
    ASSERT_EQ(move(*b, QpState::kReset), 0);
    ASSERT_EQ(move(*a, QpState::kReset), 0);
    ASSERT_EQ(connect(*a, b->number()), 0);
  }
}

TEST_F(ShmTarget, EventOfASharedReceiveQueue_GoesWithTheQueue) {
  Srq* srq = make_srq(4);
  constexpr uint32_t kLimit = 2;
  ASSERT_EQ(srq->modify(kLimit, 0, 1), 0);  // none is posted: fewer than the limit
  pollfd told{handle->async_fd(), POLLIN, 0};
  ASSERT_EQ(poll(&told, 1, 0), 1);
  srqs.pop_back();
  ASSERT_EQ(fcntl(handle->async_fd(), F_SETFL, O_NONBLOCK), 0);
  const auto event = handle->next_event();
  ASSERT_FALSE(event);
  EXPECT_EQ(event.error().code(), EAGAIN);
}

TEST_F(ShmTarget, PostedReceiveWakesTheQueuePairThatWaitsForIt) {
  // The other end is a number of this process that no queue pair has: what it is told stays there to be seen.
  Qp* gone = make_qp();
  const uint32_t number = gone->number();
  shm::QpShared& other = shared(*gone);
  qps.pop_back();
  a = make_qp();
  ASSERT_EQ(connect(*a, number), 0);
  other.wake.store(0);
  ASSERT_EQ(receive(*a, 1), 0);
  EXPECT_EQ(other.wake.load(), 0u) << "nobody waits";
  shared(*a).sender_waits.store(1);
  ASSERT_EQ(receive(*a, 2), 0);
  EXPECT_EQ(other.wake.load(), 1u);
  EXPECT_EQ(shared(*a).sender_waits.load(), 0u) << "told once";
  other.wake.store(0);
}

TEST_F(ShmTarget, SenderThatIsNotServedSaysThatItWaits) {
  make_pair(QpType::kRc, {.min_rnr_timer = 0});
  ASSERT_EQ(send(*a, 1), 0);
  EXPECT_EQ(shared(*b).sender_waits.load(), 1u);
}

TEST_F(ShmTarget, WokenSenderNeedNotWaitForItsTimer) {
  // Two senders wait for the same timer, after which one of them has failed. The other one is woken: so it is served
  // while the first one still waits. Its turn comes last (they are tried in the order of their addresses).
  const Way once{.rnr_retry = 1, .min_rnr_timer = 0};
  make_pair(QpType::kRc, once);
  Qp* waiting = a;
  make_pair(QpType::kRc, once);
  Qp* woken = a;
  Qp* const last = std::max(waiting, woken);
  waiting = std::min(waiting, woken);
  woken = last;
  ASSERT_EQ(send(*waiting, 1), 0);
  ASSERT_EQ(send(*woken, 2), 0);
  ASSERT_EQ(receive(woken == a ? *b : static_cast<Qp&>(*qps[1]), 11), 0);
  // A thread that polls tries what waits, too: this one does not poll.
  ASSERT_TRUE(soon([&] { return shared(*woken).counters.messages.load() == 1; }));
  EXPECT_EQ(state_of(*waiting), QpState::kRts);
}

TEST_F(ShmTarget, HeldBackRequestRunsThoughNobodyPolls) {  // IBTA 10.3.1.5
  make_pair();
  ASSERT_EQ(move(*a, QpState::kSqd), 0);
  ASSERT_EQ(write(*a, 1), 0);
  // The service thread has looked at it by now, in vain, and sleeps: after its second turn from here on.
  for (int turn = 0; turn < 2; ++turn) {
    host::call_attention(process().node().self(), shm::attention::kQp, b->index());
    ASSERT_TRUE(soon([&] { return tables().header->attention.load() == 0; }));
  }
  EXPECT_EQ(shared(*a).counters.messages.load(), 0u);
  ASSERT_EQ(move(*a, QpState::kRts), 0);
  EXPECT_TRUE(soon([&] { return shared(*a).counters.messages.load() == 1; }));
}

TEST_F(ShmTarget, ErrorStateHasFlushedEverythingWhenItIsReached) {  // IBTA 10.3.1.7
  make_pair();
  for (const uint64_t id : {1, 2}) ASSERT_EQ(send(*a, id), 0);  // no receives there: they wait
  for (const uint64_t id : {3, 4}) ASSERT_EQ(receive(*a, id), 0);
  ASSERT_EQ(move(*a, QpState::kErr), 0);
  WorkCompletion wc[8];
  ASSERT_EQ(cq->poll(wc, 8), 4);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(wc[i].wr_id, i + 1);
    EXPECT_EQ(wc[i].status, WcStatus::kWrFlushErr);
  }
}

TEST_F(ShmTarget, DeregistrationWaitsForWhoIsInsideAPost) {  // docs/shm.md, grace periods
  make_pair();
  auto doomed = std::move(*handle->alloc_mr(*pd, 4096, kEveryRight));
  shm::MrShared& key = tables().mr[shm::key_index(doomed->rkey())];
  a->post_begin();
  std::atomic<bool> closed{false};
  std::thread other([&] {
    EXPECT_EQ(doomed->close(), 0);
    closed = true;
  });
  EXPECT_TRUE(soon([&] { return key.key.load() == 0; }));  // revoked, but perhaps still in use
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(closed.load());
  a->post_end();
  other.join();
  EXPECT_TRUE(closed.load());
}

TEST_F(ShmTarget, ResetWaitsForThePeerThatIsInsideAPost) {  // docs/shm.md, grace periods
  for (const QpState state : {QpState::kReset, QpState::kErr}) {
    make_pair();
    a->post_begin();
    std::atomic<bool> moved{false};
    std::thread other([&] {
      EXPECT_EQ(move(*b, state), 0);
      moved = true;
    });
    EXPECT_TRUE(soon([&] { return state_of_shared(*b) == state; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(moved.load());
    a->post_end();
    other.join();
    EXPECT_TRUE(moved.load());
  }
}

TEST_F(ShmTarget, LocalInvalidationWaitsForThePeerThatIsInsideAPost) {  // docs/shm.md, grace periods
  make_pair(QpType::kRc, {.timeout = 1, .retry_cnt = 0});
  auto opened = std::move(*handle->alloc_mr(*pd, 4096, kEveryRight | access::kMwBind));
  auto window = std::move(*handle->alloc_mw(*pd, MwType::kType2));
  SendWr bind{.wr_id = 1, .opcode = Opcode::kBindMw};
  bind.flags = send_flag::kSignaled;
  bind.mw = window.get();
  bind.rkey = window->rkey();
  bind.bind = {opened.get(), reinterpret_cast<uint64_t>(opened->addr()), 4096, access::kRemoteWrite};
  a->post_begin();  // of whom nobody may be copying: the window was not open yet
  ASSERT_EQ(b->post_send(bind), 0);
  EXPECT_EQ(next().status, WcStatus::kSuccess);
  SendWr invalidate{.wr_id = 2, .opcode = Opcode::kLocalInv};
  invalidate.flags = send_flag::kSignaled;
  invalidate.imm_or_rkey = bind.rkey;
  ASSERT_EQ(b->post_send(invalidate), 0);
  EXPECT_EQ(tables().mr[shm::key_index(bind.rkey)].key.load(), 0u);
  EXPECT_TRUE(is_empty());
  constexpr int64_t kSecond = 1'000'000'000;
  EXPECT_LT(b->progress(base::now_ns() + kSecond), INT64_MAX)
      << "it is tried again, whatever the retries of the connection";
  EXPECT_TRUE(is_empty()) << "the peer may still be copying";
  a->post_end();
  a->post_begin();  // a request that began later finds the window closed
  const WorkCompletion wc = next();
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  a->post_end();
}

TEST_F(ShmTarget, PostThatBeganLaterHoldsNobodyUp) {
  make_pair();
  std::atomic<uint32_t>& lock = shared(*a).send_lock;
  const uint32_t free = lock.load();
  lock.store(free + 1);
  std::atomic<bool> began{false}, all_moved_on{false};
  std::thread other([&] {
    began = true;
    all_moved_on = quiesce(process().node());
  });
  ASSERT_TRUE(soon([&] { return began.load(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  lock.store(free + 3);  // let go and taken again, which nobody saw
  other.join();
  EXPECT_TRUE(all_moved_on.load());
  lock.store(free + 4);
}

TEST_F(ShmTarget, PeerThatIsNotThereIsAFailureAfterAWhile) {
  Qp* qp = make_qp();
  const uint32_t empty = process().slot() == 77 ? 78 : 77;
  ASSERT_EQ(connect(*qp, shm::number_of(empty, 5), {.timeout = 0}), 0);
  ASSERT_EQ(send(*qp, 1), 0);
  ASSERT_EQ(send(*qp, 2), 0);
  ASSERT_EQ(receive(*qp, 3), 0);
  // The oldest request says why, the others are flushed (IBTA 9.9.2.1).
  for (int i = 0; i < 3; ++i) {
    const WorkCompletion wc = next();
    EXPECT_EQ(wc.status, wc.wr_id == 1 ? WcStatus::kRetryExcErr : WcStatus::kWrFlushErr) << wc.wr_id;
  }
  EXPECT_EQ(state_of(*qp), QpState::kErr);
}

TEST_F(ShmTarget, PeerThatIsNotThere_NothingIsSent_StaysReadyUntilARequestFails) {
  constexpr int64_t kLong = 1'000'000'000;
  const uint32_t empty = process().slot() == 77 ? 78 : 77;
  for (const QpType type : {QpType::kRc, QpType::kUc}) {
    Qp* qp = make_qp(type);
    ASSERT_EQ(connect(*qp, shm::number_of(empty, 5), {.timeout = 0}), 0);
    ASSERT_EQ(receive(*qp, 3), 0);
    try_by_hand(*qp);
    ASSERT_TRUE(soon([&] { return qp->progress(base::now_ns() + kLong) == INT64_MAX; })) << "it is looked for no more";
    EXPECT_EQ(state_of(*qp), QpState::kRts);
    EXPECT_TRUE(is_empty());
    ASSERT_EQ(write(*qp, 1), 0);
    const WorkCompletion wc = next();
    EXPECT_EQ(wc.wr_id, 1u);
    if (type == QpType::kUc) {  // IBTA 9.8.2: nobody answers in any case
      EXPECT_EQ(wc.status, WcStatus::kSuccess);
      EXPECT_EQ(state_of(*qp), QpState::kRts);
      continue;
    }
    EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
    const WorkCompletion flushed = next();
    EXPECT_EQ(flushed.wr_id, 3u);
    EXPECT_EQ(flushed.status, WcStatus::kWrFlushErr);
    EXPECT_EQ(state_of(*qp), QpState::kErr);
  }
}

/// When the service thread of `process` wakes by itself, once it has done all that it has to do now.
int64_t next_due(Process& process) {
  progress::Loop& loop = process.node().loop();
  int64_t due = 0;
  // The timers that are due have their turn after the first call.
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(loop.call([&] { due = loop.next_due_ns(); }, progress::Deadline::in_ms(60'000)));
  return due;
}

TEST_F(ShmTarget, QueuePairDestroyedBeforeItsPeerWasMet_IsNotLookedForAgain) {
  const int64_t idle = next_due(process());
  Qp* qp = make_qp();
  const uint32_t empty = process().slot() == 77 ? 78 : 77;
  ASSERT_EQ(to_init(*qp), 0);
  ASSERT_EQ(to_rtr(*qp, shm::number_of(empty, 5)), 0);
  shm::SendLock sends(shared(*qp).send_lock);
  {
    // The service thread waits here, so that it does not look at the queue pair, which has no endpoint any more,
    // before the send lock tells it to come again.
    std::lock_guard copies(process().remapper().copy_mutex());
    ASSERT_EQ(qp->close(), 0);
    sends.lock();
  }
  EXPECT_EQ(next_due(process()), idle) << "there is nothing to come again for";
  sends.unlock();
}

TEST_F(ShmTarget, QueuePairResetBeforeItsPeerWasMet_IsNotLookedForAgain) {  // the next connection has all of its time
  const int64_t idle = next_due(process());
  Qp* qp = make_qp();
  const uint32_t empty = process().slot() == 77 ? 78 : 77;
  ASSERT_EQ(to_init(*qp), 0);
  ASSERT_EQ(to_rtr(*qp, shm::number_of(empty, 5)), 0);
  shm::SendLock sends(shared(*qp).send_lock);
  {
    // The service thread waits here, and then for the send lock.
    std::lock_guard copies(process().remapper().copy_mutex());
    ASSERT_EQ(move(*qp, QpState::kReset), 0);
    sends.lock();
  }
  EXPECT_EQ(next_due(process()), idle) << "there is nothing to come again for";
  sends.unlock();
}

TEST_F(ShmTarget, AddressThatIsNotThisHostsIsNotReached) {
  const Gid elsewhere{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 77}};
  b = make_qp();
  AddressVector vector;
  vector.is_global = true;
  vector.dgid = elsewhere;
  EXPECT_EQ(peers().find(b->number(), vector, std::chrono::milliseconds(100)).error().code(), EHOSTUNREACH);
  EXPECT_FALSE(shm().reaches(vector, b->number()));
  vector.dgid = handle->query_gid(1, 1)->gid;
  EXPECT_TRUE(peers().find(b->number(), vector, std::chrono::milliseconds(100)));
  EXPECT_TRUE(shm().reaches(vector, b->number()));
  EXPECT_EQ(peers().find(5, vector, std::chrono::milliseconds(100)).error().code(), EHOSTUNREACH)
      << "slot 0 is nobody's";
  EXPECT_EQ(
      peers().find(shm::number_of(shm::kMaxSlot + 1, 5), vector, std::chrono::milliseconds(100)).error().code(),
      EHOSTUNREACH);
}

/// Runs a function just before the next write to a page, as if another process had come in between.
class BeforeWrite {
 public:
  BeforeWrite(const void* page, std::function<void()> act) {
    page_ = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(page) & ~uintptr_t{kPage - 1});
    act_ = std::move(act);
    struct sigaction handler {};
    handler.sa_sigaction = [](int, siginfo_t* fault, void*) {
      const auto* const at = static_cast<const std::byte*>(fault->si_addr);
      const auto* const page = static_cast<const std::byte*>(page_);
      if (at < page || at >= page + kPage || act_ == nullptr) abort();
      mprotect(page_, kPage, PROT_READ | PROT_WRITE);
      std::exchange(act_, nullptr)();
    };
    handler.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &handler, &former_);
    mprotect(page_, kPage, PROT_READ);
  }
  ~BeforeWrite() {
    mprotect(page_, kPage, PROT_READ | PROT_WRITE);
    sigaction(SIGSEGV, &former_, nullptr);
  }
  BeforeWrite(const BeforeWrite&) = delete;
  BeforeWrite& operator=(const BeforeWrite&) = delete;
  bool has_run() const { return act_ == nullptr; }

 private:
  static constexpr size_t kPage = 4096;
  static inline void* page_ = nullptr;
  static inline std::function<void()> act_;
  struct sigaction former_ {};
};

TEST_F(ShmTarget, QueueOfADomain_AnotherSenderPutsItsReceiveBack_ItIsNotLost) {  // IBTA A14.3
  auto domain = std::move(*handle->open_xrcd(-1, O_CREAT));
  auto made = std::move(*handle->create_srq(*pd, {.max_wr = 4, .type = SrqType::kXrc, .xrcd = domain.get(), .cq = cq}));
  auto& srq = static_cast<Srq&>(*made);
  auto receiver = std::move(*handle->create_qp(nullptr, {.type = QpType::kXrcRecv, .xrcd = domain.get()}));
  auto& qp = static_cast<Qp&>(*receiver);
  const uint32_t sender = shm::number_of(process().slot(), shm::kSlotQp - 1);
  ASSERT_EQ(to_init(qp), 0);
  QpAttr attr;
  attr.state = QpState::kRtr;
  attr.av.is_global = true;
  attr.av.dgid = handle->query_gid(1, 1)->gid;
  attr.av.sgid_index = 1;
  attr.path_mtu = 5;
  attr.dest_qp_num = sender;
  ASSERT_EQ(qp.modify(attr, qp_attr::kState | qp_attr::kAv | qp_attr::kPathMtu | qp_attr::kDestQpn | qp_attr::kRqPsn |
                                qp_attr::kMaxDestRdAtomic | qp_attr::kMinRnrTimer),
            0);
  SharedTarget target = target_of(qp);
  ASSERT_TRUE(target.ready(process().slot(), sender));
  ASSERT_EQ(target.select(srq.number()), Selection::kYes);
  for (const uint64_t wr_id : {1, 2}) ASSERT_EQ(receive(srq, wr_id), 0);
  shm::ReceiveRing& ring = srq.queue().ring();
  const uint32_t other = shm::owner_tag(process().slot() + 1, 1);
  const auto theirs = ring.claim(other);
  ASSERT_TRUE(theirs);
  shm::ReceiveRing::Claim second;
  {
    const BeforeWrite meanwhile(theirs.slot, [&] { ring.put_back(theirs); });
    second = target.take();
    EXPECT_TRUE(meanwhile.has_run());
  }
  ASSERT_TRUE(second);
  EXPECT_EQ(second.slot->wr_id, 2u);
  const auto first = target.take();
  ASSERT_TRUE(first) << "the receive is lost";
  EXPECT_EQ(first.slot->wr_id, 1u);
  target.put_back(first);
  target.put_back(second);
}

}  // namespace
}  // namespace nupa::core
#endif
