// SPDX-License-Identifier: Apache-2.0
/// Claims, entries and locks that a process leaves behind when it dies.
#include <poll.h>

#include <thread>
#include <utility>

#include "core/qp.h"
#include "core/seam/shared_target.h"
#include "shm_fixture.h"
#include "shm_processes.h"

namespace nupa::core {
namespace {

TEST_F(ShmDeath, CleanExit_PostedReceives_StayUntilARequestFails) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  ASSERT_EQ(end.receive(*qp, 3), 0);
  const host::PeerRef other = peer_of(end, peer.qp_num);
  ASSERT_NE(other, nullptr);
  ASSERT_TRUE(line.go());
  expect_good_end();
  ASSERT_TRUE(soon([&] { return !other->alive(); }));
  EXPECT_TRUE(other->has_exited_cleanly());
  // A request finds out, as an adapter's would; until then nothing has happened.
  EXPECT_TRUE(end.is_empty());
  EXPECT_EQ(end.state_of(*qp), QpState::kRts);
  ASSERT_EQ(end.write(*qp, 1, peer.addr, peer.rkey), 0);
  const WorkCompletion wc = end.next();
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
  EXPECT_EQ(end.next().status, WcStatus::kWrFlushErr);
}

TEST_F(ShmDeath, CleanExit_TimeoutZero_RequestFails) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  const ShmAddress mine{qp->number(), 0, 0, 0};
  ASSERT_TRUE(line.give(mine) && line.get(&peer));
  ASSERT_EQ(end.connect(*qp, peer.qp_num, {.timeout = 0}), 0);  // it would wait for an answer for ever
  ASSERT_TRUE(line.go() && line.wait());
  const host::PeerRef other = peer_of(end, peer.qp_num);
  ASSERT_NE(other, nullptr);
  ASSERT_TRUE(line.go());
  expect_good_end();
  ASSERT_TRUE(soon([&] { return !other->alive(); }));
  ASSERT_EQ(end.write(*qp, 1, peer.addr, peer.rkey), 0);
  EXPECT_EQ(end.next().status, WcStatus::kRetryExcErr);
}

TEST_F(ShmDeath, Ready_TargetProcessDied_IsFalse) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  const host::PeerRef other = peer_of(end, peer.qp_num);
  ASSERT_NE(other, nullptr);
  host::DueEvent due;
  Process& here = end.process();
  SharedTarget target(here.node(), here.memories(), *other, shm::index_of(peer.qp_num), &due);
  ASSERT_TRUE(target.ready(here.slot(), qp->number()));
  kill_child();
  ASSERT_TRUE(soon([&] { return !other->alive(); }));
  EXPECT_FALSE(target.ready(here.slot(), qp->number()));
}

/// Claims what the parent names in `index` and holds on to it.
bool claim_receive_of_parent(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
  const host::PeerRef parent = peer_of(end, peer.qp_num);
  if (parent == nullptr) return false;
  auto ring = open_ring(*parent, parent->tables().srq[peer.index].recv);
  if (!ring.valid() || !ring.claim(end.process().tag())) return false;
  line.go();
  line.wait();
  return true;
}

TEST_F(ShmDeath, Kill_ProcessThatClaimedAReceive_ReceiveIsUsedAgain) {
  start(claim_receive_of_parent);
  ShmAddress peer;
  Srq* srq = end.make_srq(4);
  ASSERT_EQ(end.receive(*srq, 7), 0);
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer, srq->index()));
  ASSERT_TRUE(line.wait());  // it has the receive
  Qp* one = end.make_qp();
  Qp* served = end.make_qp(QpType::kRc, srq);
  ASSERT_EQ(end.connect(*one, served->number()), 0);
  ASSERT_EQ(end.connect(*served, one->number()), 0);
  ASSERT_EQ(end.send(*one, 1), 0);
  EXPECT_TRUE(end.is_empty()) << "the receive is another process's";
  kill_child();
  for (int i = 0; i < 2; ++i) {
    const WorkCompletion wc = end.next();
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_TRUE(wc.wr_id == 1 || wc.wr_id == 7) << wc.wr_id;
  }
}

TEST_F(ShmDeath, ErrorState_ReceiveClaimedByAnEarlierProcessOfTheSlot_IsFlushed) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  const host::PeerRef other = peer_of(end, peer.qp_num);
  ASSERT_NE(other, nullptr);
  ASSERT_EQ(end.receive(*qp, 3), 0);
  auto ring = open_ring(end.process().node().self(), end.shared(*qp).recv);
  ASSERT_TRUE(ring.claim(shm::owner_tag(other->slot(), other->instance() + 1)));
  ASSERT_EQ(end.move(*qp, QpState::kErr), 0);
  const WorkCompletion wc = end.next();
  EXPECT_EQ(wc.wr_id, 3u);
  EXPECT_EQ(wc.status, WcStatus::kWrFlushErr);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

