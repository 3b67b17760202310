// SPDX-License-Identifier: Apache-2.0
/// Tests of the death of a process of this host: its connections fail, and nothing else does.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#include <array>
#include <cinttypes>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/seam/shared_target.h"
#include "shm_fixture.h"
#include "shm_processes.h"

namespace nupa::core {
namespace {

TEST_F(ShmDeath, Kill_Peer_FailsItsConnectionsAndNoOther) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* own = end.make_qp();
  ASSERT_EQ(end.connect(*own, own->number()), 0);
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
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

TEST_F(ShmDeath, Kill_PeerOfAQueuePairInRtr_StaysInRtrUntilItSends) {
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

TEST_F(ShmDeath, Kill_PeerOfADrainedQueue_RequestFailsAfterResume) {  // IBTA 10.3.1.5
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
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
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
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

TEST_P(PeerDeath, NextRequest_PeerDied_FailsAndOthersAreFlushed) {
  start(connect_and_wait, GetParam());
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
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

TEST_P(PeerDeath, Request_PeerDiedAndTimeoutIsLong_FailsSoon) {
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
  EXPECT_EQ(end.next().status, WcStatus::kRetryExcErr) << "the host knows that the process has exited";
}

TEST_P(PeerDeath, UnreliableConnection_PeerDied_RequestsSucceed) {  // IBTA 9.8.2: no request is answered
  start(connect_unreliably_and_wait, GetParam());
  ShmAddress peer;
  Qp* qp = end.make_qp(QpType::kUc);
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
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

TEST_P(PeerDeath, Datagram_PeerDied_Succeeds) {  // IBTA 9.8.3.2.2
  start(receive_datagrams, GetParam());
  uint32_t number = 0;
  ASSERT_TRUE(line.get(&number));
  Qp* qp = end.make_qp(QpType::kUd);
  ASSERT_EQ(end.connect(*qp, 0), 0);
  const auto ah = end.make_ah(end.own_gid());
  const auto send = [&](uint64_t id) {
    EXPECT_EQ(end.send_to(*qp, ah.get(), number, id), 0);
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

/// Leaves this process so many bytes of address space, until its end.
class AddressLimit {
 public:
  explicit AddressLimit(uint64_t left) {
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before_), 0);
    rlimit tight = before_;
    tight.rlim_cur = address_bytes() + left;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  }
  ~AddressLimit() { EXPECT_EQ(setrlimit(RLIMIT_AS, &before_), 0); }
  AddressLimit(const AddressLimit&) = delete;
  AddressLimit& operator=(const AddressLimit&) = delete;
  /// Less than a window of another process's file.
  static constexpr uint64_t kLessThanAWindow = 4 << 20;

 private:
  rlimit before_{};
};

TEST_F(ShmShared, Connect_NoAddressSpaceForThePeersTables_FailsWithEnomem) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  const ShmAddress mine{qp->number(), 0, 0, 0};
  ASSERT_TRUE(line.get(&peer));  // the child does not know of this process yet
  ASSERT_EQ(end.to_init(*qp), 0);
  std::optional<AddressLimit> limit(8 << 20);
  EXPECT_EQ(end.to_rtr(*qp, peer.qp_num), ENOMEM);
  EXPECT_EQ(end.state_of(*qp), QpState::kInit);
  limit.reset();
  EXPECT_EQ(end.to_rtr(*qp, peer.qp_num), 0) << "it connects when there is room";
  EXPECT_EQ(end.to_rts(*qp), 0);
  ASSERT_TRUE(line.give(mine) && line.go() && line.wait());
  ASSERT_EQ(end.write(*qp, 1, peer.addr, peer.rkey), 0);
  EXPECT_EQ(end.next().status, WcStatus::kSuccess);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmShared, Send_NoAddressSpaceForThePeersQueues_FailsTheRequest) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  std::optional<AddressLimit> limit(AddressLimit::kLessThanAWindow);
  EXPECT_EQ(end.send(*qp, 1), 0);
  const WorkCompletion wc = end.next();
  limit.reset();
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.status, WcStatus::kLocQpOpErr);
  EXPECT_EQ(end.state_of(*qp), QpState::kErr);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmShared, MapRemote_NoAddressSpaceForThePeersQueues_FailsWithEnomem) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  std::optional<AddressLimit> limit(AddressLimit::kLessThanAWindow);
  const auto mapped = qp->map_remote(peer.rkey, peer.addr, 1, access::kRemoteWrite);
  limit.reset();
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.error().code(), ENOMEM);
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

/// Many processes that connect one after the other.
class ShmManyPeers : public ::testing::Test {
 protected:
  static constexpr int kMembers = 25, kFew = 5;
  struct Member {
    pid_t child = 0;
    ShmLine line;
  };
  /// Before this one opens the device. Each begins at the first byte.
  void SetUp() override {
    for (Member& member : members) {
      int down[2], up[2];
      ASSERT_EQ(pipe2(down, O_CLOEXEC), 0);
      ASSERT_EQ(pipe2(up, O_CLOEXEC), 0);
      member.child = fork();
      ASSERT_GE(member.child, 0);
      if (member.child == 0) run_member({down[0], up[1]});
      ::close(down[0]);
      ::close(up[1]);
      member.line = {up[0], down[1]};
    }
    ASSERT_TRUE(end.open());
  }
  [[noreturn]] static void run_member(const ShmLine& line) {
    alarm(120);
    ShmEnd own;
    const bool good = line.wait() && own.open() && connect_and_wait(own, line);
    own.close();
    _exit(good ? 0 : 1);
  }
  /// Connects to the member, writes to it, lets the queue pair go and then the process.
  void connect_and_end(Member& member, bool killed) {
    ShmAddress peer;
    ASSERT_TRUE(member.line.go());
    Qp* qp = end.make_qp();
    ASSERT_TRUE(exchange_and_connect(end, member.line, *qp, &peer));
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
    for (Member& member : members) {
      ::close(member.line.in);
      ::close(member.line.out);
      if (member.child <= 0) continue;
      kill(member.child, SIGKILL);
      waitpid(member.child, nullptr, 0);
    }
    end.close();
  }

  ShmEnd end;
  std::array<Member, kMembers> members;
};

TEST_F(ShmManyPeers, ManyPeers_HaveExited_AreUnmappedAndForgotten) {
  uint64_t after_few = 0;
  for (int i = 0; i < kMembers; ++i) {
    ASSERT_NO_FATAL_FAILURE(connect_and_end(members[static_cast<size_t>(i)], i % 2 == 0)) << i;
    if (i + 1 == kFew) after_few = address_bytes();
  }
  // Each has tables of 65 MB. Those of the last one may be unmapped a moment after nobody holds it any more.
  EXPECT_TRUE(soon([&] { return address_bytes() < after_few + (64 << 20); }));
  EXPECT_LE(end.process().memories().known(), 2u) << "the last one, and this process itself";
}

INSTANTIATE_TEST_SUITE_P(Each, PeerDeath, ::testing::Values("shm", "roce"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace nupa::core
