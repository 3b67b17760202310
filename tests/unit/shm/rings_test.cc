// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "shm/completion_ring.h"
#include "shm/receive_ring.h"
#include "shm/segment.h"
#include "shm/send_lock.h"

namespace nupa::shm {
namespace {

struct CqFixture {
  explicit CqFixture(uint32_t log2_slots)
      : log2(log2_slots),
        memory(new CqSlot[CompletionRing::bytes_for(log2_slots) / sizeof(CqSlot) + 1]()),
        ring(&shared, memory.get(), log2_slots) {}
  uint32_t log2;
  CqShared shared{};
  std::unique_ptr<CqSlot[]> memory;
  CompletionRing ring;
  uint64_t head = 0;

  /// Takes the next entry; false if there is none.
  bool take(uint64_t* wr_id) {
    if (!ring.ready(head)) return false;
    *wr_id = ring.slot(head).entry.wr_id;
    ring.publish_head(++head);
    return true;
  }
};

/// The claims lie behind the slots.
CompletionRing::Claim& claim_at(const CqFixture& cq, uint64_t position) {
  return reinterpret_cast<CompletionRing::Claim*>(&cq.ring.slot(0) + cq.ring.capacity())[position];
}

CqEntry entry_with(uint64_t wr_id) {
  CqEntry entry;
  entry.wr_id = wr_id;
  return entry;
}

TEST(CompletionRing, Push_ManyTurns_KeepsTheOrder) {
  CqFixture cq(2);
  for (uint64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.push(1, nullptr, entry_with(i)));
    uint64_t got;
    ASSERT_TRUE(cq.take(&got));
    ASSERT_EQ(i, got);
    ASSERT_FALSE(cq.take(&got));
  }
}

TEST(CompletionRing, Push_FullRing_IsAnOverrun) {
  CqFixture cq(2);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.push(1, nullptr, entry_with(0)));
  EXPECT_EQ(CompletionRing::Push::kOverrun, cq.ring.push(1, nullptr, entry_with(0)));
  uint64_t got;
  ASSERT_TRUE(cq.take(&got));
  EXPECT_EQ(CompletionRing::Push::kOk, cq.ring.push(1, nullptr, entry_with(0)));
}

TEST(CompletionRing, Push_ManyWriters_LoseNothing) {
  constexpr int kWriters = 4;
  constexpr uint64_t kEach = 20000;
  CqFixture cq(6);
  std::vector<std::thread> writers;
  for (uint32_t w = 0; w < kWriters; ++w) {
    writers.emplace_back([ring = cq.ring, w]() mutable {
      for (uint64_t i = 0; i < kEach;) {
        if (ring.push(w + 1, nullptr, entry_with(uint64_t{w} << 32 | i)) == CompletionRing::Push::kOk)
          ++i;
        else
          std::this_thread::yield();
      }
    });
  }
  uint64_t next[kWriters] = {};
  for (uint64_t taken = 0; taken < kWriters * kEach;) {
    uint64_t got;
    if (!cq.take(&got)) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(next[got >> 32], got & 0xffffffff) << "entries of one writer are in order";
    ++next[got >> 32];
    ++taken;
  }
  for (auto& writer : writers) writer.join();
}

TEST(CompletionRing, Push_WritersThatWaitForTheReader_NeverOverrun) {
  constexpr uint32_t kWriters = 3;
  constexpr uint64_t kEach = 3000;
  CqFixture cq(2);  // four slots, three writers with one entry each: never full
  std::atomic<uint64_t> taken_of[kWriters] = {};
  std::atomic<int> overruns{0};
  std::vector<std::thread> writers;
  for (uint32_t w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w, ring = cq.ring]() mutable {
      for (uint64_t i = 0; i < kEach; ++i) {
        while (taken_of[w].load() != i) std::this_thread::yield();
        while (ring.push(w + 1, nullptr, entry_with(w)) != CompletionRing::Push::kOk) ++overruns;
      }
    });
  }
  for (uint64_t taken = 0; taken < kWriters * kEach;) {
    uint64_t writer;
    if (!cq.take(&writer)) {
      std::this_thread::yield();
      continue;
    }
    taken_of[writer].fetch_add(1);
    ++taken;
  }
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(0, overruns.load());
}

