// SPDX-License-Identifier: Apache-2.0
/// Rules of shared memory that take two processes: what one leaves behind when it dies, and what both change at once.
#ifndef NUPA_TEST_DROPIN
#include <fcntl.h>
#include <signal.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "host/runtime_dir.h"
#include "shm_fixture.h"
#include "../roce/engine_fixture.h"
#include "core/qp.h"
#include "core/seam/shared_target.h"
#include "../../support/sanitizers.h"
#include "transport/shm/datagram.h"

namespace nupa::core {
namespace {

class ShmShared : public ShmProcesses {};

/// The other process's node, as this one reaches it.
host::PeerRef peer_of(ShmEnd& end, uint32_t qp_num) {
  auto met = end.process().node().connect(shm::slot_of(qp_num), std::chrono::milliseconds(10000));
  return met ? *met : nullptr;
}

class ShmDeath : public ShmProcesses {
 protected:
  /// The child dies, and this process has done about it what it does. `qp_num`: of the child's.
  void kill_and_settle(uint32_t qp_num) {
    const host::PeerRef other = peer_of(end, qp_num);
    ASSERT_NE(other, nullptr);
    kill_child();
    ASSERT_TRUE(soon([&] { return !other->alive(); }));
    end.events().on_peer_gone(*other);  // once more than the service thread, which may be in the middle of it
  }
};

/// Of regions, this process's and others', that are mapped here.
uint64_t mapped_region_bytes() {
  std::ifstream maps("/proc/self/maps");
  uint64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0;
    if (line.find("memfd:nupa-region") != std::string::npos &&
        std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &begin, &end) == 2)
      bytes += end - begin;
  }
  return bytes;
}

bool connect_and_wait(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!meet(end, line, *qp, &peer)) return false;
  line.wait();
  return true;
}

TEST_F(ShmDeath, FailsTheConnectionsToItAndNoOther) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* own = end.make_qp();
  ASSERT_EQ(end.connect(*own, own->number()), 0);
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  ASSERT_EQ(end.send(*qp, 1), 0);  // no receive is posted there: both wait
  ASSERT_EQ(end.send(*qp, 2), 0);
  ASSERT_EQ(end.receive(*qp, 3), 0);
  kill_child();
  // The oldest request says why, the others are flushed (IBTA 9.9.2.1).
  for (int i = 0; i < 3; ++i) {
    const WorkCompletion wc = end.next();
    EXPECT_EQ(wc.status, wc.wr_id == 1 ? WcStatus::kRetryExcErr : WcStatus::kWrFlushErr) << wc.wr_id;
  }
  EXPECT_EQ(end.state_of(*qp), QpState::kErr);
  EXPECT_EQ(end.state_of(*own), QpState::kRts);
  ASSERT_EQ(end.write(*own, 4), 0);
  EXPECT_EQ(end.next().status, WcStatus::kSuccess);
}

TEST_F(ShmDeath, QueuePairThatIsReadyToReceive_StaysSoUntilItSends) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  const ShmAddress mine{qp->number(), 0, 0, 0};
  ASSERT_TRUE(line.give(mine) && line.get(&peer));
  ASSERT_EQ(end.to_init(*qp), 0);
  ASSERT_EQ(end.to_rtr(*qp, peer.qp_num), 0);
  ASSERT_TRUE(line.go() && line.wait());
  ASSERT_NO_FATAL_FAILURE(kill_and_settle(peer.qp_num));
  EXPECT_EQ(end.state_of(*qp), QpState::kRtr);
  ASSERT_EQ(end.to_rts(*qp), 0);
  ASSERT_EQ(end.write(*qp, 1, peer.addr, peer.rkey), 0);
  EXPECT_EQ(end.next().status, WcStatus::kRetryExcErr);
  EXPECT_EQ(end.state_of(*qp), QpState::kErr);
}

TEST_F(ShmDeath, RequestThatADrainingQueueHoldsBack_FailsWhenItsTurnComes) {  // IBTA 10.3.1.5
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  ASSERT_EQ(end.move(*qp, QpState::kSqd), 0);
  ASSERT_EQ(end.write(*qp, 1, peer.addr, peer.rkey), 0);
  ASSERT_NO_FATAL_FAILURE(kill_and_settle(peer.qp_num));
  EXPECT_EQ(end.state_of(*qp), QpState::kSqd);
  EXPECT_TRUE(end.is_empty());
  ASSERT_EQ(end.move(*qp, QpState::kRts), 0);
  EXPECT_EQ(end.next().status, WcStatus::kRetryExcErr);
  EXPECT_EQ(end.state_of(*qp), QpState::kErr);
}

bool connect_unreliably_and_wait(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp(QpType::kUc);
  if (!meet(end, line, *qp, &peer)) return false;
  line.wait();
  return true;
}

bool receive_datagrams(ShmEnd& end, const ShmLine& line) {
  Qp* qp = end.make_qp(QpType::kUd);
  return end.connect(*qp, 0) == 0 && line.give(qp->number()) && line.wait();
}

/// The rules of an adapter, whichever transport it is.
class PeerDeath : public ShmDeath, public ::testing::WithParamInterface<const char*> {
 protected:
  void kill_peer(uint32_t qp_num) {
    if (GetParam() == std::string("shm"))
      kill_and_settle(qp_num);
    else
      kill_child();
  }
};

TEST_P(PeerDeath, NothingIsSent_TheNextRequestSaysWhyAndOthersAreFlushed) {
  start(connect_and_wait, GetParam());
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  ASSERT_EQ(end.receive(*qp, 3), 0);
  ASSERT_NO_FATAL_FAILURE(kill_peer(peer.qp_num));
  EXPECT_EQ(end.state_of(*qp), QpState::kRts);
  EXPECT_TRUE(end.is_empty()) << "the receive is flushed before anything has failed";
  ASSERT_EQ(end.write(*qp, 1, peer.addr, peer.rkey), 0);
  const WorkCompletion why = end.next();
  EXPECT_EQ(why.wr_id, 1u);
  EXPECT_EQ(why.status, WcStatus::kRetryExcErr);
  EXPECT_EQ(end.state_of(*qp), QpState::kErr);
  ASSERT_EQ(end.write(*qp, 2, peer.addr, peer.rkey), 0);
  uint64_t flushed = 0;
  for (int i = 0; i < 2; ++i) {
    const WorkCompletion wc = end.next();
    EXPECT_EQ(wc.status, WcStatus::kWrFlushErr);
    flushed += wc.wr_id;
  }
  EXPECT_EQ(flushed, 2u + 3u);
}

TEST_P(PeerDeath, LongPatience_RequestEndsSoonAllTheSame) {
  start(connect_and_wait, GetParam());
  ShmAddress peer;
  Qp* qp = end.make_qp();
  const ShmAddress mine{qp->number(), end.region->rkey(), reinterpret_cast<uint64_t>(end.memory), 0};
  ASSERT_TRUE(line.give(mine) && line.get(&peer));
  ASSERT_EQ(end.connect(*qp, peer.qp_num, {.timeout = 24}), 0);  // eight times 69 s
  ASSERT_TRUE(line.go() && line.wait());
  ASSERT_EQ(end.write(*qp, 1, peer.addr, peer.rkey), 0);
  ASSERT_EQ(end.next().status, WcStatus::kSuccess);
  ASSERT_NO_FATAL_FAILURE(kill_peer(peer.qp_num));
  ASSERT_EQ(end.write(*qp, 2, peer.addr, peer.rkey), 0);
  EXPECT_EQ(end.next().status, WcStatus::kRetryExcErr) << "its host knows that the process is gone";
}

TEST_P(PeerDeath, UnreliableConnection_RequestsEndWell) {  // IBTA 9.8.2: nobody answers in any case
  start(connect_unreliably_and_wait, GetParam());
  ShmAddress peer;
  Qp* qp = end.make_qp(QpType::kUc);
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  ASSERT_EQ(end.receive(*qp, 3), 0);
  ASSERT_NO_FATAL_FAILURE(kill_peer(peer.qp_num));
  ASSERT_EQ(end.write(*qp, 1, peer.addr, peer.rkey), 0);
  ASSERT_EQ(end.send(*qp, 2), 0);
  for (const uint64_t id : {1, 2}) {
    const WorkCompletion wc = end.next();
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
  }
  EXPECT_EQ(end.state_of(*qp), QpState::kRts);
  EXPECT_TRUE(end.is_empty());
}

