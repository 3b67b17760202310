// SPDX-License-Identifier: Apache-2.0
/// The ring between a captured process and the command: order, room, ends, producers that die, forged fields.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "ring_memory.h"

namespace nupa::capture {
namespace {

using test::RingMemory;

class CaptureRing : public ::testing::Test {
 protected:
  /// Writes a record of `bytes` bytes that all have the value `fill`. False: there is no room.
  bool put(uint32_t bytes, uint8_t fill) { return put(memory_.ring(), bytes, fill); }
  static bool put(const Ring& ring, uint32_t bytes, uint8_t fill) {
    uint64_t position = 0;
    RecordHeader* const record = ring.take(bytes, &position);
    if (record == nullptr) return false;
    complete(*record, bytes, fill);
    Ring::commit(*record, position);
    return true;
  }
  static void complete(RecordHeader& record, uint32_t bytes, uint8_t fill) {
    record.captured = record.length = bytes;
    record.direction = Direction::kOutbound;
    std::memset(static_cast<void*>(&record + 1), fill, bytes);
  }
  Ring::Next next() {
    Record record;
    return memory_.ring().next(&record);
  }
  RecordHeader& oldest() {
    return *reinterpret_cast<RecordHeader*>(memory_.records() +
                                            memory_.header().tail.load() % memory_.ring().capacity());
  }

