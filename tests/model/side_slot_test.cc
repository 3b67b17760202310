// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "shadow.h"
#include "expect.h"
#include "core/side_slot.h"

namespace nupa::core {
namespace {

using model::Build;
using model::Case;

SideSlot::Sent sent(uint32_t number) { return {number, WcOpcode::kRdmaWrite, number, number, number, number}; }

uint32_t take(SideSlot& slot) {
  const WorkCompletion wc = slot.completion();
  const uint32_t position = slot.position();
  slot.clear();
  model::require(wc.wr_id == position && wc.byte_len == position && wc.qp_num == position, "the completion is whole");
  return position;
}

/// A writer puts one after the other, as soon as the slot is free.
void slot_is_used_again(Case& made) {
  auto& slot = made.make<SideSlot>();
  made.thread("writer", [&slot] {
    for (uint32_t number = 1; number <= 2; ++number)
      while (!slot.put(sent(number))) _mm_pause();
  });
  made.thread("poller", [&slot] {
    for (uint32_t number = 1; number <= 2; ++number) {
      while (!slot.holds()) _mm_pause();
      model::require(take(slot) == number, "in order");
    }
  });
}

/// Of two writers each puts its completion once.
void two_writers(Case& made) {
  auto& slot = made.make<SideSlot>();
  for (uint32_t number = 1; number <= 2; ++number)
    made.thread(number == 1 ? "writer 1" : "writer 2", [&slot, number] {
      while (!slot.put(sent(number))) _mm_pause();
    });
  made.thread("poller", [&slot] {
    uint32_t seen = 0;
    for (int i = 0; i < 2; ++i) {
      while (!slot.holds()) _mm_pause();
      seen += take(slot);
    }
    model::require(seen == 3, "each once");
  });
}

/// The next completion goes into the ring, whose stamp shows that this one is there.
void the_next_is_in_the_ring(Case& made) {
  auto& slot = made.make<SideSlot>();
  auto& stamp = made.make<std::atomic<uint64_t>>(uint64_t{0});
  made.thread("writer", [&slot, &stamp] {
    model::require(slot.put(sent(1)), "the slot is free");
    stamp.store(1, std::memory_order_release);
  });
  made.thread("poller", [&slot, &stamp] {
    if (stamp.load(std::memory_order_acquire) == 1) model::require(slot.holds(), "the older one is seen");
  });
}

TEST(ModelSideSlot, Slot_UsedAgain_HoldsWholeCompletions) { model::expect_holds(slot_is_used_again); }
TEST(ModelSideSlot, TwoWriters_EachCompletionComesOnce) { model::expect_holds(two_writers); }
TEST(ModelSideSlot, NextInTheRing_ShowsThisOne) { model::expect_holds(the_next_is_in_the_ring); }

TEST(ModelSideSlot, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {slot_is_used_again, two_writers, the_next_is_in_the_ring};
  EXPECT_EQ(model::needed_orders(cases, {"core/side_slot.h"}),
            (::std::vector<::std::string>{"SideSlot::put failure relaxed: x86 relaxed, C++ relaxed",
                                          "SideSlot::put compare_exchange acquire: x86 relaxed, C++ acquire",
                                          "SideSlot::put store release: x86 relaxed, C++ release",
                                          "SideSlot::holds load acquire: x86 relaxed, C++ acquire",
                                          "SideSlot::clear store release: x86 relaxed, C++ release"}));
}

}  // namespace
}  // namespace nupa::core