TEST_P(PeerDeath, Datagrams_EndWell) {  // IBTA 9.8.3.2.2
  start(receive_datagrams, GetParam());
  uint32_t number = 0;
  ASSERT_TRUE(line.get(&number));
  Qp* qp = end.make_qp(QpType::kUd);
  ASSERT_EQ(end.connect(*qp, 0), 0);
  AddressVector there;
  there.is_global = true;
  there.dgid = end.handle->query_gid(1, 1)->gid;
  there.sgid_index = 1;
  there.port_num = 1;
  auto ah = std::move(*end.handle->create_ah(*end.pd, there));
  const auto send = [&](uint64_t id) {
    const Sge sge = end.span(0, 8);
    SendWr wr{.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend, .flags = send_flag::kSignaled};
    wr.ah = ah.get();
    wr.remote_qpn = number;
    wr.remote_qkey = ShmEnd::kQkey;
    EXPECT_EQ(qp->post_send(wr), 0);
    const WorkCompletion wc = end.next();
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
  };
  send(1);
  const std::weak_ptr<host::Peer> other = end.process().node().find(shm::slot_of(number));
  EXPECT_EQ(other.expired(), GetParam() != std::string("shm"));
  ASSERT_NO_FATAL_FAILURE(kill_peer(number));
  EXPECT_TRUE(soon([&] { return other.expired(); })) << "the queue pair keeps what is mapped of the dead";
  send(2);
  EXPECT_EQ(end.state_of(*qp), QpState::kRts);
}

/// Address space of this process, bytes.
uint64_t address_bytes();

TEST_F(ShmShared, NoAddressesForAnotherProcesssTables_IsAnErrorOfTheConnection) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  const ShmAddress mine{qp->number(), 0, 0, 0};
  ASSERT_TRUE(line.get(&peer));  // the child does not know of this process yet
  ASSERT_EQ(end.to_init(*qp), 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = address_bytes() + (8 << 20);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  EXPECT_EQ(end.to_rtr(*qp, peer.qp_num), ENOMEM);
  EXPECT_EQ(end.state_of(*qp), QpState::kInit);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(end.to_rtr(*qp, peer.qp_num), 0) << "it is met when there is room";
  EXPECT_EQ(end.to_rts(*qp), 0);
  ASSERT_TRUE(line.give(mine) && line.go() && line.wait());
  ASSERT_EQ(end.write(*qp, 1, peer.addr, peer.rkey), 0);
  EXPECT_EQ(end.next().status, WcStatus::kSuccess);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmShared, NoAddressesForAnotherProcesssQueues_IsAnErrorOfTheRequest) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = address_bytes() + (4 << 20);  // less than a window of the other process's file
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  EXPECT_EQ(end.send(*qp, 1), 0);
  const WorkCompletion wc = end.next();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.status, WcStatus::kLocQpOpErr);
  EXPECT_EQ(end.state_of(*qp), QpState::kErr);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

uint64_t address_bytes() {
  std::ifstream status("/proc/self/status");
  uint64_t kibibytes = 0;
  for (std::string line; std::getline(status, line);)
    if (std::sscanf(line.c_str(), "VmSize: %" SCNu64, &kibibytes) == 1) break;
  return kibibytes << 10;
}

/// Many processes that are met one after the other.
class ShmCrowd : public ::testing::Test {
 protected:
  static constexpr int kCrowd = 25, kFew = 5;
  struct Member {
    pid_t child = 0;
    ShmLine line;
  };
  /// Before this one opens the device. Each begins when it is told to.
  void SetUp() override {
    for (Member& member : crowd) {
      int down[2], up[2];
      ASSERT_EQ(pipe2(down, O_CLOEXEC), 0);
      ASSERT_EQ(pipe2(up, O_CLOEXEC), 0);
      member.child = fork();
      ASSERT_GE(member.child, 0);
      if (member.child == 0) be_met({down[0], up[1]});
      ::close(down[0]);
      ::close(up[1]);
      member.line = {up[0], down[1]};
    }
    ASSERT_TRUE(end.open());
  }
  [[noreturn]] static void be_met(const ShmLine& line) {
    alarm(120);
    ShmEnd own;
    const bool good = line.wait() && own.open() && connect_and_wait(own, line);
    own.close();
    _exit(good ? 0 : 1);
  }
  /// Connects to the member, writes to it, lets the queue pair go and then the process.
  void meet_and_end(Member& member, bool killed) {
    ShmAddress peer;
    ASSERT_TRUE(member.line.go());
    Qp* qp = end.make_qp();
    ASSERT_TRUE(meet(end, member.line, *qp, &peer));
    ASSERT_EQ(end.write(*qp, 1, peer.addr, peer.rkey), 0);
    EXPECT_EQ(end.next().status, WcStatus::kSuccess);
    const std::weak_ptr<host::Peer> other = peer_of(end, peer.qp_num);
    end.qps.pop_back();
    EXPECT_FALSE(other.expired()) << "it lives";
    ASSERT_TRUE(killed ? kill(member.child, SIGKILL) == 0 : member.line.go());
    waitpid(std::exchange(member.child, 0), nullptr, 0);
    EXPECT_TRUE(soon([&] { return other.expired(); }));
  }
  void TearDown() override {
    for (Member& member : crowd) {
      ::close(member.line.in);
      ::close(member.line.out);
      if (member.child <= 0) continue;
      kill(member.child, SIGKILL);
      waitpid(member.child, nullptr, 0);
    }
    end.close();
  }

  ShmEnd end;
  std::array<Member, kCrowd> crowd;
};

TEST_F(ShmCrowd, ProcessesThatWereMetAndEnded_TakeNoAddressesAndAreForgotten) {
  uint64_t after_few = 0;
  for (int i = 0; i < kCrowd; ++i) {
    ASSERT_NO_FATAL_FAILURE(meet_and_end(crowd[static_cast<size_t>(i)], i % 2 == 0)) << i;
    if (i + 1 == kFew) after_few = address_bytes();
  }
  // Each has tables of 65 MB. Those of the last one may be unmapped a moment after nobody holds it any more.
  EXPECT_TRUE(soon([&] { return address_bytes() < after_few + (64 << 20); }));
  EXPECT_LE(end.process().memories().known(), 2u) << "the last one, and this process itself";
}

INSTANTIATE_TEST_SUITE_P(Each, PeerDeath, ::testing::Values("shm", "roce"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(ShmDeath, CleanExitLeavesPostedReceives) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  ASSERT_EQ(end.receive(*qp, 3), 0);
  const host::PeerRef other = peer_of(end, peer.qp_num);
  ASSERT_NE(other, nullptr);
  ASSERT_TRUE(line.go());
  expect_good_end();
  ASSERT_TRUE(soon([&] { return !other->alive(); }));
  EXPECT_TRUE(other->left_politely());
  // A request finds out, as an adapter's would; until then nothing has happened.
  EXPECT_TRUE(end.is_empty());
  EXPECT_EQ(end.state_of(*qp), QpState::kRts);
  ASSERT_EQ(end.write(*qp, 1, peer.addr, peer.rkey), 0);
  const WorkCompletion wc = end.next();
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
  EXPECT_EQ(end.next().status, WcStatus::kWrFlushErr);
}

TEST_F(ShmDeath, CleanExit_TimeoutZero_ARequestFailsAllTheSame) {
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

TEST_F(ShmDeath, TargetOfTheDeadTakesNothing) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
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
  if (!meet(end, line, *qp, &peer)) return false;
  const host::PeerRef parent = peer_of(end, peer.qp_num);
  if (parent == nullptr) return false;
  auto ring = open_ring(*parent, parent->tables().srq[peer.index].recv);
  if (!ring.valid() || !ring.claim(end.process().tag())) return false;
  line.go();
  line.wait();
  return true;
}

TEST_F(ShmDeath, ReceiveThatItClaimedIsHandedOutAgain) {
  start(claim_receive_of_parent);
  ShmAddress peer;
  Srq* srq = end.make_srq(4);
  ASSERT_EQ(end.receive(*srq, 7), 0);
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer, srq->index()));
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

TEST_F(ShmDeath, ReceiveOfAnEarlierProcessOfALiveSlot_IsFlushed) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
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
  if (!meet(end, line, *qp, &peer)) return false;
  const host::PeerRef parent = peer_of(end, peer.qp_num);
  shm::CompletionRing ring;
  if (parent == nullptr || !open_completions(*parent, peer.index, &ring)) return false;
  uint64_t position;
  if (ring.claim_next(end.process().tag(), &position) != shm::CompletionRing::Push::kOk) return false;
  line.go();
  line.wait();
  return true;
}