  RingMemory memory_;
};

TEST_F(CaptureRing, Records_AreReadInOrderWithTheirBytes) {
  for (uint8_t i = 1; i <= 5; ++i) ASSERT_TRUE(put(i * 50u, i));
  const auto all = memory_.drain();
  ASSERT_EQ(5u, all.size());
  for (uint8_t i = 1; i <= 5; ++i) EXPECT_EQ(std::vector<std::byte>(i * 50u, std::byte{i}), all[i - 1u].frame);
  EXPECT_EQ(Ring::Next::kNone, next());
  EXPECT_FALSE(memory_.ring().has_unfinished());
}

TEST_F(CaptureRing, RecordThatIsNotCommitted_IsNotReadNorThoseBehindIt) {
  uint64_t position = 0;
  RecordHeader* const first = memory_.ring().take(10, &position);
  ASSERT_NE(nullptr, first);
  ASSERT_TRUE(put(10, 2));
  EXPECT_EQ(Ring::Next::kNone, next());
  EXPECT_TRUE(memory_.ring().has_unfinished());
  complete(*first, 10, 1);
  Ring::commit(*first, position);
  const auto all = memory_.drain();
  ASSERT_EQ(2u, all.size());
  EXPECT_EQ(std::byte{1}, all[0].frame[0]);
}

TEST_F(CaptureRing, FullRing_HasNoRoomUntilARecordIsDropped) {
  const uint32_t quarter = memory_.ring().capacity() / 4 - sizeof(RecordHeader);
  for (uint8_t i = 0; i < 4; ++i) ASSERT_TRUE(put(quarter, i));
  EXPECT_FALSE(put(1, 9));
  Record record;
  ASSERT_EQ(Ring::Next::kRecord, memory_.ring().next(&record));
  memory_.ring().drop(record);
  EXPECT_TRUE(put(quarter, 4));
  EXPECT_FALSE(put(1, 9));
  const auto all = memory_.drain();
  ASSERT_EQ(4u, all.size());
  for (uint8_t i = 0; i < 4; ++i) EXPECT_EQ(std::vector<std::byte>(quarter, std::byte(i + 1)), all[i].frame);
}

TEST_F(CaptureRing, RecordsOfAllLengths_WrapAroundWhole) {
  uint32_t length = 1;
  for (int turn = 0; turn < 3000; ++turn) {
    const auto fill = static_cast<uint8_t>(turn);
    ASSERT_TRUE(put(length, fill)) << turn;
    const auto all = memory_.drain();
    ASSERT_EQ(1u, all.size()) << turn;
    ASSERT_EQ(std::vector<std::byte>(length, std::byte{fill}), all[0].frame) << turn;
    length = (length * 7 + 13) % 9001 + 1;
  }
  EXPECT_GT(memory_.header().head.load(), 50u * memory_.ring().capacity());
}

TEST_F(CaptureRing, RecordAtTheEnd_NeedsRoomForItsPadToo) {
  const uint32_t capacity = memory_.ring().capacity();
  ASSERT_TRUE(put(capacity / 2 - sizeof(RecordHeader), 1));
  ASSERT_EQ(1u, memory_.drain().size());
  ASSERT_TRUE(put(capacity / 4 - sizeof(RecordHeader), 2));
  // A quarter is left up to the end, and a half in front of it.
  EXPECT_FALSE(put(capacity / 2 + 1, 3));
  EXPECT_TRUE(put(capacity / 2 - sizeof(RecordHeader), 4));
  const auto all = memory_.drain();
  ASSERT_EQ(2u, all.size());
  EXPECT_EQ(std::byte{4}, all[1].frame.back());
}

TEST_F(CaptureRing, OldBytesThatLookLikeAStamp_AreNoRecord) {
  const uint32_t capacity = memory_.ring().capacity();
  uint64_t position = 0;
  const uint32_t bytes = capacity - sizeof(RecordHeader);
  RecordHeader* const record = memory_.ring().take(bytes, &position);
  ASSERT_NE(nullptr, record);
  complete(*record, bytes, 0);
  // In the next turn of the ring, each of these would be a committed record.
  for (uint64_t at = kRecordUnit; at < capacity; at += kRecordUnit) {
    const uint64_t stamp = capacity + at + 1;
    std::memcpy(memory_.records() + at, &stamp, sizeof stamp);
  }
  Ring::commit(*record, position);
  ASSERT_EQ(1u, memory_.drain().size());
  ASSERT_TRUE(put(kRecordUnit, 1));
  EXPECT_EQ(1u, memory_.drain().size());
  EXPECT_EQ(Ring::Next::kNone, next());
}

TEST_F(CaptureRing, ForgedRecord_IsBroken) {
  const auto broken = [&](auto forge) {
    memory_.header().head.store(0);
    memory_.header().tail.store(0);
    std::memset(memory_.records(), 0, memory_.ring().capacity());
    EXPECT_TRUE(put(100, 1));
    EXPECT_EQ(Ring::Next::kRecord, next());
    forge(oldest());
    return next() == Ring::Next::kBroken;
  };
  EXPECT_TRUE(broken([](RecordHeader& record) { record.size = 0; }));
  EXPECT_TRUE(broken([](RecordHeader& record) { record.size = 100; }));
  EXPECT_TRUE(broken([&](RecordHeader& record) { record.size = memory_.ring().capacity() + kRecordUnit; }));
  EXPECT_TRUE(broken([](RecordHeader& record) { record.captured = record.length = 1 << 20; }));
  EXPECT_TRUE(broken([](RecordHeader& record) { record.length = 10; }));
  EXPECT_TRUE(broken([](RecordHeader& record) { record.device = kMostDevices; }));
  EXPECT_TRUE(broken([](RecordHeader& record) { record.transport = kMostTransports; }));
  EXPECT_TRUE(broken([](RecordHeader& record) { record.direction = Direction{3}; }));
  EXPECT_TRUE(broken([](RecordHeader& record) { record.kind = RecordKind{7}; }));
}

TEST_F(CaptureRing, ForgedTail_LeavesNoRoom) {
  memory_.header().tail.store(uint64_t{1} << 40);
  EXPECT_FALSE(put(10, 1));
  EXPECT_EQ(0u, memory_.header().head.load());
}

TEST_F(CaptureRing, ProducerThatIsKilledInARecord_LeavesTheCompleteOnes) {
  const pid_t child = fork();
  if (child == 0) {
    put(100, 1);
    put(100, 2);
    uint64_t position = 0;
    memory_.ring().take(100, &position);
    raise(SIGKILL);
    _exit(1);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(2u, memory_.drain().size());
  EXPECT_EQ(Ring::Next::kNone, next());
  EXPECT_TRUE(memory_.ring().has_unfinished());
}

TEST_F(CaptureRing, ManyThreads_EachRecordIsWholeOrDropped) {
  constexpr uint32_t kThreads = 4, kEach = 3000;
  std::atomic<uint32_t> written{0};
  std::atomic<uint32_t> ended{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      for (uint32_t n = 0; n < kEach; ++n)
        if (put(memory_.ring(), n * 37 % 2000 + 1, static_cast<uint8_t>(i + 1))) ++written;
      ++ended;
    });
  uint32_t seen = 0;
  for (bool last = false; !last;) {
    last = ended == kThreads;
    for (const RingMemory::Taken& taken : memory_.drain()) {
      ++seen;
      ASSERT_EQ(std::vector<std::byte>(taken.frame.size(), taken.frame[0]), taken.frame);
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(written, seen);
  EXPECT_GT(seen, 0u);
  EXPECT_FALSE(memory_.ring().has_unfinished());
}

TEST(CaptureRingSize, PowersOfTwoWithinTheLimits_AreValid) {
  EXPECT_TRUE(Ring::is_valid(kMinCapacity));
  EXPECT_TRUE(Ring::is_valid(kMaxCapacity));
  EXPECT_FALSE(Ring::is_valid(kMinCapacity / 2));
  EXPECT_FALSE(Ring::is_valid(uint64_t{kMaxCapacity} * 2));
  EXPECT_FALSE(Ring::is_valid(kMinCapacity + kRecordUnit));
}

}  // namespace
}  // namespace nupa::capture
