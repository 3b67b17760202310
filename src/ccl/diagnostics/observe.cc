// SPDX-License-Identifier: Apache-2.0
#include "ccl/diagnostics/observe.h"

#include <cerrno>
#include <new>

#include "base/clock.h"
#include "ccl/diagnostics/trace.h"

namespace nupa::ccl {
namespace {

std::atomic<const Profiler*> current{nullptr};
std::atomic<const Profiler*> last_made{nullptr};

}  // namespace

const Profiler* profiler_now() { return current.load(std::memory_order_acquire); }

int set_profiler(nupa_ccl_profile begin, nupa_ccl_profile end, void* context) {
  const bool none = begin == nullptr && end == nullptr;
  Profiler* const made = none ? nullptr : new (std::nothrow) Profiler{begin, end, context, nullptr};
  if (!none && made == nullptr) return ENOMEM;
  if (made != nullptr) made->before = last_made.exchange(made);
  current.store(made, std::memory_order_release);
  if (!none) is_anybody_observing.store(true);
  return 0;
}

Observed::Observed(const Event& about) : event(about), profiler_(profiler_now()) {
  event.begin_ns = base::now_ns();
  if (event.queued_ns == 0) event.queued_ns = event.begin_ns;
  if (profiler_ != nullptr && profiler_->begin != nullptr) profiler_->begin(&event, profiler_->context);
}

void Observed::end() {
  if (event.end_ns == 0) event.end_ns = base::now_ns();
  if (Trace* const trace = Trace::get()) trace->add(event);
  if (profiler_ != nullptr && profiler_->end != nullptr) profiler_->end(&event, profiler_->context);
}

}  // namespace nupa::ccl