TEST_F(ShmDeath, EntryThatItClaimedIsPassedOver) {
  start(claim_entry_of_parent);
  ShmAddress peer;
  Cq* queue = end.make_cq(8);
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer, queue->index()));
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
  if (!meet(end, line, *qp, &peer)) return false;
  const host::PeerRef parent = peer_of(end, peer.qp_num);
  shm::CompletionRing ring;
  if (parent == nullptr || !open_completions(*parent, peer.index, &ring)) return false;
  if (!ring.needs_event(false) || !shm::CompletionRing::count_event(parent->tables().cq[peer.index])) return false;
  line.go();
  line.wait();
  return true;
}

TEST_F(ShmDeath, EventThatItRaisedAndToldNobody_WakesTheChannel) {
  start(raise_event_of_parent);
  auto channel = std::move(*end.handle->create_channel());
  Cq* queue = end.make_cq(8, channel.get());
  ASSERT_EQ(queue->arm(false), 0);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer, queue->index()));
  ASSERT_TRUE(line.wait());
  pollfd event{channel->fd(), POLLIN, 0};
  EXPECT_EQ(poll(&event, 1, 0), 0);
  kill_child();
  ASSERT_TRUE(soon([&] { return poll(&event, 1, 0) == 1; }));
  EXPECT_TRUE(channel->wait());
  end.cqs.pop_back();
  EXPECT_EQ(channel->close(), 0);
}

/// Is inside a post, until it is told to go on.
bool stay_in_a_post(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!meet(end, line, *qp, &peer)) return false;
  qp->post_begin();
  line.go();
  line.wait();
  qp->post_end();
  return true;
}

class ShmGrace : public ShmProcesses {
 protected:
  /// The other process is inside a post, and this one waits until it is not any more.
  void begin() {
    start(stay_in_a_post);
    ShmAddress peer;
    Qp* qp = end.make_qp();
    ASSERT_TRUE(meet(end, line, *qp, &peer));
    ASSERT_TRUE(line.wait());
    std::atomic<bool> began{false};
    other = std::thread([&] {
      began = true;
      all_moved_on = quiesce(end.process().node());
      over = true;
    });
    EXPECT_TRUE(soon([&] { return began.load(); }));
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

TEST_F(ShmGrace, WaitsForAnotherProcessThatIsInsideAPost) {
  begin();
  ASSERT_TRUE(line.go());
  other.join();
  EXPECT_TRUE(all_moved_on.load());
  expect_good_end();
}

TEST_F(ShmGrace, DoesNotWaitForTheDead) {
  begin();
  kill_child();
  other.join();
  EXPECT_TRUE(all_moved_on.load());
}

constexpr uint64_t kAdds = 20'000;

WcStatus add(ShmEnd& end, Qp& qp, uint64_t remote_addr, uint32_t rkey) {
  const Sge sge = end.span(0, 8);
  SendWr wr{.sg_list = &sge, .num_sge = 1, .opcode = Opcode::kFetchAdd};
  wr.flags = send_flag::kSignaled;
  wr.rkey = rkey;
  wr.remote_addr = remote_addr;
  wr.compare_add = 1;
  return qp.post_send(wr) == 0 ? end.next().status : WcStatus::kGeneralErr;
}

bool add_to_the_parents_word(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!meet(end, line, *qp, &peer)) return false;
  for (uint64_t i = 0; i < kAdds; ++i)
    if (add(end, *qp, peer.addr + 4096, peer.rkey) != WcStatus::kSuccess) return false;
  return true;
}

TEST_F(ShmShared, PiecesOfARegionAreNotBelieved) {  // another process may write what it likes
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  const host::PeerRef other = peer_of(end, peer.qp_num);
  ASSERT_NE(other, nullptr);
  const uint32_t index = shm::key_index(peer.rkey);
  shm::MrShared& theirs = other->tables().mr[index];
  ASSERT_EQ(theirs.piece_count, 1u);
  const shm::MrPiece right = theirs.inline_pieces[0];
  const auto mapped = [&](std::initializer_list<shm::MrPiece> pieces) {
    std::copy(pieces.begin(), pieces.end(), theirs.inline_pieces);
    theirs.piece_count = static_cast<uint32_t>(pieces.size());
    host::PeerMemory memory(*other, end.process().memories().agent());
    return memory.map(index, theirs.generation)->base() != nullptr;
  };
  constexpr uint64_t kPage = shm::kPage;
  const uint64_t at = right.begin, file = right.file_offset;
  const uint64_t before = mapped_region_bytes();
  EXPECT_TRUE(mapped({right}));
  EXPECT_FALSE(mapped({{at, at + 2 * kPage, file}, {at + 2 * kPage, at + kPage, file}})) << "the second one goes back";
  EXPECT_FALSE(mapped({{at, at + 2 * kPage, file}, {at + kPage, at + 2 * kPage, file}})) << "they overlap";
  EXPECT_FALSE(mapped({{at, at + kPage / 2, file}, {at + kPage / 2, at + kPage, file}})) << "they are no pages";
  EXPECT_FALSE(mapped({{at, at + kPage, file + 8}}));
  EXPECT_FALSE(mapped({{at, at, file}}));
  // Pages behind the end of the file would be a SIGBUS.
  EXPECT_FALSE(mapped({{at, at + kPage, uint64_t{1} << 45}}));
  EXPECT_FALSE(mapped({{at, at + (uint64_t{1} << 44), file}}));
  EXPECT_FALSE(mapped({{at, at + 2 * kPage, ~uint64_t{0} - kPage + 1}}));
  EXPECT_TRUE(mapped({right}));
  EXPECT_EQ(before, mapped_region_bytes()) << "nothing lies where this process has something else";
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmShared, PieceThatEndsBeforeItBegins_IsMappedOverNothingOfThisProcess) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  const host::PeerRef other = peer_of(end, peer.qp_num);
  ASSERT_NE(other, nullptr);
  const uint32_t index = shm::key_index(peer.rkey);
  shm::MrShared& theirs = other->tables().mr[index];
  ASSERT_EQ(theirs.piece_count, 1u);
  // The kernel places mappings from high addresses to low ones: the next one of kRoom bytes ends where `own` begins.
  constexpr uint64_t kRoom = 256 * shm::kPage, kOwn = 16 * shm::kPage;
  void* const room = mmap(nullptr, kRoom + kOwn, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(room, MAP_FAILED);
  char* const own = static_cast<char*>(room) + kRoom;
  std::memset(own, 'o', kOwn);
  ASSERT_EQ(munmap(room, kRoom), 0);
  // The second piece takes back what the first one has more than kRoom.
  const shm::MrPiece right = theirs.inline_pieces[0];
  const uint64_t long_end = right.begin + kRoom + kOwn;
  theirs.inline_pieces[0] = {right.begin, long_end, right.file_offset};
  theirs.inline_pieces[1] = {long_end, long_end - kOwn, right.file_offset};
  theirs.piece_count = 2;
  host::PeerMemory memory(*other, end.process().memories().agent());
  EXPECT_EQ(memory.map(index, theirs.generation)->base(), nullptr);
  EXPECT_TRUE(std::all_of(own, own + kOwn, [](char byte) { return byte == 'o'; }));
  munmap(own, kOwn);
  theirs.inline_pieces[0] = right;
  theirs.piece_count = 1;
  ASSERT_TRUE(line.go());
  expect_good_end();
}

/// Writes with immediate data to a page of the parent's that cannot be written, and then sends.
bool write_to_a_closed_page_and_send(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp(QpType::kUc);
  if (!meet(end, line, *qp, &peer) || !line.get(&peer)) return false;
  const Sge sge = end.span(0, 8);
  SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kRdmaWriteWithImm};
  wr.flags = send_flag::kSignaled;
  wr.rkey = peer.rkey;
  wr.remote_addr = peer.addr;
  if (qp->post_send(wr) != 0 || end.next().status != WcStatus::kSuccess) return false;
  if (end.send(*qp, 2) != 0 || end.next().status != WcStatus::kSuccess) return false;
  return line.go() && line.wait();
}

