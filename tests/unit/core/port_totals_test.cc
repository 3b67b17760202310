// SPDX-License-Identifier: Apache-2.0
/// The counts of a port over the processes that had a slot.
#include <gtest/gtest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "core/port_totals.h"
#include "shm_fixture.h"

namespace nupa::core {
namespace {

using shm::Counting;
using shm::PortCount;
using shm::PortSums;

/// The tables of a process with some queue pairs.
struct Queues {
  std::unique_ptr<shm::SegmentHeader> header = std::make_unique<shm::SegmentHeader>();
  std::unique_ptr<shm::QpShared[]> qp = std::make_unique<shm::QpShared[]>(4);
  std::unique_ptr<shm::StatisticsShared[]> blocks = std::make_unique<shm::StatisticsShared[]>(4);
  shm::QpBanks banks;

  Queues() {
    header->qp_high_water.store(4);
    shm::Tables tables;
    tables.header = header.get();
    tables.qp = qp.get();
    tables.statistics = blocks.get();
    banks.open(nullptr, tables, 1);
  }
  /// A queue pair that has sent some packets.
  void count(uint32_t index, uint64_t packets, uint32_t device = 0) {
    qp[index].in_use.store(1);
    qp[index].device.store(device);
    qp[index].counting.store(Counting::kByTransport);
    blocks[index].port[PortCount::kXmitPackets].store(packets);
  }
};

class PortTotalsTest : public ::testing::Test {
 protected:
  PortTotalsTest() {
    char name[] = "/tmp/nupa-totals-test-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    setenv("NUPA_RUNTIME_DIR", name, 1);
  }
  ~PortTotalsTest() override {
    unsetenv("NUPA_RUNTIME_DIR");
    std::filesystem::remove_all(folder_);
  }
  std::unique_ptr<PortTotals> open(uint32_t slot) {
    auto totals = std::make_unique<PortTotals>();
    const auto opened = totals->open(folder_, slot);
    EXPECT_TRUE(opened) << opened.error().what();
    return totals;
  }
  std::vector<PortSums> read() {
    const auto directory = host::RuntimeDir::open();
    EXPECT_TRUE(directory);
    return read_port_totals(**directory);
  }
  uint64_t packets(uint32_t device = 0) {
    std::vector<PortSums> sums = read();
    return device < sums.size() ? at(sums[device], PortCount::kXmitPackets) : 0;
  }
  std::string path() const { return folder_ + "/" + std::string(runtime::Directory::kCountersFile); }

