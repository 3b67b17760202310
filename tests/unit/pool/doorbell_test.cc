// SPDX-License-Identifier: Apache-2.0
/// Doorbells between processes that map one pool file: who rings whom, and when.
#include <cerrno>
#include <memory>
#include <optional>

#include "fixture.h"
#include "progress/deadline.h"
#include "progress/descriptors.h"
#include "transport/pool/medium/open_doorbell.h"
#include "transport/pool/medium/lines.h"
#include "transport/pool/medium/pool_memory.h"
#include "transport/pool/medium/medium_policy.h"

namespace nupa::pool {
namespace {

constexpr int64_t kRingLimitNs = 10'000'000'000;  // many times what a ring takes

/// A ring comes by another thread of the process, so it is awaited.
bool is_rung(Pool& pool) {
  return progress::wait_readable(pool.doorbell(), progress::Deadline::in_ns(kRingLimitNs)).has_value();
}
/// Nothing that was rung before this call is on its way any more: the ring that this function makes came last.
bool is_quiet_but_for(Pool& pool, const std::function<void()>& ring) {
  if (progress::is_readable(pool.doorbell())) return false;
  ring();
  const bool came = is_rung(pool);
  pool.take_rings();
  return came && !progress::is_readable(pool.doorbell());
}

class PoolDoorbells : public ::testing::Test {
 protected:
  PoolFile file_;
  TestClock clock_;
  std::optional<Process> one_, other_;
  std::unique_ptr<Channel> to_other_, to_one_;

