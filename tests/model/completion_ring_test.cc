// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "shadow.h"
#include "expect.h"
#include "core/next_stamp.h"
#include "progress/spin_lock.h"
#include "shm/completion_ring.h"

namespace nupa::shm {
namespace {

using model::Build;
using model::Case;
using model::Memory;
using Push = CompletionRing::Push;
constexpr uint32_t kLog2 = 1;

/// A queue's shared words and the memory of its ring. Each thread looks at it through an object of its own.
struct Queue {
  CqShared shared{};
  void* memory = nullptr;
  uint32_t log2_slots = kLog2;
  std::atomic<uint32_t> events{};  ///< raised: what the owner sleeps on

  CompletionRing ring() { return {&shared, memory, log2_slots}; }
  void push(CompletionRing& ring, uint64_t wr_id, uint32_t owner = 1, bool solicited = false) {
    const CqEntry entry{.wr_id = wr_id, .timestamp = wr_id, .byte_len = 7, .vendor_err = static_cast<uint32_t>(wr_id)};
    while (ring.push(owner, nullptr, entry) != Push::kOk) _mm_pause();
    if (ring.needs_event(solicited)) events.fetch_add(1, std::memory_order_acq_rel);
  }
  /// The entry at a position, which has to be ready.
  static uint64_t take(CompletionRing& ring, uint64_t position) {
    CqEntry entry;
    std::memcpy(&entry, &ring.slot(position).entry, sizeof entry);
    model::require(entry.wr_id == entry.timestamp && entry.byte_len == 7 && entry.vendor_err == entry.wr_id,
                   "the entry is whole");
    return entry.wr_id;
  }
  /// As a program that sleeps in ibv_get_cq_event().
  void sleep_until(uint32_t raised) {
    while (events.load(std::memory_order_acquire) < raised) _mm_pause();
  }
};

Queue& make_queue(Case& made, bool has_events) {
  auto& queue = made.make<Queue>();
  queue.memory = made.memory(CompletionRing::bytes_for(kLog2));
  queue.shared.channel = has_events ? 1 : 0;
  return queue;
}

/// A thread that pushes entries one after the other.
void add_writer(Case& made, const char* name, Queue& queue, uint64_t first, uint64_t count, uint32_t owner) {
  made.thread(name, [&queue, first, count, owner] {
    CompletionRing ring = queue.ring();
    for (uint64_t i = 0; i < count; ++i) queue.push(ring, first + i, owner);
  });
}

/// The owner arms, looks once more and sleeps, until it has seen all.
void add_sleeping_owner(Case& made, Queue& queue, uint64_t count) {
  made.thread("owner", [&queue, count] {
    CompletionRing ring = queue.ring();
    uint32_t taken = 0;  // an event may be of an entry that was seen without it
    for (uint64_t head = 0; head < count;) {
      CompletionRing::arm(queue.shared, Armed::kNext);
      if (!ring.ready(head)) queue.sleep_until(++taken);
      while (head < count && ring.ready(head)) Queue::take(ring, head++);
      ring.publish_head(head);
    }
  });
}

/// The owner polls until it has seen all, each once and those of a writer in their order.
void add_polling_owner(Case& made, Queue& queue, uint64_t count) {
  made.thread("owner", [&queue, count] {
    CompletionRing ring = queue.ring();
    uint64_t seen = 0;
    for (uint64_t head = 0; head < count; ++head) {
      while (!ring.ready(head)) _mm_pause();
      const uint64_t wr_id = Queue::take(ring, head);
      model::require((seen >> wr_id) == 0 || wr_id < 8, "a writer's entries keep their order");
      model::require((seen >> wr_id & 1) == 0, "an entry comes once");
      seen |= uint64_t{1} << wr_id;
      ring.publish_head(head + 1);
    }
  });
}

void sleeps_until_one_entry(Case& made) {
  auto& queue = make_queue(made, true);
  add_sleeping_owner(made, queue, 1);
  add_writer(made, "writer", queue, 1, 1, 1);
}

void sleeps_until_two_entries(Case& made) {
  auto& queue = make_queue(made, true);
  add_sleeping_owner(made, queue, 2);
  add_writer(made, "writer", queue, 1, 2, 1);
}

/// Two threads arm: the second one finds the queue armed.
void two_sleep_until_one_entry(Case& made) {
  auto& queue = make_queue(made, true);
  add_sleeping_owner(made, queue, 1);
  made.thread("second", [&queue] {
    CompletionRing ring = queue.ring();
    CompletionRing::arm(queue.shared, Armed::kNext);
    if (!ring.ready(0)) queue.sleep_until(1);
  });
  add_writer(made, "writer", queue, 1, 1, 1);
}

void one_event_of_two_writers(Case& made) {
  auto& queue = make_queue(made, true);
  queue.shared.armed.store(static_cast<uint32_t>(Armed::kNext));
  add_writer(made, "writer 1", queue, 1, 1, 1);
  add_writer(made, "writer 2", queue, 9, 1, 2);
  made.finally([&queue] { model::require(queue.events.load() == 1, "one event for what was armed once"); });
}

void places_are_used_again(Case& made) {
  auto& queue = make_queue(made, false);
  add_polling_owner(made, queue, 3);
  add_writer(made, "writer", queue, 1, 3, 1);
}

void two_writers(Case& made) {
  auto& queue = make_queue(made, false);
  add_polling_owner(made, queue, 2);
  add_writer(made, "writer 1", queue, 1, 1, 1);
  add_writer(made, "writer 2", queue, 9, 1, 2);
}

/// A resize: what was closed stays empty, what was not closed becomes ready.
void closes_beside_a_writer(Case& made) {
  auto& queue = make_queue(made, false);
  auto& closed = made.make<::std::array<bool, 2>>();
  made.thread("owner", [&queue, &closed] {
    CompletionRing ring = queue.ring();
    for (uint64_t position = 0; position < 2; ++position) {
      if ((closed[position] = ring.close(position))) continue;
      while (!ring.ready(position)) _mm_pause();
      model::require(Queue::take(ring, position) == 1, "the entry is the one that was pushed");
    }
  });
  auto& pushed = made.make<bool>();
  made.thread("writer", [&queue, &pushed] {
    CompletionRing ring = queue.ring();
    const Push result = ring.push(1, nullptr, {.wr_id = 1, .timestamp = 1, .byte_len = 7, .vendor_err = 1});
    model::require(result == Push::kOk || result == Push::kMoved, "there is room");
    pushed = result == Push::kOk;
  });
  made.finally([&queue, &closed, &pushed] {
    CompletionRing ring = queue.ring();
    for (uint64_t position = 0; position < 2; ++position)
      model::require(closed[position] != ring.ready(position), "what was closed stays empty, and nothing else");
    model::require(pushed == (ring.ready(0) || ring.ready(1)), "what was pushed is there, once");
  });
}

/// What a process that died has claimed is voided; others go on behind it.
void voids_what_a_dead_writer_claimed(Case& made) {
  auto& queue = make_queue(made, false);
  uint64_t claimed;
  queue.ring().claim_next(2, &claimed);
  made.thread("owner", [&queue] {
    CompletionRing ring = queue.ring();
    ring.void_claims_of(2);
    model::require(ring.ready(0) && ring.slot(0).entry.status == kVoidStatus, "the dead writer's entry is void");
    while (!ring.ready(1)) _mm_pause();
    Queue::take(ring, 1);
  });
  add_writer(made, "writer", queue, 1, 1, 1);
}

/// Two threads that poll a queue, as Cq::poll() does it: one polls once and goes, the other one arms and sleeps.
struct Polled {
  progress::SpinLock lock;
  core::NextStamp next;
  uint64_t head = 0;