TEST(CompletionRing, Push_ClosedRing_ReturnsMoved) {
  CqFixture cq(1);
  for (uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(cq.ring.close(i));
  EXPECT_EQ(CompletionRing::Push::kMoved, cq.ring.push(1, nullptr, entry_with(0)));
}

TEST(CompletionRing, VoidClaims_OfADeadWriter_VoidsItsEntry) {
  CqFixture cq(2);
  uint64_t position;
  ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.claim_next(9, &position));  // and its writer comes no further
  ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.push(3, nullptr, entry_with(5)));
  uint64_t got;
  EXPECT_FALSE(cq.take(&got)) << "the hole holds up what comes after";
  cq.ring.void_claims_of(3);
  EXPECT_FALSE(cq.take(&got)) << "a live writer's entries stay";
  cq.ring.void_claims_of(9);
  ASSERT_TRUE(cq.take(&got));
  EXPECT_EQ(kVoidStatus, cq.ring.slot(0).entry.status);
  ASSERT_TRUE(cq.take(&got));
  EXPECT_EQ(5u, got);
}

TEST(CompletionRing, NeedsEvent_AfterArming_IsTrueOnce) {
  CqFixture cq(2);
  EXPECT_FALSE(cq.ring.needs_event(true)) << "nobody can wait where there is no channel";
  cq.shared.channel = 1;
  cq.ring = CompletionRing(&cq.shared, cq.memory.get(), cq.log2);
  cq.shared.armed.store(static_cast<uint32_t>(Armed::kSolicited));
  EXPECT_FALSE(cq.ring.needs_event(false));
  EXPECT_TRUE(cq.ring.needs_event(true));
  EXPECT_FALSE(cq.ring.needs_event(true));
  cq.shared.armed.store(static_cast<uint32_t>(Armed::kNext));
  EXPECT_TRUE(cq.ring.needs_event(false));
}

TEST(CompletionRing, NeedsEvent_ArmedForNext_IsTrueForUnsolicited) {
  CqFixture cq(2);
  cq.shared.channel = 1;
  cq.ring = CompletionRing(&cq.shared, cq.memory.get(), cq.log2);
  for (const bool solicited : {false, true}) {
    cq.shared.armed.store(static_cast<uint32_t>(Armed::kNext));
    EXPECT_TRUE(cq.ring.needs_event(solicited));
    EXPECT_EQ(Armed::kNo, armed_of(cq.shared.armed.load()));
  }
}

TEST(CompletionRing, VoidClaims_OfAnotherTag_LeavesTheClaim) {
  CqFixture cq(2);
  uint64_t position;
  ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.claim_next(9, &position));
  cq.ring.void_claims_of(0);
  EXPECT_FALSE(cq.ring.ready(position));
  cq.ring.void_claims_of(9);
  EXPECT_TRUE(cq.ring.ready(position));
}

TEST(CompletionRing, VoidClaims_CompletedEntry_IsKept) {
  CqFixture cq(2);
  ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.push(9, nullptr, entry_with(5)));
  cq.ring.void_claims_of(9);
  uint64_t got;
  ASSERT_TRUE(cq.take(&got));
  EXPECT_EQ(5u, got);
  EXPECT_EQ(0u, cq.ring.slot(0).entry.status);
}

TEST(CompletionRing, Push_WithAnIntent_StoresGenerationAndPosition) {
  CqFixture cq(2);
  cq.ring = CompletionRing(&cq.shared, cq.memory.get(), cq.log2, 3);
  std::atomic<uint64_t> intent{0};
  for (uint64_t i = 0; i < 6; ++i) {
    ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.push(1, &intent, entry_with(i)));
    EXPECT_EQ(uint64_t{3} << 48 | (i + 1), intent.load());
    uint64_t got;
    ASSERT_TRUE(cq.take(&got));
  }
}