  std::string folder_;
  Queues queues_;
};

TEST_F(PortTotalsTest, NothingCounted_IsEmpty) { EXPECT_TRUE(read().empty()); }

TEST_F(PortTotalsTest, QueuePairs_CountForTheirDevice) {
  const auto totals = open(7);
  queues_.count(0, 10);
  queues_.count(1, 5);
  queues_.count(3, 2, 1);
  totals->publish(queues_.banks, false);
  EXPECT_EQ(packets(), 15u);
  EXPECT_EQ(packets(1), 2u);
  EXPECT_EQ(packets(2), 0u);
}

TEST_F(PortTotalsTest, QueuePairOutOfUse_DoesNotCount) {
  const auto totals = open(7);
  queues_.count(0, 10);
  queues_.count(1, 5);
  queues_.qp[1].in_use.store(0);
  totals->publish(queues_.banks, false);
  EXPECT_EQ(packets(), 10u);
}

TEST_F(PortTotalsTest, RetiredQueuePair_CountsOnceAndItsPlaceBeginsAgain) {
  const auto totals = open(7);
  queues_.count(0, 10);
  queues_.qp[0].counters.errors.store(3);
  queues_.qp[0].in_use.store(0);
  totals->retire(queues_.qp[0], queues_.blocks[0]);
  totals->publish(queues_.banks, false);
  EXPECT_EQ(packets(), 10u);
  EXPECT_EQ(at(read()[0], PortCount::kRequestErrors), 3u);
  EXPECT_EQ(queues_.blocks[0].port[PortCount::kXmitPackets], 0u);
  queues_.count(0, 4);
  queues_.qp[0].counters.errors.store(0);
  totals->publish(queues_.banks, false);
  EXPECT_EQ(packets(), 14u);
}

TEST_F(PortTotalsTest, NeverConnectedQueuePair_IsNotTouched) {
  const auto totals = open(7);
  queues_.count(0, 10);
  queues_.qp[0].counting.store(Counting::kNone);
  totals->publish(queues_.banks, false);
  totals->retire(queues_.qp[0], queues_.blocks[0]);
  EXPECT_EQ(packets(), 0u);
  EXPECT_EQ(queues_.blocks[0].port[PortCount::kXmitPackets], 10u);
}

TEST_F(PortTotalsTest, CountsOfTheDeviceAlone) {
  const auto totals = open(7);
  totals->count(1, PortCount::kRetriesExceeded);
  totals->count(1, PortCount::kRetriesExceeded);
  totals->publish(queues_.banks, false);
  EXPECT_EQ(at(read()[1], PortCount::kRetriesExceeded), 2u);
  EXPECT_EQ(at(read()[0], PortCount::kRetriesExceeded), 0u);
}

TEST_F(PortTotalsTest, NextProcessOfTheSlot_GoesOn) {
  queues_.count(0, 10);
  open(7)->publish(queues_.banks, false);
  const auto next = open(7);
  EXPECT_EQ(packets(), 10u);
  next->publish(queues_.banks, false);
  EXPECT_EQ(packets(), 20u);
  next->publish(queues_.banks, false);
  EXPECT_EQ(packets(), 20u) << "what was there when it began counts once";
}

TEST_F(PortTotalsTest, Slots_AreAddedUp_TheFirstAndTheLastToo) {
  queues_.count(0, 1);
  for (const uint32_t slot : {shm::kMinSlot, 3u, shm::kMaxSlot}) open(slot)->publish(queues_.banks, false);
  EXPECT_EQ(packets(), 3u);
}

TEST_F(PortTotalsTest, Sum_ThatFallsForAMoment_IsNotShown) {
  const auto totals = open(7);
  queues_.count(0, 10);
  totals->publish(queues_.banks, false);
  queues_.qp[0].in_use.store(0);
  totals->publish(queues_.banks, false);
  EXPECT_EQ(packets(), 10u);
}

TEST_F(PortTotalsTest, AtExit_TheSameIsWritten) {
  const auto totals = open(7);
  queues_.count(2, 10);
  totals->publish(queues_.banks, true);
  EXPECT_EQ(packets(), 10u);
}

TEST_F(PortTotalsTest, WithoutOpen_NothingIsPublished) {
  PortTotals totals;
  queues_.count(0, 10);
  totals.publish(queues_.banks, false);
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(PortTotalsTest, FileOfAnotherVersion_IsLeftAlone) {
  std::ofstream(path()) << "something that is no magic number";
  PortTotals totals;
  const auto opened = totals.open(folder_, 7);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), EPROTO) << opened.error().what();
  queues_.count(0, 10);
  totals.publish(queues_.banks, false);
  EXPECT_TRUE(read().empty());
}

TEST_F(PortTotalsTest, FileSizeLimit_IsAnErrorAndNoSignal) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  PortTotals totals;
  const auto opened = totals.open(folder_, 7);
  setrlimit(RLIMIT_FSIZE, &before);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), EFBIG) << opened.error().what();
}

TEST_F(PortTotalsTest, SymbolicLink_IsNotFollowed) {
  std::filesystem::create_symlink("/tmp/elsewhere", path());
  PortTotals totals;
  ASSERT_FALSE(totals.open(folder_, 7));
}

/// The counts of a queue pair over shared memory, for which the core counts.
class LoopedBack : public ::testing::Test {
 protected:
  LoopedBack() {
    qp_.counting.store(Counting::kByMessages);
    qp_.counters.messages.store(12);
    qp_.counters.bytes.store(1200);
    qp_.counters.counted_messages.store(2);
    qp_.counters.counted_bytes.store(200);
    qp_.counters.rnr.store(3);
    block_.port[PortCount::kXmitPackets].store(100);
  }
  uint64_t sum(PortCount count) {
    PortSums sums{};
    add_counts(qp_, block_, &sums);
    return at(sums, count);
  }
  shm::QpShared qp_{};
  shm::StatisticsShared block_{};
};

TEST_F(LoopedBack, Messages_AreSentAndReceived) {
  EXPECT_EQ(sum(PortCount::kXmitPackets), 110u);
  EXPECT_EQ(sum(PortCount::kRcvPackets), 10u);
  EXPECT_EQ(sum(PortCount::kXmitBytes), 1000u);
  EXPECT_EQ(sum(PortCount::kRcvBytes), 1000u);
  EXPECT_EQ(sum(PortCount::kRnrNaks), 3u);
  EXPECT_EQ(sum(PortCount::kOutOfBuffer), 3u) << "the receiver is on the same port";
}

TEST_F(LoopedBack, OnceItIsOver_TheBlockHasAll) {
  qp_.counting.store(Counting::kByTransport);
  EXPECT_EQ(sum(PortCount::kXmitPackets), 100u);
  EXPECT_EQ(sum(PortCount::kXmitBytes), 0u);
  EXPECT_EQ(sum(PortCount::kRnrNaks), 3u);
  EXPECT_EQ(sum(PortCount::kOutOfBuffer), 0u) << "its transport counts these";
}