  void look_at_next(CompletionRing& ring) { next.look_at(ring.slot(head).stamp, ring.turn(head)); }
  bool poll(CompletionRing& ring, uint64_t count) {
    if (next.surely_empty()) return false;
    const ::std::lock_guard guard(lock);
    const uint64_t before = head;
    while (head - before < count && ring.ready(head)) Queue::take(ring, head++);
    if (head == before) return false;
    ring.publish_head(head);
    look_at_next(ring);
    return true;
  }
};

/// Entries are there: while one thread takes one of them, another one does not see an empty queue.
void one_polls_while_another_looks(Case& made) {
  auto& queue = make_queue(made, false);
  auto& polled = made.make<Polled>();
  CompletionRing first = queue.ring();
  queue.push(first, 1);
  queue.push(first, 2);
  first.publish_head(++polled.head);
  queue.push(first, 3);
  polled.look_at_next(first);
  for (const char* name : {"one", "other"}) {
    made.thread(name, [&queue, &polled] {
      CompletionRing ring = queue.ring();
      model::require(polled.poll(ring, 1), "the queue is not empty");
    });
  }
}

void one_polls_and_one_sleeps(Case& made) {
  constexpr uint64_t kEntries = 2;
  auto& queue = make_queue(made, true);
  queue.log2_slots = 0;
  auto& polled = made.make<Polled>();
  CompletionRing first = queue.ring();
  polled.look_at_next(first);
  queue.push(first, 1);
  made.thread("sleeper", [&queue, &polled] {
    CompletionRing ring = queue.ring();
    CompletionRing::arm(queue.shared, Armed::kNext);
    if (!polled.poll(ring, 8)) queue.sleep_until(1);
  });
  made.thread("poller", [&queue, &polled] {
    CompletionRing ring = queue.ring();
    polled.poll(ring, 8);
  });
  add_writer(made, "writer", queue, 2, kEntries - 1, 1);
  made.may_wait_if([&polled] { return polled.head == kEntries; });
}

/// A resize: the new ring's first entry is there, and so was the old ring's next one.
void one_looks_while_the_ring_moves(Case& made) {
  auto& next = made.make<core::NextStamp>();
  auto& old_stamp = made.make<std::atomic<uint64_t>>(uint64_t{5});
  auto& new_stamp = made.make<std::atomic<uint64_t>>(uint64_t{1});
  next.look_at(old_stamp, 5);
  made.thread("owner", [&next, &new_stamp] { next.look_at(new_stamp, 1); });
  made.thread("other", [&next] { model::require(!next.surely_empty(), "the queue is not empty"); });
}

TEST(ModelCompletionRing, ArmedQueue_OneEntry_WakesItsOwner) { model::expect_holds(sleeps_until_one_entry); }
TEST(ModelCompletionRing, ArmedQueue_TwoEntries_WakeItsOwner) { model::expect_holds(sleeps_until_two_entries); }
TEST(ModelCompletionRing, ArmedByTwo_OneEntry_LeavesNeitherAsleep) { model::expect_holds(two_sleep_until_one_entry); }
TEST(ModelCompletionRing, ArmedOnce_TwoWriters_RaiseOneEvent) { model::expect_holds(one_event_of_two_writers); }
TEST(ModelCompletionRing, Places_UsedAgain_HoldWholeEntries) { model::expect_holds(places_are_used_again); }
TEST(ModelCompletionRing, TwoWriters_EachEntryComesOnce) { model::expect_holds(two_writers); }
TEST(ModelCompletionRing, Close_BesideAWriter_LosesNothing) { model::expect_holds(closes_beside_a_writer); }
TEST(ModelCompletionRing, VoidClaims_BesideAWriter_LosesNothing) {
  model::expect_holds(voids_what_a_dead_writer_claimed);
}
TEST(ModelCompletionRing, TwoPollers_OneSleeps_WakesForWhatTheOtherLeft) {
  model::expect_holds(one_polls_and_one_sleeps);
}
TEST(ModelCompletionRing, TwoPollers_EntriesForBoth_NeitherSeesAnEmptyQueue) {
  model::expect_holds(one_polls_while_another_looks);
}
TEST(ModelCompletionRing, Resize_WhileAnotherLooks_IsNotSeenEmpty) {
  model::expect_holds(one_looks_while_the_ring_moves);
}

TEST(ModelCompletionRing, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {two_sleep_until_one_entry, sleeps_until_one_entry,          sleeps_until_two_entries,
                         one_event_of_two_writers,  places_are_used_again,           two_writers,
                         closes_beside_a_writer,    voids_what_a_dead_writer_claimed};
  EXPECT_EQ(model::needed_orders(cases, {"shm/completion_ring.h", "base/fence.h"}),
            (::std::vector<::std::string>{
                "CompletionRing::ready load acquire: x86 relaxed, C++ acquire",
                "CompletionRing::try_push load acquire: x86 relaxed, C++ relaxed",
                "CompletionRing::claim_next load acquire: x86 relaxed, C++ relaxed",
                "CompletionRing::claim_next load acquire 2: x86 relaxed, C++ relaxed",
                "CompletionRing::claim_next load acquire 3: x86 relaxed, C++ acquire",
                "CompletionRing::claim_next compare_exchange acq_rel: x86 relaxed, C++ relaxed",
                "CompletionRing::claim_next failure acquire: x86 relaxed, C++ relaxed",
                "CompletionRing::claim_next load acquire 4: x86 relaxed, C++ relaxed",
                "CompletionRing::write store release: x86 relaxed, C++ release",
                "CompletionRing::publish_head store release: x86 relaxed, C++ release",
                "CompletionRing::close load acquire: x86 relaxed, C++ relaxed",
                "CompletionRing::close compare_exchange acq_rel: x86 relaxed, C++ relaxed",
                "CompletionRing::close failure acquire: x86 relaxed, C++ relaxed",
                "CompletionRing::void_claims_of load acquire: x86 relaxed, C++ relaxed",
                "CompletionRing::void_claims_of load acquire 2: x86 relaxed, C++ relaxed",
                "CompletionRing::void_claims_of store release: x86 relaxed, C++ relaxed",
                "CompletionRing::arm load seq_cst: x86 relaxed, C++ relaxed",
                "CompletionRing::arm failure seq_cst: x86 relaxed, C++ relaxed",
                "CompletionRing::arm compare_exchange seq_cst: x86 relaxed, C++ relaxed",
                "CompletionRing::needs_event load seq_cst: x86 relaxed, C++ relaxed",
                "CompletionRing::needs_event compare_exchange acq_rel: x86 relaxed, C++ relaxed",
                "CompletionRing::needs_event failure acquire: x86 relaxed, C++ relaxed",
                "CompletionRing::claim_at load acquire: x86 relaxed, C++ relaxed",
                "CompletionRing::claim_at failure acquire: x86 relaxed, C++ relaxed",
                "CompletionRing::claim_at compare_exchange acq_rel: x86 relaxed, C++ relaxed",
                "CompletionRing::help_tail compare_exchange seq_cst: x86 relaxed, C++ relaxed",
                "CompletionRing::help_tail failure seq_cst: x86 relaxed, C++ relaxed",
                "CompletionRing::help_tail load relaxed: x86 relaxed, C++ relaxed",
                "CompletionRing::help_tail store release: x86 relaxed, C++ relaxed",
                "base::fence_after_update fence seq_cst: x86 none, C++ seq_cst",
            }));
}

TEST(ModelCompletionRing, OrdersOfNextStamp_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {one_polls_while_another_looks, one_looks_while_the_ring_moves};
  EXPECT_EQ(model::needed_orders(cases, {"core/next_stamp.h"}),
            (::std::vector<::std::string>{
                "NextStamp::look_at load relaxed: x86 relaxed, C++ relaxed",
                "NextStamp::look_at store relaxed: x86 relaxed, C++ relaxed",
                "NextStamp::look_at store release: x86 relaxed, C++ release",
                "NextStamp::look_at store release 2: x86 relaxed, C++ release",
                "NextStamp::look_at store release 3: x86 relaxed, C++ release",
                "NextStamp::surely_empty load acquire: x86 relaxed, C++ acquire",
                "NextStamp::surely_empty load acquire 2: x86 relaxed, C++ acquire",
                "NextStamp::surely_empty load acquire 3: x86 relaxed, C++ acquire",
                "NextStamp::surely_empty load acquire 4: x86 relaxed, C++ relaxed",
                "NextStamp::surely_empty load relaxed: x86 relaxed, C++ relaxed",
            }));
}

}  // namespace
}  // namespace nupa::shm