TEST(CompletionRing, Push_EachSlot_IsClaimedByItsWriter) {
  CqFixture cq(2);
  for (uint64_t i = 0; i < cq.ring.capacity(); ++i) {  // the first one looks where the owner is
    ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.push(static_cast<uint32_t>(i) + 5, nullptr, entry_with(i)));
    EXPECT_EQ(i + 5, claimer_of(claim_at(cq, i).load()));
  }
}

TEST(CompletionRing, Close_SlotBeingWritten_Fails) {
  CqFixture cq(1);
  uint64_t position;
  ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.claim_next(9, &position));
  EXPECT_FALSE(cq.ring.close(position));
  EXPECT_TRUE(cq.ring.close(position + 1));
  EXPECT_TRUE(cq.ring.close(position + 1)) << "closed it stays";
  EXPECT_EQ(CompletionRing::Push::kMoved, cq.ring.push(1, nullptr, entry_with(0)));
  cq.ring.write(position, entry_with(7));
  uint64_t got;
  ASSERT_TRUE(cq.take(&got));
  EXPECT_EQ(7u, got);
}

TEST(CompletionRing, Reopen_ClosedRing_ContinuesAtItsPosition) {
  CqFixture cq(1);
  ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.push(1, nullptr, entry_with(1)));
  for (uint64_t i = 0; i < 2; ++i) cq.ring.close(i);
  for (uint64_t i = 0; i < 2; ++i) cq.ring.reopen(i);
  ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.push(1, nullptr, entry_with(2)));
  EXPECT_EQ(CompletionRing::Push::kOverrun, cq.ring.push(1, nullptr, entry_with(3)));
  for (const uint64_t id : {1u, 2u}) {
    uint64_t got;
    ASSERT_TRUE(cq.take(&got));
    EXPECT_EQ(id, got);
  }
}

TEST(CompletionRing, StartAt_NewRing_BeginsWithItsEntries) {
  CqFixture cq(2);
  for (uint64_t i = 0; i < 3; ++i) cq.ring.write(i, entry_with(i));
  cq.ring.start_at(3);
  ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.push(1, nullptr, entry_with(3)));
  EXPECT_EQ(CompletionRing::Push::kOverrun, cq.ring.push(1, nullptr, entry_with(4)));
  for (uint64_t i = 0; i < 4; ++i) {
    uint64_t got;
    ASSERT_TRUE(cq.take(&got));
    EXPECT_EQ(i, got);
  }
}

/// So many turns make each position look taken for a while: not for ever, so that a call that passes them all comes
/// back.
constexpr uint64_t kForgedTurns = uint64_t{1} << 20;

TEST(CompletionRing, Push_AllClaimsForged_ReturnsSoon) {
  CqFixture cq(2);
  for (uint64_t i = 0; i < cq.ring.capacity(); ++i) claim_at(cq, i).store(kForgedTurns);
  EXPECT_EQ(CompletionRing::Push::kOverrun, cq.ring.push(1, nullptr, entry_with(0)));
  // The writers' hint, with which the ring's memory begins, follows what was passed.
  const auto& tail = *reinterpret_cast<const std::atomic<uint64_t>*>(cq.memory.get());
  EXPECT_LE(tail.load(), cq.ring.capacity() + kMostLostPositions);
}

TEST(CompletionRing, Push_FarBehindOtherWriters_FindsTheFreeSlot) {
  CqFixture cq(17);
  // As when all others stopped between the claim and the hint.
  const uint64_t taken = cq.ring.capacity() - 1;
  ASSERT_GT(taken, kMostLostPositions);
  for (uint64_t i = 0; i < taken; ++i) claim_at(cq, i).store(cq.ring.turn(i));
  uint64_t position = 0;
  ASSERT_EQ(CompletionRing::Push::kOk, cq.ring.claim_next(1, &position));
  EXPECT_EQ(taken, position);
}