TEST_F(LoopedBack, MoreCountedThanSent_IsNothing) {
  qp_.counters.counted_messages.store(13);
  EXPECT_EQ(sum(PortCount::kRcvPackets), 0u) << "another thread moves them at this moment";
}

/// A process with queue pairs over shared memory.
class ShmPortTotals : public ShmTest {
 protected:
  void SetUp() override {
    ShmTest::SetUp();
    before_ = read();
  }
  /// What was counted since the beginning of the test.
  PortSums totals() {
    PortSums sums = read();
    for (size_t i = 0; i < sums.size(); ++i) sums[i] -= before_[i];
    return sums;
  }

 private:
  PortSums read() {
    std::vector<PortSums> sums = read_port_totals(process().node().runtime_dir());
    return sums.empty() ? PortSums{} : sums[0];
  }

  PortSums before_{};
};

TEST_F(ShmPortTotals, Messages_CountThroughResetAndTheEnd) {
  make_pair();
  ASSERT_EQ(write(*a, 1), 0);
  ASSERT_EQ(next().status, WcStatus::kSuccess);
  PortSums seen = totals();
  EXPECT_EQ(at(seen, PortCount::kXmitPackets), 1u);
  EXPECT_EQ(at(seen, PortCount::kRcvBytes), 8u);
  EXPECT_EQ(at(seen, PortCount::kRequestErrors), 0u);
  // A key that there is not.
  ASSERT_EQ(write(*a, 2, 4096, 0xdead00), 0);
  ASSERT_EQ(next().status, WcStatus::kRemAccessErr);
  ASSERT_EQ(write(*a, 3), 0);
  ASSERT_EQ(next().status, WcStatus::kWrFlushErr);
  seen = totals();
  EXPECT_EQ(at(seen, PortCount::kXmitPackets), 1u);
  EXPECT_EQ(at(seen, PortCount::kRequestErrors), 1u);
  EXPECT_EQ(at(seen, PortCount::kRemoteAccessErrors), 1u);
  EXPECT_EQ(at(seen, PortCount::kFlushedRequests), 1u);
  // A sum that has fallen would not be shown, so more is sent after each end.
  for (Qp* each : {a, b}) ASSERT_EQ(move(*each, QpState::kReset), 0);
  ASSERT_EQ(connect(*a, b->number()), 0);
  ASSERT_EQ(connect(*b, a->number()), 0);
  ASSERT_EQ(write(*a, 4), 0);
  ASSERT_EQ(next().status, WcStatus::kSuccess);
  seen = totals();
  EXPECT_EQ(at(seen, PortCount::kXmitPackets), 2u);
  qps.clear();
  make_pair();
  ASSERT_EQ(write(*a, 5), 0);
  ASSERT_EQ(next().status, WcStatus::kSuccess);
  seen = totals();
  EXPECT_EQ(at(seen, PortCount::kXmitPackets), 3u);
  EXPECT_EQ(at(seen, PortCount::kRequestErrors), 1u);
}

TEST_F(ShmPortTotals, Datagrams_AreCountedByTheirSender) {
  make_pair(QpType::kUd);
  const auto address = make_ah(own_gid());
  ASSERT_EQ(receive(*b, 1), 0);
  ASSERT_EQ(send_to(*a, address.get(), b->number()), 0);
  ASSERT_EQ(next().status, WcStatus::kSuccess);
  ASSERT_EQ(next().status, WcStatus::kSuccess);
  PortSums seen = totals();
  EXPECT_EQ(at(seen, PortCount::kXmitPackets), 1u);
  EXPECT_EQ(at(seen, PortCount::kRcvPackets), 1u);
  EXPECT_EQ(at(seen, PortCount::kRcvBytes), 8u);
  EXPECT_EQ(at(seen, PortCount::kMulticastXmit), 0u);
  Gid group;
  group.raw[0] = 0xff;
  group.raw[15] = 7;
  ASSERT_EQ(b->attach_multicast(group, 0), 0);
  const auto members = make_ah(group);
  ASSERT_EQ(receive(*b, 2), 0);
  ASSERT_EQ(send_to(*a, members.get(), 0xffffff), 0);
  ASSERT_EQ(next().status, WcStatus::kSuccess);
  ASSERT_EQ(next().status, WcStatus::kSuccess);
  seen = totals();
  EXPECT_EQ(at(seen, PortCount::kMulticastXmit), 1u);
  EXPECT_EQ(at(seen, PortCount::kMulticastRcv), 1u);
  EXPECT_EQ(b->detach_multicast(group, 0), 0);
}

}  // namespace
}  // namespace nupa::core
