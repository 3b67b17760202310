// SPDX-License-Identifier: Apache-2.0
/// Tests of processes with several slots.
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "../../support/sanitizers.h"
#include "core/seam/shared_target.h"
#include "host/runtime_dir.h"
#include "shm_fixture.h"
#include "shm_processes.h"

namespace nupa::core {
namespace {

/// Fills its first slot, and has a connection by each of two; answers what comes.
bool have_two_slots(ShmEnd& end, const ShmLine& line) {
  while (end.qps.size() <= shm::kSlotQp)
    if (end.make_qp() == nullptr) return false;
  for (const size_t at : {size_t{0}, size_t{shm::kSlotQp}}) {
    auto& qp = static_cast<Qp&>(*end.qps[at]);
    if (ShmAddress peer; !exchange_and_connect(end, line, qp, &peer) || end.receive(qp, 1) != 0) return false;
  }
  return line.go() && line.wait();
}

class ManySlots : public ShmProcesses, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    start(have_two_slots, GetParam());
    for (size_t i = 0; i < own.size(); ++i) {
      own[i] = end.make_qp();
      ASSERT_TRUE(exchange_and_connect(end, line, *own[i], &peers[i]));
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

TEST_P(ManySlots, Requests_ToQueuePairsOfBothSlots_Succeed) {
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

TEST_P(ManySlots, Kill_ProcessWithTwoSlots_BothAreFreed) {
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

TEST_F(ShmSlots, Fork_ProcessWithSeveralSlots_ChildLeavesThem) {
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

TEST_F(ShmSlots, Multicast_SenderListedByAFurtherSlotWithoutLoopback_DoesNotReceiveItsOwn) {
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
  const auto ah = make_ah(group);
  ASSERT_EQ(send_to(sender, ah.get(), 0xffffff, 1, 0), 0);
  EXPECT_EQ(next().wr_id, 8u);
  EXPECT_TRUE(is_empty());
  for (Qp* member : {&sender, other}) EXPECT_EQ(member->detach_multicast(group, 0), 0);
}

}  // namespace
}  // namespace nupa::core