struct RqFixture {
  explicit RqFixture(uint32_t log2_slots)
      : slots(new RecvSlot[size_t{1} << log2_slots]()), ring(&shared, slots.get(), log2_slots, sizeof(RecvSlot)) {}
  RecvRing shared{};
  std::unique_ptr<RecvSlot[]> slots;
  ReceiveRing ring;
};

TEST(ReceiveRing, Claim_PostedReceives_AreInOrderAndAFullRingRefuses) {
  RqFixture rq(1);
  EXPECT_FALSE(rq.ring.claim(1));
  for (uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(rq.ring.post(i, [&](RecvSlot& slot) { slot.wr_id = i; }));
  EXPECT_FALSE(rq.ring.post(2, [](RecvSlot&) {}));
  auto first = rq.ring.claim(1);
  ASSERT_TRUE(first);
  EXPECT_EQ(0u, first.slot->wr_id);
  ReceiveRing::finish(first);
  EXPECT_TRUE(rq.ring.post(2, [](RecvSlot& slot) { slot.wr_id = 2; }));
  EXPECT_EQ(1u, rq.ring.claim(1).slot->wr_id);
  EXPECT_EQ(2u, rq.ring.claim(1).slot->wr_id);
  EXPECT_FALSE(rq.ring.claim(1));
}

TEST(ReceiveRing, Claim_OneOrSeveralClaimers_AdvancesTheHint) {
  for (const bool alone : {true, false}) {
    RqFixture rq(1);
    for (uint64_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(rq.ring.post(i, [](RecvSlot&) {}));
      ASSERT_TRUE(rq.ring.claim(1, alone));
      EXPECT_EQ(i + 1, rq.shared.consumed.load()) << alone;
    }
  }
}

TEST(ReceiveRing, Room_OfAnyNumberOfEntries_IsTheirSum) {
  RqFixture rq(2);
  for (uint32_t entries = 0; entries < 3; ++entries) {
    ASSERT_TRUE(rq.ring.post(entries, [&](RecvSlot& slot) {
      slot.num_sge = entries;
      for (uint32_t i = 0; i < 2; ++i) slot.sge[i] = {0, 10, 0};  // what a receive before it has left, beyond its own
    }));
    EXPECT_EQ(10u * entries, rq.ring.claim(1).room());
  }
}

TEST(ReceiveRing, Post_ClaimerIsAboutToFreeTheSlot_WaitsForIt) {
  constexpr uint64_t kRounds = 20;
  RqFixture rq(0);
  ASSERT_TRUE(rq.ring.post(0, [](RecvSlot&) {}));
  std::atomic<uint64_t> completed{0}, posted{1};
  std::thread claimer([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      while (posted.load() != round) std::this_thread::yield();
      const auto claim = rq.ring.claim(1);
      completed.store(round);
      // The owner comes meanwhile, also if both have one processor.
      for (int i = 0; i < 30; ++i) std::this_thread::yield();
      ReceiveRing::finish(claim);
    }
  });
  uint64_t waited = 0;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    while (completed.load() != round) std::this_thread::yield();
    const bool took = rq.ring.post(round, [](RecvSlot&) {});
    waited += took ? 1 : 0;
    while (!took && !rq.ring.post(round, [](RecvSlot&) {})) std::this_thread::yield();
    posted.store(round + 1);
  }
  claimer.join();
  EXPECT_GT(waited, kRounds / 2) << "a claimer that is stopped in between makes the ring full";
}

TEST(ReceiveRing, Post_ClaimerFreesNothing_IsAFullRing) {
  RqFixture rq(0);
  ASSERT_TRUE(rq.ring.post(0, [](RecvSlot&) {}));
  const auto stopped = rq.ring.claim(1);
  EXPECT_FALSE(rq.ring.post(1, [](RecvSlot&) {}));
  ReceiveRing::finish(stopped);
  EXPECT_TRUE(rq.ring.post(1, [](RecvSlot&) {}));
}