/// The completion queue of another process, as its peers write to it.
bool open_completions(host::Peer& owner, uint32_t index, shm::CompletionRing* ring) {
  shm::CqShared& shared = owner.tables().cq[index];
  const uint64_t where = shared.where.load();
  const uint32_t log2 = shm::ring_log2(where);
  auto slots = owner.heap(shm::ring_offset(where), shm::CompletionRing::bytes_for(log2));
  if (slots) *ring = shm::CompletionRing(&shared, *slots, log2, shm::ring_generation(where));
  return slots.has_value();
}

/// Claims an entry in the parent's completion queue `index`, and comes no further.
bool claim_entry_of_parent(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
  const host::PeerRef parent = peer_of(end, peer.qp_num);
  shm::CompletionRing ring;
  if (parent == nullptr || !open_completions(*parent, peer.index, &ring)) return false;
  uint64_t position;
  if (ring.claim_next(end.process().tag(), &position) != shm::CompletionRing::Push::kOk) return false;
  line.go();
  line.wait();
  return true;
}

TEST_F(ShmDeath, Kill_ProcessThatClaimedAnEntry_EntryIsSkipped) {
  start(claim_entry_of_parent);
  ShmAddress peer;
  Cq* queue = end.make_cq(8);
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer, queue->index()));
  ASSERT_TRUE(line.wait());
  Qp* own = end.make_qp(QpType::kRc, nullptr, queue);
  ASSERT_EQ(end.connect(*own, own->number()), 0);
  ASSERT_EQ(end.write(*own, 5), 0);
  EXPECT_TRUE(end.is_empty(queue)) << "an entry of another process comes first";
  kill_child();
  const WorkCompletion wc = end.next(queue);
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
}

/// Raises an event in the parent's completion queue `index`, and comes no further.
bool raise_event_of_parent(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
  const host::PeerRef parent = peer_of(end, peer.qp_num);
  shm::CompletionRing ring;
  if (parent == nullptr || !open_completions(*parent, peer.index, &ring)) return false;
  if (!ring.needs_event(false) || !shm::CompletionRing::count_event(parent->tables().cq[peer.index])) return false;
  line.go();
  line.wait();
  return true;
}

TEST_F(ShmDeath, Kill_ProcessThatRaisedAnEvent_ChannelIsWoken) {
  start(raise_event_of_parent);
  auto channel = std::move(*end.handle->create_channel());
  Cq* queue = end.make_cq(8, channel.get());
  ASSERT_EQ(queue->arm(false), 0);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer, queue->index()));
  ASSERT_TRUE(line.wait());
  pollfd event{channel->fd(), POLLIN, 0};
  EXPECT_EQ(poll(&event, 1, 0), 0);
  kill_child();
  ASSERT_TRUE(soon([&] { return poll(&event, 1, 0) == 1; }));
  EXPECT_TRUE(channel->wait());
  end.cqs.pop_back();
  EXPECT_EQ(channel->close(), 0);
}

/// Is inside a post, until the other process sends a byte.
bool stay_in_a_post(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
  qp->post_begin();
  line.go();
  line.wait();
  qp->post_end();
  return true;
}

class ShmQuiesce : public ShmProcesses {
 protected:
  /// The other process is inside a post, and this one waits until it is not any more.
  void begin() {
    start(stay_in_a_post);
    ShmAddress peer;
    Qp* qp = end.make_qp();
    ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
    ASSERT_TRUE(line.wait());
    std::atomic<bool> began{false};
    other = std::thread([&] {
      began = true;
      all_moved_on = quiesce(end.process().node());
      over = true;
    });
    EXPECT_TRUE(soon([&] { return began.load(); }));
    // sleep: a call that does not wait would return within that time
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(over.load());
  }
  void TearDown() override {
    if (other.joinable()) other.join();
    ShmProcesses::TearDown();
  }

  std::atomic<bool> all_moved_on{false};
  std::atomic<bool> over{false};
  std::thread other;
};

TEST_F(ShmQuiesce, Quiesce_PeerInsideAPost_WaitsForIt) {
  begin();
  ASSERT_TRUE(line.go());
  other.join();
  EXPECT_TRUE(all_moved_on.load());
  expect_good_end();
}

TEST_F(ShmQuiesce, Quiesce_PeerInsideAPostDies_Returns) {
  begin();
  kill_child();
  other.join();
  EXPECT_TRUE(all_moved_on.load());
}

}  // namespace
}  // namespace nupa::core
