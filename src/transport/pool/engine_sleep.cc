// SPDX-License-Identifier: Apache-2.0
/// How long the engine's threads sleep, and how they are woken.
#include <algorithm>
#include <atomic>
#include <utility>

#include "transport/pool/engine.h"
#include "transport/pool/medium/sleep.h"

namespace nupa::pool {

void Engine::arm(uint32_t packets, int64_t now) {
  const uint64_t records = records_.load(std::memory_order_relaxed);
  // A program that polls looks at the channels itself.
  const bool program_reads = records - thread_records_ > packets;
  thread_records_ = records;
  if (packets > 0) busy_ns_ = now;
  // As long as nothing has come: each pause is about twice as long as the one before.
  const int64_t pause = program_reads ? kLongestPauseNs : std::clamp(now - busy_ns_, kShortestPauseNs, kLongestPauseNs);
  if (std::exchange(is_polled_, false) || packets > 0 || program_reads) active_ns_ = now;
  rings_come_ = pool_.doorbell() >= 0 && now - active_ns_ >= kActiveNs &&
                std::all_of(links_.begin(), links_.end(), [](const auto& link) { return link->has_doorbells(); });
  poller_.alarm().forget();
  int64_t next = house_ns_;
  if (!rings_come_ && !links_.empty()) next = std::min(next, now + pause);
  bool waits = answers_wait();
  for (const auto& link : links_) waits = waits || link->has_waiters() || link->is_blocked;
  waits = waits || grants_.has_unasked();
  if (waits) next = std::min(next, now + kShortestPauseNs);
  {
    std::lock_guard lock(due_mutex_);
    for (const Receiver* const receiver : due_) next = std::min(next, std::max(receiver->deadline(), now));
  }
  constexpr int64_t kDozeNs = 100'000;
  dozes_.store(!rings_come_ && packets == 0 && !program_reads && pause > kDozeNs);
  poller_.expect(next);
}

bool Engine::has_records() const {
  return !closed_ && std::any_of(links_.begin(), links_.end(), [](const auto& link) {
    Header header;
    return !link->is_lost() && !link->wrote_garbage && !link->is_blocked && link->channel().is_open() &&
           link->channel().look(&header) != Channel::Look::kNothing;
  });
}

void Engine::announce_sleep(bool sleeps) {
  if (sleeps)
    sleepers_.fetch_add(1);
  else
    sleepers_.fetch_sub(1);
  pool_.announce_sleep(sleeps);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool Engine::begin_sleep(progress::Receiver receiver) {
  if (pool_.doorbell() < 0) return true;
  const auto lock = poller_.claim();
  const bool is_thread = receiver == progress::Receiver::kThread;
  if (is_thread && !rings_come_) return true;  // it looks from time to time
  const auto has_come = [this] {
    look_at_bells();
    return has_records();
  };
  const bool sleeps = fall_asleep([this](bool begins) { announce_sleep(begins); }, has_come);
  if (is_thread) is_announced_ = sleeps;
  return sleeps;
}

void Engine::end_sleep(progress::Receiver receiver, bool ready) {
  if (pool_.doorbell() < 0) return;
  if (receiver != progress::Receiver::kThread || std::exchange(is_announced_, false)) announce_sleep(false);
  if (ready) pool_.take_rings();
}

}  // namespace nupa::pool