TEST(ReceiveRing, PutBack_Receive_IsClaimedAgain) {
  RqFixture rq(2);
  for (uint64_t i = 0; i < 3; ++i) rq.ring.post(i, [&](RecvSlot& slot) { slot.wr_id = i; });
  auto first = rq.ring.claim(7);
  rq.ring.put_back(first);
  EXPECT_EQ(0u, rq.ring.claim(8).slot->wr_id);
}

TEST(ReceiveRing, IsClaimed_UntilFinish_IsTrueForItsClaimer) {
  RqFixture rq(1);
  for (uint64_t i = 0; i < 2; ++i) rq.ring.post(i, [&](RecvSlot& slot) { slot.wr_id = i; });
  const auto first = rq.ring.claim(7);
  EXPECT_TRUE(ReceiveRing::is_claimed(first, 7));
  EXPECT_FALSE(ReceiveRing::is_claimed(first, 8));
  EXPECT_EQ(7u, claimer_of(first.slot->stamp.load()));
  ReceiveRing::finish(first);
  EXPECT_FALSE(ReceiveRing::is_claimed(first, 7));
  ASSERT_TRUE(rq.ring.post(2, [](RecvSlot&) {}));
  rq.ring.claim(7);
  const auto later = rq.ring.claim(7);  // the same slot, a turn later
  ASSERT_EQ(first.slot, later.slot);
  EXPECT_FALSE(ReceiveRing::is_claimed(first, 7));
  EXPECT_TRUE(ReceiveRing::is_claimed(later, 7));
}

TEST(ReceiveRing, Finish_ClaimedReceive_ClearsTheClaimersFields) {
  RqFixture rq(1);
  for (const bool finishes : {true, false}) {
    const uint64_t position = finishes ? 0 : 1;
    ASSERT_TRUE(rq.ring.post(position, [](RecvSlot&) {}));
    const auto claim = rq.ring.claim(7);
    ASSERT_TRUE(claim);
    claim.slot->claim_qp.store(5);
    claim.slot->completion.store(6);
    if (finishes)
      ReceiveRing::finish(claim);
    else
      rq.ring.put_back(claim);
    EXPECT_EQ(0u, claim.slot->claim_qp.load());
    EXPECT_EQ(0u, claim.slot->completion.load());
  }
}

TEST(ReceiveRing, Claim_OldestIsBeingFilled_TakesTheNext) {
  RqFixture rq(2);
  for (uint64_t i = 0; i < 4; ++i) rq.ring.post(i, [&](RecvSlot& slot) { slot.wr_id = i; });
  const auto slow = rq.ring.claim(7);
  EXPECT_EQ(1u, rq.ring.claim(8).slot->wr_id);
  EXPECT_EQ(2u, rq.ring.claim(8).slot->wr_id);
  rq.ring.put_back(slow);
  EXPECT_EQ(0u, rq.ring.claim(8).slot->wr_id) << "the oldest comes first, also when it comes back";
  EXPECT_EQ(3u, rq.ring.claim(8).slot->wr_id);
}

TEST(ReceiveRing, Claim_HintIsPastAReceive_FindsIt) {
  RqFixture rq(1);
  for (uint64_t i = 0; i < 2; ++i) rq.ring.post(i, [&](RecvSlot& slot) { slot.wr_id = i; });
  rq.shared.consumed.store(2);  // as when another claimer helps it along just after a receive was put back
  EXPECT_FALSE(rq.ring.claim(7));
  EXPECT_FALSE(rq.ring.post(2, [](RecvSlot&) {})) << "it is full";
  EXPECT_EQ(0u, rq.ring.claim(7).slot->wr_id);
  EXPECT_EQ(1u, rq.ring.claim(7).slot->wr_id);
}

TEST(ReceiveRing, Claim_AllStampsForged_ReturnsSoon) {
  RqFixture rq(2);
  for (uint64_t i = 0; i < rq.ring.capacity(); ++i) rq.ring.slot(i).stamp.store(stamp(kForgedTurns, SlotState::kFree));
  EXPECT_FALSE(rq.ring.claim(7));
  EXPECT_LE(rq.shared.consumed.load(), rq.ring.capacity() + kMostLostPositions) << "the hint follows what was passed";
}