TEST_F(ShmShared, WriteWithImmediateThatFails_LeavesTheReceiveToTheNextMessage) {
  start(write_to_a_closed_page_and_send);
  // Peers do not map shared memory of the program: they copy.
  void* const page = mmap(nullptr, shm::kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const auto at = reinterpret_cast<uint64_t>(page);
  auto closed = std::move(*end.handle->reg_mr(*end.pd, page, shm::kPage, at, kEveryRight));
  ASSERT_EQ(mprotect(page, shm::kPage, PROT_NONE), 0);
  ShmAddress peer;
  Qp* qp = end.make_qp(QpType::kUc);
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  ASSERT_EQ(end.receive(*qp, 3), 0);
  ASSERT_TRUE(line.give(ShmAddress{0, closed->rkey(), at, 0}));
  ASSERT_TRUE(line.wait());
  const WorkCompletion wc = end.next();
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.opcode, WcOpcode::kRecv) << "a message of UC that fails is lost";
  EXPECT_EQ(wc.wr_id, 3u);
  EXPECT_TRUE(end.is_empty());
  ASSERT_TRUE(line.go());
  expect_good_end();
  closed.reset();
  munmap(page, shm::kPage);
}

// Completion channels of other processes.

constexpr size_t kManyChannels = 40;
constexpr int kEventRounds = 3;

/// Has an event of each of so many completion channels in each round, and rounds of events of all.
bool take_events_of_channels(ShmEnd& end, const ShmLine& line) {
  std::vector<std::unique_ptr<CompletionChannel>> channels;
  std::vector<Cq*> queues;
  std::vector<Qp*> qps;
  uint32_t connected = 0;
  if (!line.get(&connected)) return false;
  bool good = true;
  for (size_t i = 0; i < kManyChannels; ++i) {
    channels.push_back(std::move(*end.handle->create_channel()));
    queues.push_back(end.make_cq(8, channels.back().get()));
    if (i >= connected) continue;
    qps.push_back(end.make_qp(QpType::kRc, nullptr, queues[i]));
    ShmAddress peer;
    good = good && meet(end, line, *qps[i], &peer) && end.receive(*qps[i], i) == 0 && queues[i]->arm(false) == 0;
  }
  good = good && line.go();
  for (int round = 0; good && round < kEventRounds; ++round) {
    for (size_t i = 0; good && i < connected; ++i) {
      const auto event = channels[i]->wait();
      good = event && *event == queues[i] && end.next(queues[i]).status == WcStatus::kSuccess &&
             end.receive(*qps[i], i) == 0 && queues[i]->arm(false) == 0;
    }
    good = good && line.go();
  }
  good = good && line.wait();
  end.qps.clear();
  end.cqs.clear();
  end.cq = nullptr;
  return good;
}

constexpr uint32_t kChannelsBefore = 1100;

/// The same behind more channels than a table of 1,024 has, and with completion queues beyond 16,384.
bool take_events_of_late_channels(ShmEnd& end, const ShmLine& line) {
  constexpr size_t kQueuesBefore = 16400;
  constexpr rlim_t kDescriptors = 4096;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kDescriptors));
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  std::vector<std::unique_ptr<CompletionChannel>> channels;
  while (channels.size() < kChannelsBefore) {
    auto channel = end.handle->create_channel();
    if (!channel) return false;
    channels.push_back(std::move(*channel));
  }
  std::vector<std::unique_ptr<CompletionQueue>> queues;
  while (queues.size() < kQueuesBefore) {
    auto queue = end.handle->create_cq({.entries = 1});
    if (!queue) return false;
    queues.push_back(std::move(*queue));
  }
  return take_events_of_channels(end, line);
}

/// Has so many connections to the other process send in each round. False: something failed.
bool send_to_channels(ShmEnd& end, const ShmLine& line, uint32_t connected) {
  if (!line.give(connected)) return false;
  std::vector<Qp*> qps;
  for (uint32_t i = 0; i < connected; ++i) {
    qps.push_back(end.make_qp());
    ShmAddress peer;
    if (!meet(end, line, *qps.back(), &peer)) return false;
  }
  return line.wait();
}
bool send_round(ShmEnd& end, const ShmLine& line) {
  for (const auto& qp : end.qps)
    if (end.send(static_cast<Qp&>(*qp), 1) != 0 || end.next().status != WcStatus::kSuccess) return false;
  return line.wait();
}

TEST_F(ShmShared, ProcessWithoutDescriptors_ItsEventsReachEachOfManyChannelsAndNoConnectionEnds) {
  start(take_events_of_channels);
  ASSERT_TRUE(send_to_channels(end, line, kManyChannels));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // First none is free, then the part for others' channels is smaller than their number, then there is room.
  for (const rlim_t most : {rlim_t{0}, rlim_t{10 * host::Peer::kPartOfDescriptors}, before.rlim_cur}) {
    const rlimit limit{most, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_TRUE(send_round(end, line)) << most;
    EXPECT_LE(host::Peer::channels_held(), most / host::Peer::kPartOfDescriptors);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const auto& qp : end.qps) EXPECT_EQ(end.state_of(static_cast<Qp&>(*qp)), QpState::kRts);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmShared, ChannelsBehindAThousandOthers_HaveTheirEvents) {
  constexpr uint32_t kConnected = 3;
  start(take_events_of_late_channels);
  ASSERT_TRUE(send_to_channels(end, line, kConnected));
  for (int round = 0; round < kEventRounds; ++round) ASSERT_TRUE(send_round(end, line));
  EXPECT_TRUE(soon([] { return host::Peer::channels_held() == kConnected; })) << host::Peer::channels_held();
  ASSERT_EQ(end.process().node().peers().size(), 1u);
  EXPECT_TRUE(end.process().node().peers().front()->signal_channel(kChannelsBefore)) << "the first of them";
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmShared, DescriptorsOfChannels_AreHeldWhereThisProcessHasEventsForThem) {
  constexpr uint32_t kConnected = 3;
  start(take_events_of_channels);
  ASSERT_TRUE(send_to_channels(end, line, kConnected));
  EXPECT_EQ(host::Peer::channels_held(), 0u) << "of so many that are there";
  for (int round = 0; round < kEventRounds; ++round) ASSERT_TRUE(send_round(end, line));
  EXPECT_TRUE(soon([] { return host::Peer::channels_held() == kConnected; })) << host::Peer::channels_held();
  ASSERT_TRUE(line.go());
  expect_good_end();
  EXPECT_TRUE(soon([] { return host::Peer::channels_held() == 0; })) << "its owner has ended";
}

TEST_F(ShmShared, FetchAndAddIsAtomicBetweenProcessesAndProcessors) {  // IBTA 9.4.5, IBV_ATOMIC_GLOB
  start(add_to_the_parents_word);
  ShmAddress peer;
  Qp* own = end.make_qp();
  ASSERT_EQ(end.connect(*own, own->number()), 0);
  Qp* qp = end.make_qp();
  auto* const word = reinterpret_cast<uint64_t*>(end.memory + 4096);
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  for (uint64_t i = 0; i < kAdds; ++i) {
    ASSERT_EQ(add(end, *own, reinterpret_cast<uint64_t>(word), end.region->rkey()), WcStatus::kSuccess);
    __atomic_fetch_add(word, 1, __ATOMIC_RELAXED);
  }
  expect_good_end();
  EXPECT_EQ(__atomic_load_n(word, __ATOMIC_RELAXED), 3 * kAdds);
}

/// Atomics on half of one word and half of the next.
bool try_odd_addresses(ShmEnd& end, const ShmLine& line) {
  bool good = true;
  for (const Opcode opcode : {Opcode::kFetchAdd, Opcode::kCompareSwap, Opcode::kAtomicWrite}) {
    ShmAddress peer;
    Qp* qp = end.make_qp();
    if (!meet(end, line, *qp, &peer)) return false;
    const Sge sge = end.span(0, 8);
    SendWr wr{.sg_list = &sge, .num_sge = 1, .opcode = opcode};
    wr.flags = send_flag::kSignaled;
    wr.rkey = peer.rkey;
    wr.remote_addr = peer.addr + 4;
    wr.compare_add = 0;
    wr.swap = 1;
    good = qp->post_send(wr) == 0 && end.next().status == WcStatus::kRemInvReqErr && good;
  }
  line.go();
  return good;
}

TEST_F(ShmShared, AtomicsOnOddAddressesAreInvalidRequests) {  // IBTA 9.4.5, A19
  start(try_odd_addresses);
  for (int i = 0; i < 3; ++i) {
    ShmAddress peer;
    ASSERT_TRUE(meet(end, line, *end.make_qp(), &peer));
  }
  ASSERT_TRUE(line.wait());
  for (int i = 0; i < 16; ++i) EXPECT_EQ(end.memory[i], 0);
  expect_good_end();
}

/// Writes through a key that it has used before, after the parent has reregistered the region.
bool write_to_both_places(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!meet(end, line, *qp, &peer)) return false;
  std::strcpy(end.memory, "first");
  if (end.write(*qp, 1, peer.addr, peer.index) != 0 || end.next().status != WcStatus::kSuccess) return false;
  line.go();
  line.wait();
  std::strcpy(end.memory, "second");
  if (end.write(*qp, 2, peer.addr + 4096, peer.index) != 0 || end.next().status != WcStatus::kSuccess) return false;
  const bool refused = end.write(*qp, 3, peer.addr, peer.index) == 0 && end.next().status == WcStatus::kRemAccessErr;
  line.go();
  return refused;
}

