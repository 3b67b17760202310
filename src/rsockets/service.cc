// SPDX-License-Identifier: Apache-2.0
#include "rsockets/service.h"

#include <atomic>
#include <utility>

#include "progress/lifecycle.h"

namespace nupa::rsockets {

using progress::kNsPerSecond;
using progress::Loop;

Result<Loop*> service_loop() {
  struct Current {
    const progress::OfThisProcess made;
    const std::unique_ptr<Loop> loop;
  };
  // Never destroyed: the thread may outlive static objects at exit.
  constinit static std::atomic<Current*> current{nullptr};
  Current* known = current.load(std::memory_order_acquire);
  while (known == nullptr || !known->made.holds()) {
    auto opened = Loop::open();
    if (!opened) return tl::unexpected(opened.error());
    if (auto started = (*opened)->start("nupa-rsockets"); !started) return tl::unexpected(started.error());
    std::unique_ptr<Current> fresh(new Current{{}, std::move(*opened)});
    if (current.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel))
      return fresh.release()->loop.get();
  }
  return known->loop.get();
}

KeepAlive::Beat::Beat(Loop& loop, int seconds, std::function<void()> send)
    : period_ns(seconds * kNsPerSecond), timer(loop, [this, send = std::move(send)](int64_t now_ns) {
        timer.set(now_ns + period_ns);
        send();
      }) {}

int KeepAlive::start(int seconds, std::function<void()> send) {
  std::lock_guard lock(mutex_);
  beat_ = nullptr;
  const auto loop = service_loop();
  if (!loop) return -loop.error().code();
  beat_ = std::make_unique<Beat>(**loop, seconds, std::move(send));
  beat_->timer.set(progress::now_ns() + beat_->period_ns);
  return 0;
}

void KeepAlive::stop() {
  std::lock_guard lock(mutex_);
  beat_ = nullptr;
}

}  // namespace nupa::rsockets
