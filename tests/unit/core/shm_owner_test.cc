// SPDX-License-Identifier: Apache-2.0
/// Tests of requests to the owner of memory: which it serves, and which it refuses.
#include <sys/mman.h>

#include "../roce/engine_fixture.h"
#include "core/qp.h"
#include "core/seam/shared_target.h"
#include "shm_fixture.h"
#include "shm_processes.h"

namespace nupa::core {
namespace {

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
bool send_invalid_requests(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
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
  parent->signal_wakeup_fd();
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

TEST_F(ShmShared, ServiceThread_InvalidRequests_AreRefusedAndValidOnesServed) {
  start(send_invalid_requests);
  *reinterpret_cast<uint64_t*>(end.memory) = 40;
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  ASSERT_TRUE(line.wait());
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(end.memory), 50u);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

constexpr uint64_t kLongCopy = shm::kBounceBytes + 12345;

/// Connects to the parent, which then gives an address in its memory. Null: it did not.
host::PeerRef connect_to_parent(ShmEnd& end, const ShmLine& line, uint64_t* address) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  return exchange_and_connect(end, line, *qp, &peer) && line.get(address) ? peer_of(end, peer.qp_num) : nullptr;
}

/// Reads the parent's memory through its service thread, and writes each byte's complement back.
bool copy_long_array(ShmEnd& end, const ShmLine& line) {
  uint64_t address = 0;
  const host::PeerRef parent = connect_to_parent(end, line, &address);
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

TEST_F(ShmShared, Copy_LongerThanABounceBuffer_IsComplete) {
  start(copy_long_array);
  std::vector<std::byte> bytes(kLongCopy);
  for (size_t i = 0; i < kLongCopy; ++i) bytes[i] = static_cast<std::byte>(i / 1000);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  ASSERT_TRUE(line.give(reinterpret_cast<uint64_t>(bytes.data())));
  expect_good_end();
  for (size_t i = 0; i < kLongCopy; ++i) ASSERT_EQ(bytes[i], ~static_cast<std::byte>(i / 1000)) << i;
}

/// Asks for atomics on a word of the parent's that may not be written, and once more when it may.
bool change_a_read_only_word(ShmEnd& end, const ShmLine& line) {
  uint64_t word = 0;
  const host::PeerRef parent = connect_to_parent(end, line, &word);
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

TEST_F(ShmShared, Atomic_OnReadOnlyMemory_FailsWithoutAFault) {
  start(change_a_read_only_word);
  void* const page = mmap(nullptr, shm::kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* const word = static_cast<uint64_t*>(page);
  *word = 5;
  ASSERT_EQ(mprotect(page, shm::kPage, PROT_READ), 0);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  ASSERT_TRUE(line.give(reinterpret_cast<uint64_t>(word)));
  ASSERT_TRUE(line.wait());
  EXPECT_EQ(*word, 5u);
  ASSERT_EQ(mprotect(page, shm::kPage, PROT_READ | PROT_WRITE), 0);
  ASSERT_TRUE(line.go());
  expect_good_end();
  EXPECT_EQ(*word, 6u);
  munmap(page, shm::kPage);
}

}  // namespace
}  // namespace nupa::core