TEST_F(ShmShared, ReregisteredKeyOpensItsNewMemoryToWhoUsedItBefore) {
  start(write_to_both_places);
  auto moved =
      std::move(*end.handle->reg_mr(*end.pd, end.memory, 64, reinterpret_cast<uint64_t>(end.memory), kEveryRight));
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer, moved->rkey()));
  ASSERT_TRUE(line.wait());
  EXPECT_STREQ(end.memory, "first");
  ASSERT_EQ(end.handle->rereg_mr(*moved, 1, nullptr, end.memory + 4096, 64, 0), 0);
  ASSERT_TRUE(line.go());
  ASSERT_TRUE(line.wait());
  EXPECT_STREQ(end.memory, "first");
  EXPECT_STREQ(end.memory + 4096, "second");
  expect_good_end();
}

/// Writes twice to one place, and the parent registers it anew in between.
bool write_twice(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!meet(end, line, *qp, &peer, 0) || !line.get(&peer)) return false;
  for (const char* text : {"first", "second"}) {
    std::strcpy(end.memory, text);
    if (end.write(*qp, 1, peer.addr, peer.rkey) != 0 || end.next().status != WcStatus::kSuccess) return false;
    line.go();
    line.wait();
  }
  return true;
}

TEST_F(ShmShared, MemoryThatIsReregisteredWhereItIsIsMappedAnew) {
  start(write_twice);
  // The program's own: its pages are shared while it is registered, and not the same ones each time.
  void* const mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const own = static_cast<char*>(mapped);
  auto moved = std::move(*end.handle->reg_mr(*end.pd, own, 8192, reinterpret_cast<uint64_t>(own), kEveryRight));
  ShmAddress peer;
  ASSERT_TRUE(meet(end, line, *end.make_qp(), &peer));
  ASSERT_TRUE(line.give(ShmAddress{0, moved->rkey(), reinterpret_cast<uint64_t>(own), 0}));
  ASSERT_TRUE(line.wait());
  EXPECT_STREQ(own, "first");
  ASSERT_EQ(end.handle->rereg_mr(*moved, 1, nullptr, own, 8192, 0), 0);
  EXPECT_STREQ(own, "first");
  ASSERT_TRUE(line.go());
  ASSERT_TRUE(line.wait());
  EXPECT_STREQ(own, "second");
  ASSERT_TRUE(line.go());
  expect_good_end();
  moved.reset();
  munmap(mapped, 8192);
}

/// Tries the bytes around a region whose pages it has mapped.
bool write_around(ShmEnd& end, const ShmLine& line) {
  bool good = true;
  for (const int64_t offset : {-8, -1, 57, 64, 4000}) {
    ShmAddress peer;
    Qp* qp = end.make_qp();
    if (!meet(end, line, *qp, &peer)) return false;
    std::memcpy(end.memory, "inside\0", 8);
    good = end.write(*qp, 1, peer.addr, peer.index) == 0 && end.next().status == WcStatus::kSuccess && good;
    std::memset(end.memory, 'x', 8);
    good = end.write(*qp, 2, peer.addr + static_cast<uint64_t>(offset), peer.index) == 0 &&
           end.next().status == WcStatus::kRemAccessErr && good;
  }
  line.go();
  return good;
}

TEST_F(ShmShared, KeyOpensItsBytesThoughWholePagesAreMapped) {  // IBTA 10.6.3.1
  start(write_around);
  void* const mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const pages = static_cast<char*>(mapped);
  char* const own = pages + 1024;
  auto narrow = std::move(*end.handle->reg_mr(*end.pd, own, 64, reinterpret_cast<uint64_t>(own), kEveryRight));
  for (int i = 0; i < 5; ++i) {
    Qp* qp = end.make_qp();
    ShmAddress peer;
    ASSERT_TRUE(line.give(ShmAddress{qp->number(), 0, reinterpret_cast<uint64_t>(own), narrow->rkey()}) &&
                line.get(&peer));
    ASSERT_EQ(end.connect(*qp, peer.qp_num), 0);
    ASSERT_TRUE(line.go() && line.wait());
  }
  ASSERT_TRUE(line.wait());
  for (size_t i = 0; i < 8192; ++i) EXPECT_NE(pages[i], 'x') << i;
  EXPECT_STREQ(own, "inside");
  expect_good_end();
  narrow.reset();
  munmap(mapped, 8192);
}

/// Asks as often as it takes: the parent's service thread may have to wait for a core.
class Asker {
 public:
  explicit Asker(ShmEnd& end) : call_(end.process().memories().agent()) {}
  WcStatus copy(host::Peer& owner, bool write, uint64_t remote, std::byte* local, uint64_t length) {
    return ask([&] { return call_.copy(owner, write, remote, local, length); });
  }
  WcStatus atomic(host::Peer& owner, shm::AgentOp op, uint64_t remote, uint64_t* operand, uint64_t swap) {
    return ask([&] { return call_.atomic(owner, op, remote, operand, swap); });
  }

 private:
  WcStatus ask(const std::function<WcStatus()>& steps) {
    WcStatus status = host::kNotServedYet;
    soon([&] {
      status = call_.attempt(steps);
      return status != host::kNotServedYet;
    });
    return status;
  }
  host::AgentCall call_;
};

/// Asks the parent's service thread for what it must not do, by hand: the parent sees to whom it answers, and how.
bool ask_for_nonsense(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!meet(end, line, *qp, &peer)) return false;
  const host::PeerRef parent = peer_of(end, peer.qp_num);
  if (parent == nullptr) return false;
  auto bounce = end.process().ring_memory().allocate(shm::kBounceBytes);
  if (!bounce) return false;
  auto& agents = end.tables().header->agents;
  const auto prepare = [&](shm::AgentShared& request, shm::AgentOp op, uint64_t address, uint64_t length) {
    request.op = static_cast<uint32_t>(op);
    request.target_instance = parent->instance();
    request.address = address;
    request.length = length;
    request.bounce = bounce->offset;
    request.epoch = parent->tables().header->agent_epoch.load();
    request.operand = 1;
    request.status = 0;
  };
  const auto ask = [](shm::AgentShared& request) {
    request.state.store(static_cast<uint32_t>(shm::AgentState::kAsked));
  };
  const auto served = [](const shm::AgentShared& request) {
    return request.state.load() == static_cast<uint32_t>(shm::AgentState::kServed);
  };
  prepare(agents[0], shm::AgentOp::kFetchAdd, peer.addr, 8);
  ++agents[0].target_instance;  // an earlier process of that slot
  prepare(agents[1], shm::AgentOp::kRead, peer.addr, shm::kBounceBytes + 1);
  prepare(agents[2], shm::AgentOp::kFetchAdd, peer.addr + 4, 8);
  prepare(agents[3], shm::AgentOp::kRead, peer.addr, 8);
  agents[3].bounce = uint64_t{1} << 40;
  prepare(agents[4], shm::AgentOp::kFetchAdd, peer.addr, 8);
  for (int i = 0; i < 5; ++i) ask(agents[i]);
  shm::SegmentHeader& theirs = *parent->tables().header;
  const uint32_t slot = end.process().slot();
  theirs.agent_attention[slot / 64].fetch_or(uint64_t{1} << (slot % 64));
  theirs.attention.fetch_or(shm::attention::kAgent);
  parent->ring_doorbell();
  // They are served in their order: when the last one is, the others were seen.
  if (!soon([&] { return served(agents[4]); })) return false;
  const bool right = !served(agents[0]) && served(agents[1]) && agents[1].status == EINVAL && served(agents[2]) &&
                     agents[2].status == EINVAL && served(agents[3]) && agents[3].status == EINVAL &&
                     agents[4].status == 0 && agents[4].operand == 40;
  for (int i = 0; i < 5; ++i) agents[i].state.store(static_cast<uint32_t>(shm::AgentState::kFree));
  // And what it may do, through the door that is made for it.
  Asker agent(end);
  uint64_t operand = 41;
  const bool swapped =
      agent.atomic(*parent, shm::AgentOp::kCompareSwap, peer.addr, &operand, 50) == WcStatus::kSuccess && operand == 41;
  operand = 41;
  const bool kept =
      agent.atomic(*parent, shm::AgentOp::kCompareSwap, peer.addr, &operand, 60) == WcStatus::kSuccess && operand == 50;
  std::byte copied[8] = {};
  const bool copies =
      agent.copy(*parent, false, peer.addr, copied, 8) == WcStatus::kSuccess && copied[0] == std::byte{50};
  line.go();
  line.wait();
  return right && swapped && kept && copies;
}

