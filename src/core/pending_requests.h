// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "progress/lifecycle.h"

namespace nupa::core {

/// Queue pairs whose endpoint has something to go on with. The service thread tries all of them. A thread that polls a
/// completion queue tries those that complete there and were added for pollers; the completion queue counts these in
/// `pending_qps`, so that an empty poll beside none of them costs one load. Any thread.
///
/// A queue pair is tried with the objects' mutex held, under which objects leave their tables: once it was removed from
/// here and then from its table, no thread tries it. The types are parameters so that tests need no device.
template <class Qp, class Cq>
class PendingRequests {
 public:
  /// Makes the service thread call progress() at that time (CLOCK_MONOTONIC ns) at the latest; 0: soon.
  using Kick = std::function<void(int64_t at_ns)>;
  /// `objects`: the mutex above.
  PendingRequests(std::mutex& objects, Kick kick) : objects_(objects), kick_(std::move(kick)) {}
  PendingRequests(const PendingRequests&) = delete;
  PendingRequests& operator=(const PendingRequests&) = delete;

  /// `by_pollers`: threads that poll for the completions of its sends try as well, not only the service thread.
  void add(Qp& qp, bool by_pollers);
  /// A queue pair does so itself, within its progress() too, when nothing is left to go on with.
  void remove(Qp& qp);

  /// Service thread, with the objects' mutex held: tries all. Returns when to call next (CLOCK_MONOTONIC ns),
  /// INT64_MAX: nothing waits.
  int64_t progress(int64_t now_ns);
  /// A thread that polls `cq`: tries those that complete there. It does not wait for the objects' mutex. What wants to
  /// be tried again is tried by the service thread if no poll comes until then.
  void poll(const Cq& cq);

 private:
  const progress::OfThisProcess made_;
  std::mutex& objects_;
  const Kick kick_;
  std::mutex mutex_;
  std::map<Qp*, bool> waiting_;  ///< and whether pollers try
};

template <class Qp, class Cq>
[[gnu::noinline]] void PendingRequests<Qp, Cq>::add(Qp& qp, bool by_pollers) {
  {
    std::lock_guard lock(mutex_);
    bool& counted = waiting_.emplace(&qp, false).first->second;
    if (by_pollers && !counted && qp.send_cq() != nullptr) {
      qp.send_cq()->pending_qps.fetch_add(1);
      counted = true;
    }
  }
  kick_(0);
}

template <class Qp, class Cq>
[[gnu::noinline]] void PendingRequests<Qp, Cq>::remove(Qp& qp) {
  std::lock_guard lock(mutex_);
  const auto found = waiting_.find(&qp);
  if (found == waiting_.end()) return;
  if (found->second) qp.send_cq()->pending_qps.fetch_sub(1);
  waiting_.erase(found);
}

template <class Qp, class Cq>
[[gnu::noinline]] int64_t PendingRequests<Qp, Cq>::progress(int64_t now_ns) {
  std::vector<Qp*> all;  // each may remove itself
  {
    std::lock_guard lock(mutex_);
    for (const auto& [qp, by_pollers] : waiting_) all.push_back(qp);
  }
  int64_t wanted = INT64_MAX;
  for (Qp* qp : all) wanted = std::min(wanted, qp->progress(now_ns));
  return wanted;
}

template <class Qp, class Cq>
[[gnu::noinline]] void PendingRequests<Qp, Cq>::poll(const Cq& cq) {
  if (!made_.holds()) return;  // the requests are a parent process's
  // A thread that polls one queue must not fall asleep behind the service thread: it comes again anyway.
  std::unique_lock objects(objects_, std::try_to_lock);
  if (!objects.owns_lock()) return;
  std::vector<Qp*> ready;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [qp, by_pollers] : waiting_)
      if (by_pollers && qp->send_cq() == &cq) ready.push_back(qp);
  }
  const int64_t now = base::now_ns();
  int64_t wanted = INT64_MAX;
  for (Qp* qp : ready) wanted = std::min(wanted, qp->progress(now));
  if (wanted != INT64_MAX) kick_(wanted);
}

}  // namespace nupa::core
