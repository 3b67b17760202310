// SPDX-License-Identifier: Apache-2.0
/// A queue pair leaves a copy to an engine. A process that has revoked the key waits for the send lock first, and for
/// the engine second (docs/design/copy-engines.md).
#include "shadow.h"
#include "expect.h"
#include "shm/send_lock.h"

namespace nupa::shm {
namespace {

using model::Case;

struct Given {
  std::atomic<uint32_t> key{1};
  std::atomic<uint32_t> lock{0};
  std::atomic<uint32_t> copying{0};
  std::atomic<uint32_t> job{0};  ///< stands for the engine's mutex and queue
  uint32_t memory = 0;
  std::atomic<uint32_t> given_back{0};
};
constexpr uint32_t kNoJob = 1, kJob = 2;

/// As CopyingEndpoint::begin().
void add_sender(Case& made, Given& given) {
  made.thread("sender", [&given] {
    SendLock held(given.lock);
    const ::std::lock_guard guard(held);
    if (given.key.load(std::memory_order_acquire) == 0) {
      given.job.store(kNoJob, std::memory_order_release);
      return;
    }
    given.copying.store(given.copying.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    given.job.store(kJob, std::memory_order_release);
  });
}

/// As CopyJob::end().
void add_engine(Case& made, Given& given) {
  made.thread("engine", [&given] {
    uint32_t job = 0;
    while ((job = given.job.load(std::memory_order_acquire)) == 0) _mm_pause();
    if (job == kNoJob) return;
    model::note_access(&given.memory, sizeof given.memory, false);
    model::require(given.given_back.load(std::memory_order_relaxed) == 0, "open memory has not been given back");
    given.copying.store(given.copying.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  });
}

/// As await_uses() in core/quiesce.cc, in this order or in the wrong one.
void add_owner(Case& made, Given& given, bool is_right) {
  made.thread("owner", [&given, is_right] {
    given.key.store(0, std::memory_order_release);
    SendLock::fence_after_revoking();
    SendLock::await_holder(is_right ? given.lock : given.copying, [] { return true; });
    SendLock::await_holder(is_right ? given.copying : given.lock, [] { return true; });
    model::note_access(&given.memory, sizeof given.memory, true);
    given.given_back.store(1, std::memory_order_relaxed);
  });
}

void revokes_beside_an_engine(Case& made) {
  auto& given = made.make<Given>();
  add_sender(made, given);
  add_engine(made, given);
  add_owner(made, given, true);
}

void waits_in_the_wrong_order(Case& made) {
  auto& given = made.make<Given>();
  add_sender(made, given);
  add_engine(made, given);
  add_owner(made, given, false);
}

TEST(ModelCopying, Revoked_BesideAnEngine_IsNotUsedAfterTheWaits) { model::expect_holds(revokes_beside_an_engine); }
TEST(ModelCopying, WaitsInTheWrongOrder_AreNotEnough) {
  EXPECT_NE(model::explore(model::Memory::kCpp, waits_in_the_wrong_order).fault, "");
}

}  // namespace
}  // namespace nupa::shm