TEST_F(ShmShared, ServiceThreadDoesWhatItIsAskedForAndNothingBeyond) {
  start(ask_for_nonsense);
  *reinterpret_cast<uint64_t*>(end.memory) = 40;
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  ASSERT_TRUE(line.wait());
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(end.memory), 50u);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

constexpr uint64_t kLongCopy = shm::kBounceBytes + 12345;

/// Connects to the parent, which then gives an address in its memory. Null: it did not.
host::PeerRef meet_parent(ShmEnd& end, const ShmLine& line, uint64_t* address) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  return meet(end, line, *qp, &peer) && line.get(address) ? peer_of(end, peer.qp_num) : nullptr;
}

/// Reads the parent's memory through its service thread, and writes each byte's complement back.
bool copy_what_is_long(ShmEnd& end, const ShmLine& line) {
  uint64_t address = 0;
  const host::PeerRef parent = meet_parent(end, line, &address);
  if (parent == nullptr) return false;
  Asker agent(end);
  std::vector<std::byte> bytes(kLongCopy);
  if (agent.copy(*parent, false, address, bytes.data(), kLongCopy) != WcStatus::kSuccess) return false;
  for (size_t i = 0; i < kLongCopy; ++i) {
    if (bytes[i] != static_cast<std::byte>(i / 1000)) return false;
    bytes[i] = ~bytes[i];
  }
  return agent.copy(*parent, true, address, bytes.data(), kLongCopy) == WcStatus::kSuccess;
}

TEST_F(ShmShared, MoreThanABounceBuffer_IsCopiedWhole) {
  start(copy_what_is_long);
  std::vector<std::byte> bytes(kLongCopy);
  for (size_t i = 0; i < kLongCopy; ++i) bytes[i] = static_cast<std::byte>(i / 1000);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  ASSERT_TRUE(line.give(reinterpret_cast<uint64_t>(bytes.data())));
  expect_good_end();
  for (size_t i = 0; i < kLongCopy; ++i) ASSERT_EQ(bytes[i], ~static_cast<std::byte>(i / 1000)) << i;
}

/// Asks for atomics on a word of the parent's that may not be written, and once more when it may.
bool change_a_read_only_word(ShmEnd& end, const ShmLine& line) {
  uint64_t word = 0;
  const host::PeerRef parent = meet_parent(end, line, &word);
  if (parent == nullptr) return false;
  Asker agent(end);
  using shm::AgentOp;
  for (const AgentOp op : {AgentOp::kCompareSwap, AgentOp::kFetchAdd, AgentOp::kAtomicWrite}) {
    uint64_t operand = 5;
    if (agent.atomic(*parent, op, word, &operand, 6) != WcStatus::kRemOpErr) return false;
  }
  if (!line.go() || !line.wait()) return false;
  uint64_t operand = 1;
  return agent.atomic(*parent, AgentOp::kFetchAdd, word, &operand, 0) == WcStatus::kSuccess && operand == 5;
}

TEST_F(ShmShared, AtomicOnMemoryThatIsReadOnlySince_IsAnErrorAndNotTheOwnersEnd) {
  start(change_a_read_only_word);
  void* const page = mmap(nullptr, shm::kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* const word = static_cast<uint64_t*>(page);
  *word = 5;
  ASSERT_EQ(mprotect(page, shm::kPage, PROT_READ), 0);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  ASSERT_TRUE(line.give(reinterpret_cast<uint64_t>(word)));
  ASSERT_TRUE(line.wait());
  EXPECT_EQ(*word, 5u);
  ASSERT_EQ(mprotect(page, shm::kPage, PROT_READ | PROT_WRITE), 0);
  ASSERT_TRUE(line.go());
  expect_good_end();
  EXPECT_EQ(*word, 6u);
  munmap(page, shm::kPage);
}

bool be_there(ShmEnd& end, const ShmLine& line) { return line.give(end.make_qp()->number()) && line.wait(); }

class ShmStopped : public ShmShared {
 protected:
  /// A child that has a queue pair `number` and is stopped before the two have met.
  void start_and_stop(uint32_t* number) {
    start(be_there);
    ASSERT_TRUE(line.get(number));
    int status = 0;
    ASSERT_EQ(kill(child, SIGSTOP), 0);
    ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
};

/// Fills its first slot, and has a connection by each of two; answers what comes.
bool have_two_slots(ShmEnd& end, const ShmLine& line) {
  while (end.qps.size() <= shm::kSlotQp)
    if (end.make_qp() == nullptr) return false;
  for (const size_t at : {size_t{0}, size_t{shm::kSlotQp}}) {
    auto& qp = static_cast<Qp&>(*end.qps[at]);
    if (ShmAddress peer; !meet(end, line, qp, &peer) || end.receive(qp, 1) != 0) return false;
  }
  return line.go() && line.wait();
}

class ManySlots : public ShmProcesses, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    start(have_two_slots, GetParam());
    for (size_t i = 0; i < own.size(); ++i) {
      own[i] = end.make_qp();
      ASSERT_TRUE(meet(end, line, *own[i], &peers[i]));
    }
    ASSERT_TRUE(line.wait());
    ASSERT_NE(slot(0), slot(1));
  }
  uint32_t slot(size_t i) const { return shm::slot_of(peers[i].qp_num); }
  static std::unique_ptr<host::RuntimeDir> folder() { return std::move(*host::RuntimeDir::open()); }
  bool are_there() const {
    const auto slots = folder()->list();
    return std::count(slots.begin(), slots.end(), slot(0)) == 1 && std::count(slots.begin(), slots.end(), slot(1)) == 1;
  }
  bool are_gone() const {
    const auto slots = folder()->list();
    return std::count(slots.begin(), slots.end(), slot(0)) + std::count(slots.begin(), slots.end(), slot(1)) == 0;
  }

  std::array<Qp*, 2> own{};
  std::array<ShmAddress, 2> peers{};
};

TEST_P(ManySlots, QueuePairsOfBothAreReached) {
  for (Qp* qp : own) {
    ASSERT_EQ(end.send(*qp, 1), 0);
    EXPECT_EQ(end.next().status, WcStatus::kSuccess);
  }
  for (size_t i = 0; i < own.size(); ++i) {
    ASSERT_EQ(end.write(*own[i], 2, peers[i].addr, peers[i].rkey), 0);
    EXPECT_EQ(end.next().status, WcStatus::kSuccess);
    EXPECT_EQ(end.process().node().find(slot(i)) != nullptr, GetParam() == std::string("shm"));
  }
  EXPECT_EQ(end.process().node().find(slot(0)), end.process().node().find(slot(1))) << "one process";
  const auto processes = end.process().node().slots();
  EXPECT_EQ(
      std::count(processes.begin(), processes.end(), slot(0)) + std::count(processes.begin(), processes.end(), slot(1)),
      1);
  ASSERT_TRUE(line.go());
  expect_good_end();
  EXPECT_TRUE(soon([&] { return are_gone(); })) << "a process that closes leaves nothing";
}

TEST_P(ManySlots, OfAProcessThatIsKilled_AreFreeAgain) {
  EXPECT_TRUE(are_there());
  kill_child();
  // Over shared memory writes reach the memory of a process that has died for as long as its end is not known.
  ASSERT_TRUE(soon([&] { return end.process().node().find(slot(0)) == nullptr; }));
  for (size_t i = 0; i < own.size(); ++i) {
    ASSERT_EQ(end.write(*own[i], 1, peers[i].addr, peers[i].rkey), 0);
    EXPECT_EQ(end.next().status, WcStatus::kRetryExcErr);
    EXPECT_EQ(end.state_of(*own[i]), QpState::kErr);
  }
  // Processes that did not meet it find out when they start, or by `nupa clean`.
  EXPECT_TRUE(soon([&] {
    folder()->sweep();
    return are_gone();
  }));
}

