// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"
#include "expect.h"
#include "shm/receive_ring.h"

namespace nupa::shm {
namespace {

using model::Build;
using model::Case;

/// A receive queue of one slot or two. Each thread looks at it through an object of its own.
struct ReceiveQueue {
  RecvRing shared{};
  void* slots = nullptr;
  uint32_t log2_slots = 0;
  uint64_t got[4] = {};  ///< by number of the receive: who claimed it

  ReceiveRing ring() { return {&shared, slots, log2_slots, ReceiveRing::stride_for(2)}; }

  static bool post(ReceiveRing& ring, uint64_t position) {
    return ring.post(position, [position](RecvSlot& slot) {
      model::note_access(&slot.wr_id, 8, true);
      slot.wr_id = position + 1;
    });
  }
  /// What the claimer reads of the receive that it got.
  static uint64_t number_of(const ReceiveRing::Claim& claim) {
    model::note_access(&claim.slot->wr_id, 8, false);
    return claim.slot->wr_id;
  }
  ReceiveRing::Claim claim_surely(ReceiveRing& ring, uint32_t owner, bool alone) {
    for (;;) {
      if (const ReceiveRing::Claim claim = ring.claim(owner, alone); claim) return claim;
      _mm_pause();
    }
  }
  void take(ReceiveRing& ring, uint32_t owner, bool alone = false) {
    const ReceiveRing::Claim claim = claim_surely(ring, owner, alone);
    const uint64_t number = number_of(claim);
    model::require(number == claim.position + 1 && got[number] == 0, "each receive is claimed once");
    got[number] = owner;
    ReceiveRing::finish(claim);
  }
};

ReceiveQueue& make_queue(Case& made, uint32_t log2_slots, uint64_t posted) {
  auto& queue = made.make<ReceiveQueue>();
  queue.log2_slots = log2_slots;
  queue.slots = made.memory(ReceiveRing::stride_for(2) << log2_slots);
  ReceiveRing ring = queue.ring();
  for (uint64_t i = 0; i < posted; ++i) ReceiveQueue::post(ring, i);
  return queue;
}

void add_owner(Case& made, ReceiveQueue& queue, uint64_t first, uint64_t end) {
  made.thread("owner", [&queue, first, end] {
    ReceiveRing ring = queue.ring();
    for (uint64_t position = first; position < end; ++position)
      while (!ReceiveQueue::post(ring, position)) _mm_pause();
  });
}

void add_sender(Case& made, const char* name, ReceiveQueue& queue, uint32_t owner, uint64_t count, bool alone = false) {
  made.thread(name, [&queue, owner, count, alone] {
    ReceiveRing ring = queue.ring();
    for (uint64_t i = 0; i < count; ++i) queue.take(ring, owner, alone);
  });
}

void a_slot_is_used_again(Case& made) {
  auto& queue = make_queue(made, 0, 1);
  add_owner(made, queue, 1, 2);
  add_sender(made, "sender", queue, 5, 2);
}

void a_slot_is_used_again_by_the_only_sender(Case& made) {
  auto& queue = make_queue(made, 0, 1);
  add_owner(made, queue, 1, 2);
  add_sender(made, "sender", queue, 5, 2, true);
}

void two_senders_one_receive_each(Case& made) {
  auto& queue = make_queue(made, 1, 1);
  add_owner(made, queue, 1, 2);
  add_sender(made, "sender 1", queue, 5, 1);
  add_sender(made, "sender 2", queue, 6, 1);
}

void add_one_who_puts_back(Case& made, ReceiveQueue& queue) {
  made.thread("puts back", [&queue] {
    ReceiveRing ring = queue.ring();
    const ReceiveRing::Claim claim = ring.claim(5);
    if (!claim) return;
    ReceiveQueue::number_of(claim);
    model::require(ReceiveRing::is_claimed(claim, 5), "the claim stands");
    ring.put_back(claim);
  });
}

/// One sender puts its receive back while another one goes past it: it is not lost.
void one_puts_back_while_another_goes_past(Case& made) {
  auto& queue = make_queue(made, 1, 2);
  add_one_who_puts_back(made, queue);
  add_sender(made, "sender", queue, 6, 1);
  made.finally([&queue] {
    ReceiveRing ring = queue.ring();
    const ReceiveRing::Claim left = ring.claim(7);
    model::require(static_cast<bool>(left) && queue.got[ReceiveQueue::number_of(left)] == 0,
                   "what was put back can be claimed");
  });
}

/// What is put back is taken by another sender, which is the owner's process and posts to the slot again.
void one_puts_back_and_the_slot_is_used_again(Case& made) {
  auto& queue = make_queue(made, 0, 1);
  add_one_who_puts_back(made, queue);
  made.thread("owner", [&queue] {
    ReceiveRing ring = queue.ring();
    queue.take(ring, 6);
    model::require(ReceiveQueue::post(ring, 1), "the slot is free");
  });
}

/// Two put back at a time what they have claimed, and a third one looks: all that is posted can be claimed.
void two_put_back(Case& made) {
  auto& queue = make_queue(made, 1, 2);
  auto& claims = made.make<::std::array<ReceiveRing::Claim, 2>>();
  for (auto& claim : claims) claim = queue.ring().claim(5);
  for (size_t i = 0; i < 2; ++i)
    made.thread(i == 0 ? "first" : "second", [&queue, &claims, i] { queue.ring().put_back(claims[i]); });
  made.thread("third", [&queue] {
    ReceiveRing ring = queue.ring();
    while (const ReceiveRing::Claim claim = ring.claim(6)) queue.got[ReceiveQueue::number_of(claim)] = 6;
  });
  made.finally([&queue] {
    ReceiveRing ring = queue.ring();
    while (const ReceiveRing::Claim claim = ring.claim(7)) queue.got[ReceiveQueue::number_of(claim)] = 7;
    model::require(queue.got[1] != 0 && queue.got[2] != 0, "what was put back can be claimed");
  });
}

TEST(ModelReceiveRing, Slot_UsedAgain_HoldsWholeReceives) { model::expect_holds(a_slot_is_used_again); }
TEST(ModelReceiveRing, Slot_UsedAgainByTheOnlySender_HoldsWholeReceives) {
  model::expect_holds(a_slot_is_used_again_by_the_only_sender);
}
TEST(ModelReceiveRing, TwoSenders_EachReceiveIsClaimedOnce) { model::expect_holds(two_senders_one_receive_each); }
TEST(ModelReceiveRing, PutBack_WhileAnotherSenderGoesPast_LosesNothing) {
  model::expect_holds(one_puts_back_while_another_goes_past);
}
TEST(ModelReceiveRing, PutBack_TakenByAnotherSender_HoldsWholeReceives) {
  model::expect_holds(one_puts_back_and_the_slot_is_used_again);
}

TEST(ModelReceiveRing, PutBack_OfTwoSenders_LosesNothing) { model::expect_holds(two_put_back); }

TEST(ModelReceiveRing, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {a_slot_is_used_again,
                         a_slot_is_used_again_by_the_only_sender,
                         two_senders_one_receive_each,
                         one_puts_back_while_another_goes_past,
                         one_puts_back_and_the_slot_is_used_again,
                         two_put_back};
  EXPECT_EQ(model::needed_orders(cases, {"shm/receive_ring.h", "base/fence.h"}),
            (::std::vector<::std::string>{
                "ReceiveRing::claim load acquire: x86 relaxed, C++ relaxed",
                "ReceiveRing::is_claimed load acquire: x86 relaxed, C++ relaxed",
                "ReceiveRing::finish store relaxed: x86 relaxed, C++ relaxed",
                "ReceiveRing::finish store relaxed 2: x86 relaxed, C++ relaxed",
                "ReceiveRing::finish store release: x86 relaxed, C++ release",
                "ReceiveRing::put_back store relaxed: x86 relaxed, C++ relaxed",
                "ReceiveRing::put_back store relaxed 2: x86 relaxed, C++ relaxed",
                "ReceiveRing::put_back store release: x86 relaxed, C++ release",
                "ReceiveRing::put_back fence seq_cst: x86 seq_cst, C++ seq_cst",
                "ReceiveRing::post load acquire: x86 relaxed, C++ acquire",
                "ReceiveRing::post store release: x86 relaxed, C++ release",
                "ReceiveRing::await_claimer load acquire: x86 relaxed, C++ acquire",
                "ReceiveRing::await_claimer load acquire 2: x86 relaxed, C++ acquire",
                "ReceiveRing::claim_slot compare_exchange seq_cst: x86 relaxed, C++ acquire",
                "ReceiveRing::claim_slot failure acquire: x86 relaxed, C++ relaxed",
                "ReceiveRing::claimed store release: x86 relaxed, C++ relaxed",
                "ReceiveRing::claimed compare_exchange acq_rel: x86 relaxed, C++ relaxed",
                "ReceiveRing::claimed failure acquire: x86 relaxed, C++ relaxed",
                "ReceiveRing::search failure seq_cst: x86 relaxed, C++ relaxed",
                "ReceiveRing::search compare_exchange seq_cst: x86 relaxed, C++ relaxed",
                "ReceiveRing::search load acquire: x86 relaxed, C++ relaxed",
                "ReceiveRing::search load acquire 2: x86 relaxed, C++ relaxed",
                "ReceiveRing::lower_hint load acquire: x86 relaxed, C++ relaxed",
                "ReceiveRing::lower_hint compare_exchange acq_rel: x86 relaxed, C++ relaxed",
                "ReceiveRing::lower_hint failure acquire: x86 relaxed, C++ relaxed",
                "base::fence_after_update fence seq_cst: x86 none, C++ seq_cst",
            }));
}

}  // namespace
}  // namespace nupa::shm
