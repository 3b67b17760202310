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

/// Queue pairs whose endpoint has work to continue. The service thread tries all of them. A thread that polls a
/// completion queue tries those that complete there and were added for pollers. The completion queue counts these in
/// `pending_qps`, so that an empty poll costs one load if there are none. Any thread.
///
/// A queue pair is tried with the objects' mutex held, under which objects leave their tables. So no thread tries it
/// once it was removed from here and then from its table. The types are parameters so that tests need no device.
template <class Qp, class Cq>
class PendingRequests {
 public:
  /// Makes the service thread call progress() at that time or earlier (CLOCK_MONOTONIC ns; 0: soon).
  using Kick = std::function<void(int64_t at_ns)>;
  /// `objects`: the objects' mutex.
  PendingRequests(std::mutex& objects, Kick kick) : objects_(objects), kick_(std::move(kick)) {}
  PendingRequests(const PendingRequests&) = delete;
  PendingRequests& operator=(const PendingRequests&) = delete;

  /// `by_pollers`: threads that poll for the completions of its sends try it as well as the service thread. The service
  /// thread tries it at `at_ns` or earlier; INT64_MAX: when it is woken for another reason.
  void add(Qp& qp, bool by_pollers, int64_t at_ns = 0);
  /// A queue pair also calls this itself, within its progress() too, when it has no work left.
  void remove(Qp& qp);

  /// Service thread, with the objects' mutex held: tries all queue pairs. Returns the time of the next call
  /// (CLOCK_MONOTONIC ns), or INT64_MAX if none waits.
  int64_t progress(int64_t now_ns);
  /// A thread that polls `cq` tries the queue pairs that complete there. It does not wait for the objects' mutex. The
  /// service thread repeats a try if no poll comes in time.
  void poll(const Cq& cq);

 private:
  const progress::OfThisProcess made_;
  std::mutex& objects_;
  const Kick kick_;
  std::mutex mutex_;
  std::map<Qp*, bool> waiting_;  ///< the value: true if polling threads try it
};

template <class Qp, class Cq>
[[gnu::noinline]] void PendingRequests<Qp, Cq>::add(Qp& qp, bool by_pollers, int64_t at_ns) {
  {
    std::lock_guard lock(mutex_);
    bool& counted = waiting_.emplace(&qp, false).first->second;
    if (by_pollers && !counted && qp.send_cq() != nullptr) {
      qp.send_cq()->pending_qps.fetch_add(1);
      counted = true;
    }
  }
  if (at_ns != INT64_MAX) kick_(at_ns);
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
  std::vector<Qp*> all;  // a copy, since each may remove itself
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
  if (!made_.holds()) return;  // the requests belong to a parent process
  // A polling thread must not block behind the service thread: it polls again anyway.
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