INSTANTIATE_TEST_SUITE_P(Transports, ManySlots, ::testing::Values("shm", "roce"));

class ShmSlots : public ShmTest {};

TEST_F(ShmSlots, ChildOfAProcessWithSeveralSlots_LeavesThemAlone) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  while (qps.size() <= shm::kSlotQp) ASSERT_NE(make_qp(), nullptr);
  auto& first = static_cast<Qp&>(*qps.front());
  auto& last = static_cast<Qp&>(*qps.back());
  const auto folder = std::move(*host::RuntimeDir::open());
  const std::array<uint32_t, 2> slots{shm::slot_of(first.number()), shm::slot_of(last.number())};
  const auto found_in = [&slots](const std::vector<uint32_t>& list) {
    return std::count_if(list.begin(), list.end(), [&](uint32_t slot) { return slot == slots[0] || slot == slots[1]; });
  };
  EXPECT_EQ(found_in(folder->processes()), 1);
  ASSERT_EQ(found_in(folder->list()), 2);
  EXPECT_EQ(process().node().find(slots[1]).get(), &process().node().self()) << "it does not meet itself";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ShmEnd own;
    bool good = own.open();
    Qp* const qp = good ? own.make_qp() : nullptr;
    good = good && own.connect(*qp, qp->number()) == 0 && own.write(*qp, 1) == 0 &&
           own.next().status == WcStatus::kSuccess && found_in({shm::slot_of(qp->number())}) == 0;
    own.close();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(found_in(folder->list()), 2);
  ASSERT_EQ(connect(first, last.number()), 0);
  ASSERT_EQ(connect(last, first.number()), 0);
  ASSERT_EQ(write(last, 1), 0);
  EXPECT_EQ(next().status, WcStatus::kSuccess);
}

TEST_F(ShmSlots, MemberOfAProcessThatIsListedByAFurtherSlot_WithoutLoopback_DoesNotHearItself) {
  close();
  const auto folder = std::move(*host::RuntimeDir::open());
  const auto first = folder->claim([](uint32_t) { return true; });  // that one is no process's further slot
  auto low = folder->claim([](uint32_t slot) { return slot > shm::kMinSlot; });
  ASSERT_TRUE(first && low);
  ASSERT_TRUE(open());
  folder->remove(low->slot);
  ASSERT_GT(process().slot(), low->slot);
  ASSERT_TRUE(process().node().take_slot([&](uint32_t slot) { return slot == low->slot; }));
  const auto listed = process().node().slots();
  ASSERT_EQ(std::count(listed.begin(), listed.end(), low->slot), 1);
  qps.push_back(std::move(*handle->create_qp(
      pd.get(), {.type = QpType::kUd, .send_cq = cq, .recv_cq = cq, .cap = {8, 8, 4, 4, 64}, .hears_itself = false})));
  auto& sender = static_cast<Qp&>(*qps.back());
  Qp* const other = make_qp(QpType::kUd);
  Gid group;
  group.raw[0] = 0xff;
  group.raw[1] = 0x02;
  group.raw[15] = 11;
  for (Qp* member : {&sender, other}) {
    ASSERT_EQ(connect(*member, 0), 0);
    ASSERT_EQ(receive(*member, member == &sender ? 7 : 8), 0);
    ASSERT_EQ(member->attach_multicast(group, 0), 0);
  }
  AddressVector to;
  to.is_global = true;
  to.sgid_index = 1;
  to.dgid = group;
  auto ah = std::move(*handle->create_ah(*pd, to));
  const Sge sge = span(0, 8);
  SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend};
  wr.ah = ah.get();
  wr.remote_qpn = 0xffffff;
  wr.remote_qkey = kQkey;
  ASSERT_EQ(sender.post_send(wr), 0);
  EXPECT_EQ(next().wr_id, 8u);
  EXPECT_TRUE(is_empty());
  for (Qp* member : {&sender, other}) EXPECT_EQ(member->detach_multicast(group, 0), 0);
}