TEST(ReceiveRing, Claim_FarBehindOtherClaimers_FindsTheReceive) {
  RqFixture rq(17);
  const uint64_t capacity = rq.ring.capacity();
  for (uint64_t i = 0; i < capacity; ++i) rq.ring.post(i, [&](RecvSlot& slot) { slot.wr_id = i; });
  // As when all others stopped between the claim and the hint.
  ASSERT_GT(capacity - 1, kMostLostPositions);
  for (uint64_t i = 0; i < capacity - 1; ++i) rq.ring.slot(i).stamp.store(claim_stamp(0, 8));
  const auto claim = rq.ring.claim(7);
  ASSERT_TRUE(claim);
  EXPECT_EQ(capacity - 1, claim.slot->wr_id);
}

TEST(SendLock, TryLock_HeldLock_IsOdd) {
  std::atomic<uint32_t> word{6};
  SendLock lock(word);
  ASSERT_TRUE(lock.try_lock());
  EXPECT_EQ(7u, word.load());
  EXPECT_FALSE(SendLock(word).try_lock());
  EXPECT_EQ(7u, word.load());
  lock.unlock();
  EXPECT_EQ(8u, word.load()) << "who looked before sees that it has moved on";
  ASSERT_TRUE(lock.try_lock());
  EXPECT_EQ(9u, word.load());
  lock.unlock();
}

TEST(SendLock, Lock_TwoThreads_ExcludeEachOther) {
  constexpr int kEach = 20000;
  std::atomic<uint32_t> word{0};
  int64_t inside = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        SendLock lock(word);
        lock.lock();
        ++inside;
        lock.unlock();
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(2 * kEach, inside);
  EXPECT_EQ(4u * kEach, word.load());
}

TEST(ReceiveRing, Claim_ManyClaimers_GetEachReceiveOnce) {
  constexpr uint64_t kTotal = 40000;
  RqFixture rq(5);
  std::vector<std::atomic<int>> seen(kTotal);
  std::atomic<uint64_t> claimed{0};
  std::vector<std::thread> claimers;
  for (uint32_t t = 1; t <= 3; ++t) {
    claimers.emplace_back([&, t] {
      while (claimed.load() < kTotal) {
        auto claim = rq.ring.claim(t);
        if (!claim) {
          std::this_thread::yield();
          continue;
        }
        seen[claim.slot->wr_id].fetch_add(1);
        ReceiveRing::finish(claim);
        claimed.fetch_add(1);
      }
    });
  }
  for (uint64_t position = 0; position < kTotal;) {
    if (rq.ring.post(position, [&](RecvSlot& slot) { slot.wr_id = position; }))
      ++position;
    else
      std::this_thread::yield();
  }
  for (auto& claimer : claimers) claimer.join();
  for (uint64_t i = 0; i < kTotal; ++i) ASSERT_EQ(1, seen[i].load()) << i;
}

TEST(Segment, Allocate_Blocks_AreZeroedAlignedAndReused) {
  auto segment = Segment::create();
  ASSERT_TRUE(segment);
  auto a = (*segment)->allocate(100);
  auto b = (*segment)->allocate(70000);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(4096u, a->size);
  EXPECT_EQ(131072u, b->size);
  EXPECT_EQ(0u, b->offset % b->size);
  static_cast<char*>(b->address)[5] = 1;
  (*segment)->release(*b, true);
  auto again = (*segment)->allocate(100000);
  ASSERT_TRUE(again);
  EXPECT_EQ(b->offset, again->offset);
  EXPECT_EQ(0, static_cast<char*>(again->address)[5]);
  (*segment)->release(*again, false);
  auto other = (*segment)->allocate(100000);
  EXPECT_NE(again->offset, other->offset);
}

}  // namespace
}  // namespace nupa::shm