  Spec spec(uint16_t host, DoorbellChoice doorbell = DoorbellChoice::kAuto) const {
    Spec spec = file_.spec(host);
    spec.doorbell = doorbell;
    return spec;
  }
  void connect(DoorbellChoice of_one = DoorbellChoice::kAuto, DoorbellChoice of_other = DoorbellChoice::kAuto) {
    one_.emplace(spec(0, of_one), clock_);
    other_.emplace(spec(1, of_other), clock_);
    one_->join(7, 1);
    other_->join(8, 2);
    to_other_ = std::move(*(*one_)->open_channel(other_->id()));
    to_one_ = std::move(*(*other_)->open_channel(one_->id()));
    ASSERT_TRUE(to_other_->is_open());
    ASSERT_TRUE(to_one_->is_open());
  }
  void TearDown() override {
    if (one_) (*one_)->close_channel(std::move(to_other_));
    if (other_) (*other_)->close_channel(std::move(to_one_));
  }
};

TEST_F(PoolDoorbells, SleeperThatAnnouncedIt_IsRungByARecordAndByABell) {
  connect();
  Pool& other = **other_;
  ASSERT_TRUE(to_other_->has_doorbells());
  ASSERT_TRUE(to_one_->has_doorbells());
  EXPECT_FALSE(progress::is_readable(other.doorbell()));
  other.announce_sleep(true);
  to_other_->publish({});
  to_other_->wake();
  EXPECT_TRUE(is_rung(other));
  other.take_rings();
  EXPECT_FALSE(progress::is_readable(other.doorbell()));
  to_other_->ring_bell();
  EXPECT_TRUE(is_rung(other)) << "a bell wakes, too";
  EXPECT_FALSE(progress::is_readable((*one_)->doorbell()));
}

TEST_F(PoolDoorbells, ProcessThatIsAwake_IsNotRung) {
  connect();
  Pool& other = **other_;
  to_other_->wake();
  other.announce_sleep(true);
  EXPECT_TRUE(is_quiet_but_for(other, [&] { to_other_->wake(); })) << "it was not asleep at the first call";
  other.announce_sleep(false);
  to_other_->wake();
  other.announce_sleep(true);
  EXPECT_TRUE(is_quiet_but_for(other, [&] { to_other_->wake(); })) << "it was awake again";
}

TEST_F(PoolDoorbells, OneOfTwoSleepersThatWakesUp_LeavesTheOtherOneAsleep) {
  connect();
  Pool& other = **other_;
  other.announce_sleep(true);
  other.announce_sleep(true);
  other.announce_sleep(false);
  to_other_->wake();
  EXPECT_TRUE(is_rung(other));
}

TEST_F(PoolDoorbells, TurnedOffAtOneEnd_NeitherRingsTheOther) {
  connect(DoorbellChoice::kNone, DoorbellChoice::kAuto);
  EXPECT_EQ(-1, (*one_)->doorbell());
  EXPECT_GE((*other_)->doorbell(), 0);
  EXPECT_FALSE(to_other_->has_doorbells());
  EXPECT_FALSE(to_one_->has_doorbells());
  (*other_)->announce_sleep(true);
  to_other_->wake();
  to_other_->ring_bell();
  EXPECT_FALSE(progress::is_readable((*other_)->doorbell()));
}

TEST_F(PoolDoorbells, RungByAll_OnlyWhileEachLivingProcessRings) {
  one_.emplace(spec(0), clock_);
  one_->join(7, 1);
  EXPECT_TRUE((*one_)->is_rung_by_all()) << "there is nobody else";
  other_.emplace(spec(1), clock_);
  other_->join(8, 2);
  EXPECT_TRUE((*one_)->is_rung_by_all());
  Process third(spec(1, DoorbellChoice::kNone), clock_);
  third.join(9, 3);
  EXPECT_FALSE((*one_)->is_rung_by_all());
  EXPECT_FALSE(third->is_rung_by_all());
  third->leave();
  EXPECT_TRUE((*one_)->is_rung_by_all()) << "it has left";
}

TEST_F(PoolDoorbells, SilentProcessWithoutADoorbell_DoesNotCount) {
  one_.emplace(spec(0), clock_);
  one_->join(7, 1);
  other_.emplace(spec(1, DoorbellChoice::kNone), clock_);
  other_->join(8, 2);
  pass(clock_, 500'000'000, *one_, *other_);
  EXPECT_FALSE((*one_)->is_rung_by_all());
  pass(clock_, 2'500'000'000, *one_);
  EXPECT_TRUE((*one_)->is_rung_by_all());
  pass(clock_, 200'000'000, *one_, *other_);
  EXPECT_FALSE((*one_)->is_rung_by_all()) << "it was stopped, and goes on";
}

TEST_F(PoolDoorbells, LaterProcessWithoutADoorbellInTheSameRecord_IsNotTakenForItsPredecessor) {
  one_.emplace(spec(0), clock_);
  one_->join(7, 1);
  other_.emplace(spec(1), clock_);
  const ProcessId before = other_->join(8, 2);
  EXPECT_TRUE((*one_)->is_rung_by_all());
  other_->end();
  Process later(spec(1, DoorbellChoice::kNone), clock_);
  const ProcessId after = later.join(8, 2);
  ASSERT_EQ(before.record, after.record);
  EXPECT_FALSE((*one_)->is_rung_by_all());
  // A process of an earlier version does not know the line, and leaves what its predecessor wrote.
  const auto memory = PoolMemory::open(spec(1));
  ASSERT_TRUE(memory);
  const auto geometry = read_geometry(**memory);
  ASSERT_TRUE(geometry);
  Line* const line = (*memory)->lines() + geometry->record(1, before.record) / kLineBytes + kDoorbellLine;
  DoorbellLine left;
  left.instance = before.instance;
  left.kind = DoorbellKind::kFutex;
  Coherent policy;
  put_line(policy, line, left);
  EXPECT_FALSE((*one_)->is_rung_by_all());
  other_.reset();
}

/// The error of opening the doorbell of a pool, or its name.
std::string doorbell_of(const Spec& spec) {
  const auto memory = PoolMemory::open(spec);
  EXPECT_TRUE(memory) << memory.error().what();
  const auto doorbell = open_doorbell(**memory);
  if (doorbell) return name_of((*doorbell)->line().kind);
  EXPECT_EQ(ENOTSUP, doorbell.error().code());
  return doorbell.error().what();
}

TEST_F(PoolDoorbells, Open_EachKindOfFile_SaysWhyThereIsNone) {
  EXPECT_EQ(doorbell_of(spec(0)), "futex");
  EXPECT_EQ(doorbell_of(spec(0, DoorbellChoice::kNone)), "doorbell=none is set");
  EXPECT_EQ(doorbell_of(file_.spec(0, Coherence::kNone)),
            "coherence=none keeps the hosts apart, and a futex would join them");
}

TEST_F(PoolDoorbells, Reaches_OnlyProcessesOfTheSameMachineAndFile) {
  const auto memory = PoolMemory::open(spec(0));
  ASSERT_TRUE(memory);
  const auto doorbell = open_doorbell(**memory);
  ASSERT_TRUE(doorbell);
  DoorbellLine peer;
  HostLine own, theirs;
  EXPECT_FALSE((*doorbell)->reaches(peer, own, theirs)) << "it has none";
  peer.kind = static_cast<DoorbellKind>(7);
  EXPECT_FALSE((*doorbell)->reaches(peer, own, theirs)) << "another kind";
  peer.kind = DoorbellKind::kFutex;
  EXPECT_TRUE((*doorbell)->reaches(peer, own, theirs));
  theirs.boot_id[3] = 1;
  EXPECT_FALSE((*doorbell)->reaches(peer, own, theirs)) << "another machine";
  theirs = {};
  theirs.file_inode = 1;
  EXPECT_FALSE((*doorbell)->reaches(peer, own, theirs)) << "another file";
  theirs = {};
  theirs.file_device = 1;
  EXPECT_FALSE((*doorbell)->reaches(peer, own, theirs)) << "a file elsewhere";
}

}  // namespace
}  // namespace nupa::pool