TEST_F(ShmShared, ProcessThatDoesWithoutSharedMemoryIsNotReachedByIt) {
  start(be_there);
  uint32_t number = 0;
  ASSERT_TRUE(line.get(&number));
  AddressVector vector;
  auto& shm = end.shm();
  const auto found = end.peers().find(number, vector, std::chrono::milliseconds(10000));
  ASSERT_TRUE(found) << found.error().what();
  found->peer->tables().header->shares_memory = 0;
  EXPECT_EQ(end.peers().find(number, vector, std::chrono::milliseconds(10000)).error().code(), EHOSTUNREACH);
  EXPECT_FALSE(shm.reaches(vector, number));
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmShared, WithoutRoomForAnotherProcess_ItIsNotReachedAndRtrFails) {
  start(be_there);
  uint32_t number = 0;
  ASSERT_TRUE(line.get(&number));
  Qp* const qp = end.make_qp();
  ASSERT_EQ(end.to_init(*qp), 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Enough for the process itself, and as a part for peers not enough for one.
  const rlimit few{2 * host::Peer::kDescriptors - 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_FALSE(end.shm().reaches({}, number));
  EXPECT_EQ(end.to_rtr(*qp, number), EMFILE);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(end.to_rtr(*qp, number), EMFILE) << "it stays so, since the other process may have been told";
  EXPECT_EQ(end.process().node().find(shm::slot_of(number)), nullptr);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmStopped, ProcessThatIsStopped_IsStillReachedBySharedMemory) {
  uint32_t number = 0;
  ASSERT_NO_FATAL_FAILURE(start_and_stop(&number));
  ASSERT_EQ(end.process().node().find(shm::slot_of(number)), nullptr) << "they have met before";
  EXPECT_TRUE(end.shm().reaches({}, number));
  ASSERT_EQ(kill(child, SIGCONT), 0);
  EXPECT_NE(peer_of(end, number), nullptr);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

/// Counts how often a timer of 10 ms fires within one call: often in one that sleeps, while a thread that gets no
/// processor sees the next tick only.
class CallTicks {
 public:
  CallTicks() {
    struct sigaction action {};
    action.sa_handler = [](int) { ++ticks_; };
    sigaction(SIGALRM, &action, &before_);
    const itimerval every{{0, 10'000}, {0, 10'000}};
    setitimer(ITIMER_REAL, &every, nullptr);
  }
  ~CallTicks() {
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }
  template <class Call>
  auto run(const Call& call) {
    ticks_ = 0;
    const auto result = call();
    most_ = std::max(most_, ticks_.load());
    return result;
  }
  int most() const { return most_; }

 private:
  static inline std::atomic<int> ticks_{0};
  int most_ = 0;
  struct sigaction before_ {};
};

TEST_F(ShmStopped, RequestToAStoppedProcess_HoldsUpNeitherItsPosterNorWhoPolls) {
  uint32_t number = 0;
  ASSERT_NO_FATAL_FAILURE(start_and_stop(&number));
  Qp* qp = end.make_qp();
  constexpr Way kHalfASecond{.timeout = 17, .retry_cnt = 0};  // 0.54 s (IBTA 9.7.6.1.3)
  ASSERT_EQ(end.connect(*qp, number, kHalfASecond), 0);
  WorkCompletion wc;
  {
    CallTicks ticks;
    ASSERT_EQ(ticks.run([&] { return end.send(*qp, 1); }), 0);
    while (ticks.run([&] { return end.cq->poll(&wc, 1); }) == 0) {
    }
    EXPECT_LT(ticks.most(), 5) << "a call waited for the process";
  }
  EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
  ASSERT_EQ(kill(child, SIGCONT), 0);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmStopped, DatagramsToAStoppedProcess_HoldUpNobodyAndAreLostAfterAWhile) {
  uint32_t number = 0;
  ASSERT_NO_FATAL_FAILURE(start_and_stop(&number));
  shm::QpShared shared{};
  roce::test::RecordingHost context;
  context.identity().shared = &shared;
  host::DueEvent due;
  AddressVector group;
  group.is_global = true;
  group.dgid.raw[0] = 0xff;
  SendWr wr;
  wr.remote_qpn = number;
  for (const AddressVector& vector : {AddressVector{}, group}) {
    shm_transport::Datagram sender(end.peers(), context, due);
    const auto send = [&] { return sender.send({wr, &vector, nullptr, 0, 0, 0, WcStatus::kSuccess}); };
    CallTicks ticks;
    EXPECT_FALSE(ticks.run(send)) << "the process may answer";
    EXPECT_TRUE(soon([&] { return ticks.run(send).has_value(); }));
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(ticks.run(send)) << "it delays what is sent once";
    EXPECT_LT(ticks.most(), 5) << "a call waited for the process";
  }
  shm_transport::Datagram sender(end.peers(), context, due);
  EXPECT_EQ(sender.leads_to({}, number), DatagramSender::Reach::kNotYet);
  EXPECT_TRUE(soon([&] { return sender.leads_to({}, number) == DatagramSender::Reach::kNo; }));
  ASSERT_EQ(kill(child, SIGCONT), 0);
  EXPECT_TRUE(soon([&] { return sender.leads_to({}, number) == DatagramSender::Reach::kYes; }));
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmStopped, ServiceThread_LooksForAStoppedProcess_DoesNotWait) {
  uint32_t number = 0;
  ASSERT_NO_FATAL_FAILURE(start_and_stop(&number));
  host::Node& node = end.process().node();
  int error = 0;
  {
    CallTicks ticks;
    EXPECT_TRUE(ticks.run([&] {
      return node.loop().call(
          [&] { error = node.connect(shm::slot_of(number), std::chrono::milliseconds(2000)).error().code(); },
          progress::Deadline::never());
    }));
    EXPECT_LT(ticks.most(), 5);
  }
  EXPECT_EQ(error, ETIMEDOUT);
  ASSERT_EQ(kill(child, SIGCONT), 0);
  EXPECT_TRUE(soon([&] { return node.find(shm::slot_of(number)) != nullptr; })) << "it was asked";
  ASSERT_TRUE(line.go());
  expect_good_end();
}

/// An XRC target and an initiator of this process, connected to each other.
class ShmXrcStopped : public ShmStopped {
 protected:
  void connect_both() {
    domain = std::move(*end.handle->open_xrcd(-1, O_CREAT));
    target = std::move(*end.handle->create_qp(nullptr, {.type = QpType::kXrcRecv, .xrcd = domain.get()}));
    sender = std::move(
        *end.handle->create_qp(end.pd.get(), {.type = QpType::kXrcSend, .send_cq = end.cq, .cap = {8, 0, 4, 0, 64}}));
    using namespace qp_attr;
    QpAttr attr;
    attr.state = QpState::kInit;
    attr.access_flags = kEveryRight;
    for (QueuePair* qp : {target.get(), sender.get()})
      ASSERT_EQ(qp->modify(attr, kState | kPkeyIndex | kPort | kAccessFlags), 0);
    attr.state = QpState::kRtr;
    attr.av.is_global = true;
    attr.av.dgid = end.handle->query_gid(1, 1)->gid;
    attr.av.sgid_index = 1;
    attr.path_mtu = 5;
    attr.max_dest_rd_atomic = 4;
    for (QueuePair* qp : {target.get(), sender.get()}) {
      attr.dest_qp_num = qp == target.get() ? sender->number() : target->number();
      ASSERT_EQ(qp->modify(attr, kState | kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer), 0);
    }
    attr.state = QpState::kRts;
    attr.timeout = 17;  // 0.54 s
    attr.retry_cnt = 0;
    attr.max_rd_atomic = 4;
    ASSERT_EQ(sender->modify(attr, kState | kSqPsn | kTimeout | kRetryCnt | kRnrRetry | kMaxQpRdAtomic), 0);
  }
  void TearDown() override {
    sender.reset();
    target.reset();
    domain.reset();
    ShmStopped::TearDown();
  }

  std::unique_ptr<XrcDomain> domain;
  std::unique_ptr<QueuePair> target;
  std::unique_ptr<QueuePair> sender;
};

TEST_F(ShmXrcStopped, RequestForAQueueOfAStoppedProcess_IsTriedAgainAndHoldsUpNobody) {
  uint32_t number = 0;
  ASSERT_NO_FATAL_FAILURE(start_and_stop(&number));
  ASSERT_NO_FATAL_FAILURE(connect_both());
  for (const Opcode opcode : {Opcode::kSend, Opcode::kRdmaWrite, Opcode::kRdmaRead, Opcode::kFetchAdd}) {
    QpContextImpl context(static_cast<Qp&>(*target));
    CallTicks ticks;
    EXPECT_EQ(ticks.run([&] { return context.select(number); }), Selection::kLater);
    const Sge sge = end.span(0, 8);
    SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .flags = send_flag::kSignaled};
    wr.remote_srqn = number;
    wr.remote_addr = reinterpret_cast<uint64_t>(end.memory);
    wr.rkey = end.region->rkey();
    EXPECT_EQ(ticks.run([&] { return sender->post_send(wr); }), 0);
    EXPECT_LT(ticks.most(), 5) << "a call waited for the process";
    const WorkCompletion wc = end.next();
    EXPECT_EQ(wc.status, WcStatus::kRetryExcErr) << static_cast<int>(opcode);
    EXPECT_EQ(end.state_of(static_cast<Qp&>(*target)), QpState::kRtr) << "nothing was wrong with the request";
    sender.reset();
    target.reset();
    ASSERT_NO_FATAL_FAILURE(connect_both());
  }
  ASSERT_EQ(kill(child, SIGCONT), 0);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmStopped, ProcessThatIsStopped_IsNotGone) {
  uint32_t number = 0;
  ASSERT_NO_FATAL_FAILURE(start_and_stop(&number));
  Qp* qp = end.make_qp();
  roce::test::RecordingHost context;
  context.identity().shared = &end.shared(*qp);
  QpAttr attr;
  attr.dest_qp_num = number;
  const auto endpoint = std::move(*end.shm().connect(end.process().devices()[0], context, attr, false));
  const SendWr nothing{.opcode = Opcode::kSend};
  ASSERT_TRUE(endpoint->post({nothing, nullptr, nullptr, 0, 0, 1, WcStatus::kSuccess}).is_taken());
  constexpr int64_t kLong = 1'000'000'000;  // a process that died would count as gone
  endpoint->progress(base::now_ns() + kLong);
  endpoint->progress(base::now_ns() + kLong);
  EXPECT_TRUE(context.done.empty()) << "the request waits for it";
  ASSERT_EQ(kill(child, SIGCONT), 0);
  EXPECT_TRUE(soon([&] {
    endpoint->progress(base::now_ns());
    return end.process().node().find(shm::slot_of(number)) != nullptr;
  }));
  ASSERT_TRUE(line.go());
  expect_good_end();
}

/// A shared receive queue and the domain that it belongs to.
struct DomainAddress {
  uint32_t queue;
  uint64_t identity;
};

/// Two processes that open one number their domains alike.
std::unique_ptr<XrcDomain> open_private_domain(ShmEnd& end) {
  constexpr uint32_t kBefore = 1'000'000;
  while (end.process().next_handle() < kBefore) {
  }
  return std::move(*end.handle->open_xrcd(-1, O_CREAT));
}

bool have_a_queue_in_a_private_domain(ShmEnd& end, const ShmLine& line) {
  auto domain = open_private_domain(end);
  auto queue = std::move(
      *end.handle->create_srq(*end.pd, {.max_wr = 4, .type = SrqType::kXrc, .xrcd = domain.get(), .cq = end.cq}));
  const DomainAddress mine{static_cast<Srq&>(*queue).number(), static_cast<Xrcd&>(*domain).identity()};
  return line.give(mine) && line.wait();
}

TEST_F(ShmShared, QueueOfAPrivateXrcDomain_IsNotFoundThroughOneOfAnotherProcess) {  // manual ibv_open_xrcd, fd -1
  start(have_a_queue_in_a_private_domain);
  DomainAddress theirs{};
  ASSERT_TRUE(line.get(&theirs));
  ASSERT_NE(peer_of(end, theirs.queue), nullptr);
  host::Node& node = end.process().node();
  EXPECT_TRUE(find_domain_queue(node, theirs.queue, theirs.identity));
  auto domain = open_private_domain(end);
  EXPECT_FALSE(find_domain_queue(node, theirs.queue, static_cast<Xrcd&>(*domain).identity()));
  ASSERT_TRUE(line.go());
  expect_good_end();
}

}  // namespace
}  // namespace nupa::core
#endif
