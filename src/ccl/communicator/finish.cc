// SPDX-License-Identifier: Apache-2.0
/// The end of a communicator: all ranks wait for each other, and then leave.
#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "ccl/communicator/communicator.h"

namespace nupa::ccl {
namespace {

/// This long after the first rank was seen to leave, the others count as having left, too.
constexpr int64_t kLeavingNs = 500'000'000;

}  // namespace

/// Progress hooks for leaving: ranks that have left before this one are not waited for.
class Communicator::Leaving final : public ProgressHooks {
 public:
  explicit Leaving(Communicator& communicator) : communicator_(communicator) {}
  Cause ended() const override {
    const Cause cause = communicator_.ended();
    if (cause) return cause;
    const int64_t left_ns = communicator_.first_left_ns_.load(std::memory_order_acquire);
    if (left_ns == 0 || base::now_ns() - left_ns < kLeavingNs) return {};
    return {ECONNRESET, kNoRank};
  }
  void look() override { communicator_.look(); }
  void sleep(int64_t limit_ns) override { communicator_.sleep(std::min(limit_ns, kLeavingNs)); }
  void on_long_wait(const Wait& wait, bool is_late) override { communicator_.on_long_wait(wait, is_late); }
  void note_long_wait_for(uint32_t rank) override { communicator_.note_long_wait_for(rank); }
  Cause on_timeout(const Wait& wait) override { return communicator_.on_timeout(wait); }

 private:
  Communicator& communicator_;
};

int Communicator::finish() {
  if (ranks() == 1) return 0;
  executor_.take();  // the program has waited for all its requests
  int error = ended().error;
  if (error == 0 && checker_ != nullptr) {
    Call call;
    call.purpose = Purpose::kDestroy;
    error = check(call);
  }
  if (error == 0) {
    CollectiveTask all_here = groups_->all_here();
    error = run_tasks(all_here, topology_.rules, *this, options_.limit_ns);
  }
  if (error == 0) {
    // From here on a rank that disappears has not died but left: it needs nothing more.
    is_leaving_.store(true);
    Leaving hooks(*this);
    CollectiveTask steps = groups_->depart();
    error = run_tasks(steps, topology_.rules, hooks, options_.limit_ns);
    if (error == ECONNRESET) error = 0;
  }
  executor_.give_back();
  return error;
}

}  // namespace nupa::ccl
