// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"
#include "expect.h"
#include "../support/ccl_calls.h"

// The lines that are checked; those of progress/words.h and words.cc are in ccl_waiter_test.cc.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsubobject-linkage"  // of what is usually no included file
#include "ccl/algorithms/all_gather/shm_line.cc"
#include "ccl/algorithms/barrier/shm.cc"
#include "ccl/algorithms/broadcast/shm_line.cc"
#include "ccl/algorithms/broadcast/shm_slots.cc"
#include "ccl/algorithms/depart/shm.cc"
#include "ccl/algorithms/shm/parts.cc"
#include "ccl/channel/shm_group.cc"
#pragma GCC diagnostic pop

namespace nupa::ccl::shm {

// Arrays are not mapped here.
int SharedArrays::read(ShmGroup&, uint32_t, void*, size_t, size_t) const { return ENOTSUP; }
CollectiveTask show_arrays(ShmGroup&, Shown, Shown, SharedArrays*) { co_return ENOTSUP; }

namespace {

using model::Build;
using model::Case;

constexpr uint32_t kRanks = 2;
/// Two of them are used in turn.
constexpr size_t kSlotBytes = 2048;
constexpr size_t kArrayBytes = 3 * kSlotBytes;
static_assert(kArrayBytes > kSmallSlotBytes);

class NothingElse final : public ProgressHooks {
 public:
  Cause ended() const override { return {}; }
  Cause on_timeout(const Wait&) override { return {}; }
};

/// Ranks that map each other's arenas, and the data of each.
struct Ranks {
  ::std::vector<::std::byte*> arenas;
  ::std::byte* data[kRanks] = {};
};

Ranks& make_ranks(Case& made) {
  auto& ranks = made.make<Ranks>();
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.arenas.push_back(static_cast<::std::byte*>(made.memory(arena_bytes(kSlotBytes), 4096)));
    ranks.data[rank] = static_cast<::std::byte*>(made.memory(kArrayBytes));
  }
  return ranks;
}

template <class Body>
void add_ranks(Case& made, Ranks& ranks, Body body) {
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    made.thread(rank == 0 ? "rank 0" : "rank 1", [&ranks, rank, body] {
      ShmGroup group(rank, ranks.arenas, {0, 1}, kSlotBytes, {0, true});
      body(group);
    });
  }
}

void run(CollectiveTask steps) {
  NothingElse hooks;
  model::require(run_tasks(steps, {0, true}, hooks, INT64_MAX) == 0, "it is done");
}

void data_crosses_a_barrier(Case& made) {
  auto& ranks = make_ranks(made);
  add_ranks(made, ranks, [&ranks](ShmGroup& group) {
    model::note_access(ranks.data[group.rank()], 8, true);
    run(barrier(group));
    model::note_access(ranks.data[1 - group.rank()], 8, false);
    run(barrier(group));
    model::note_access(ranks.data[group.rank()], 8, true);
  });
}

void a_line_is_broadcast(Case& made) {
  auto& ranks = make_ranks(made);
  add_ranks(made, ranks, [&ranks](ShmGroup& group) {
    const Call call = broadcast_call(0, ranks.data[group.rank()], 8);
    run(broadcast_line(group, call));
  });
}

/// A slot is used again when all have left it.
void slots_are_broadcast(Case& made) {
  auto& ranks = make_ranks(made);
  add_ranks(made, ranks, [&ranks](ShmGroup& group) {
    const Call call = broadcast_call(0, ranks.data[group.rank()], kArrayBytes);
    run(broadcast_slots(group, call));
  });
}

/// What others have read of an arena is over when its rank has departed.
void ranks_depart(Case& made) {
  auto& ranks = make_ranks(made);
  add_ranks(made, ranks, [&ranks](ShmGroup& group) {
    model::note_access(ranks.arenas[1 - group.rank()] + kSlotsAt, 8, false);
    run(depart(group));
    model::note_access(ranks.arenas[group.rank()] + kSlotsAt, 8, true);
  });
}

TEST(ModelCclShmGroup, Barrier_BringsWhatCameBefore) { model::expect_holds(data_crosses_a_barrier); }
TEST(ModelCclShmGroup, BroadcastLine_BringsTheLine) { model::expect_holds(a_line_is_broadcast); }
TEST(ModelCclShmGroup, BroadcastSlots_UsedAgain_BringWholeParts) { model::expect_holds(slots_are_broadcast); }
TEST(ModelCclShmGroup, Depart_LeavesNoReader) { model::expect_holds(ranks_depart); }

TEST(ModelCclShmGroup, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {data_crosses_a_barrier, a_line_is_broadcast, slots_are_broadcast, ranks_depart};
  EXPECT_EQ(model::needed_orders(cases, {"channel/shm_group.h", "channel/shm_group.cc", "progress/words.h"}),
            (::std::vector<::std::string>{
                "ShmGroup::leave fetch_add release: x86 relaxed, C++ release",
                "ShmGroup::have_all_begun load acquire: x86 relaxed, C++ acquire",
                "WordWait::is_over load acquire: x86 relaxed, C++ acquire",
                // Nobody sleeps in these cases: ccl_waiter_test.cc has those that need the fence.
                "progress::wake fence seq_cst: x86 none, C++ none",
                "progress::wake load relaxed: x86 relaxed, C++ relaxed",
                "progress::count_up store release: x86 relaxed, C++ release",
            }));
}

}  // namespace
}  // namespace nupa::ccl::shm
