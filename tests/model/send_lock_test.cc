// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"
#include "expect.h"
#include "shm/send_lock.h"

namespace nupa::shm {
namespace {

using model::Build;
using model::Case;

/// Memory that a key opens, and the send locks of queue pairs that may use it.
struct Opened {
  std::atomic<uint32_t> key{1};
  std::atomic<uint32_t> locks[2]{};
  uint32_t memory = 0;
  std::atomic<uint32_t> given_back{};  ///< written as the memory is; for x86
};

/// As a queue pair: looks at the key with its send lock held, and uses the memory if it is still open.
void add_initiator(Case& made, const char* name, Opened& opened, size_t lock) {
  made.thread(name, [&opened, lock] {
    SendLock held(opened.locks[lock]);
    const ::std::lock_guard guard(held);
    if (opened.key.load(std::memory_order_acquire) == 0) return;
    model::note_access(&opened.memory, sizeof opened.memory, false);
    model::require(opened.given_back.load(std::memory_order_relaxed) == 0, "open memory has not been given back");
  });
}

/// As Mr::revoke() with quiesce(), which makes no demands on how the key is stored.
void add_owner(Case& made, Opened& opened, size_t locks) {
  made.thread("owner", [&opened, locks] {
    opened.key.store(0, std::memory_order_release);
    SendLock::fence_after_revoking();
    for (size_t i = 0; i < locks; ++i) SendLock::await_holder(opened.locks[i], [] { return true; });
    model::note_access(&opened.memory, sizeof opened.memory, true);
    opened.given_back.store(1, std::memory_order_relaxed);
  });
}

void revokes_beside_a_sender(Case& made) {
  auto& opened = made.make<Opened>();
  add_initiator(made, "sender", opened, 0);
  add_owner(made, opened, 1);
}

void revokes_beside_two_senders(Case& made) {
  auto& opened = made.make<Opened>();
  add_initiator(made, "sender 1", opened, 0);
  add_initiator(made, "sender 2", opened, 1);
  add_owner(made, opened, 2);
}

/// Threads that post to one queue pair.
void two_hold_it_one_after_the_other(Case& made) {
  auto& opened = made.make<Opened>();
  for (const char* name : {"first", "second"}) {
    made.thread(name, [&opened] {
      SendLock lock(opened.locks[0]);
      const ::std::lock_guard guard(lock);
      model::note_access(&opened.memory, sizeof opened.memory, true);
      ++opened.memory;
    });
  }
  made.finally([&opened] { model::require(opened.memory == 2, "each has held it"); });
}

TEST(ModelSendLock, Revoked_BesideASender_IsNotUsedAfterTheWait) { model::expect_holds(revokes_beside_a_sender); }
TEST(ModelSendLock, Revoked_BesideTwoSenders_IsNotUsedAfterTheWait) { model::expect_holds(revokes_beside_two_senders); }
TEST(ModelSendLock, TwoThreads_HoldItOneAfterTheOther) { model::expect_holds(two_hold_it_one_after_the_other); }

TEST(ModelSendLock, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {revokes_beside_a_sender, two_hold_it_one_after_the_other};
  EXPECT_EQ(model::needed_orders(cases, {"shm/send_lock.h", "base/fence.h"}),
            (::std::vector<::std::string>{
                "SendLock::try_lock load relaxed: x86 relaxed, C++ relaxed",
                "SendLock::try_lock failure seq_cst: x86 relaxed, C++ relaxed",
                "SendLock::try_lock compare_exchange seq_cst: x86 relaxed, C++ relaxed",
                "SendLock::unlock store release: x86 relaxed, C++ release",
                "SendLock::unlock load relaxed: x86 relaxed, C++ relaxed",
                "SendLock::fence_after_revoking fence seq_cst: x86 seq_cst, C++ seq_cst",
                "SendLock::await_holder load seq_cst: x86 relaxed, C++ acquire",
                "SendLock::await_holder load acquire: x86 relaxed, C++ acquire",
                "base::fence_after_update fence seq_cst: x86 none, C++ seq_cst",
            }));
}

}  // namespace
}  // namespace nupa::shm
