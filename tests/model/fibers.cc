// SPDX-License-Identifier: Apache-2.0
#include "fibers.h"

#include <algorithm>
#include <utility>

namespace model {
namespace {

constexpr size_t kStackBytes = 256 << 10;

/// Stacks of programs that have ended, because new ones cost page faults.
std::vector<std::unique_ptr<char[]>>& spare_stacks() {
  static std::vector<std::unique_ptr<char[]>> stacks;
  return stacks;
}

}  // namespace

uint32_t Fibers::add(std::function<void()> body) {
  auto& fiber = *fibers_.emplace_back(std::make_unique<Fiber>());
  fiber.body = std::move(body);
  auto& spare = spare_stacks();
  if (spare.empty()) {
    fiber.stack.reset(new char[kStackBytes]);
  } else {
    fiber.stack = std::move(spare.back());
    spare.pop_back();
  }
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = &scheduler_;
  makecontext(&fiber.context, &Fibers::enter, 0);
  return static_cast<uint32_t>(fibers_.size() - 1);
}

void Fibers::enter() {
  Fibers& fibers = *entering_;
  const uint32_t number = fibers.running_;
  Fiber& fiber = *fibers.fibers_[number];
  fiber.has_begun = true;
  fiber.body();
  fiber.is_done = true;
  fibers.give_way();
}

void Fibers::switch_to(uint32_t number) {
  entering_ = this;
  running_ = number;
  Fiber& fiber = *fibers_[number];
  swapcontext(&scheduler_, &fiber.context);
  running_ = kNone;
  if (fiber.is_done) take_stack(fiber);
}

void Fibers::take_stack(Fiber& fiber) {
  fiber.body = nullptr;
  if (fiber.stack != nullptr) spare_stacks().push_back(std::move(fiber.stack));
}

void Fibers::give_way() {
  Fiber& fiber = *fibers_[running_];
  swapcontext(&fiber.context, &scheduler_);
}

int64_t Fibers::find_able() {
  able_.clear();
  int64_t next = INT64_MAX;
  for (uint32_t i = 0; i < fibers_.size(); ++i) {
    const Fiber& fiber = *fibers_[i];
    if (fiber.is_done || fiber.is_stopped) continue;
    const int64_t goes_on = std::max(fiber.wakes_at_ns, fiber.paused_until_ns);
    if (goes_on <= now_ns_)
      able_.push_back(i);
    else
      next = std::min(next, goes_on);
  }
  return next;
}

uint32_t Fibers::draw() {
  // Stretches of one program's steps: any program may be away for long.
  stretch_ = 1 + below(one_in(8) ? 400 : 12);
  return able_[able_.size() == 1 ? 0 : below(able_.size())];
}

void Fibers::end_stretch() {
  const bool has_event = !events_.empty() && events_.begin()->first <= now_ns_;
  find_able();
  if (has_event || steps_ >= until_ || able_.empty()) return give_way();
  // Changing the program costs system calls.
  const uint32_t number = draw();
  if (number == running_) return;
  next_ = number;
  give_way();
}

bool Fibers::run(uint64_t limit, const std::function<bool()>& done) {
  until_ = steps_ + limit;
  for (;;) {
    run_killed();
    while (!events_.empty() && events_.begin()->first <= now_ns_) {
      const auto event = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      event();
    }
    run_killed();
    if (done && done()) return true;
    if (!fault_.empty() || steps_ >= until_) return false;
    uint32_t number = std::exchange(next_, kNone);
    // An event can have stopped the program that was drawn.
    if (number == kNone || fibers_[number]->is_done || fibers_[number]->paused_until_ns > now_ns_) {
      const int64_t next = find_able();
      if (able_.empty()) {
        const int64_t event = events_.empty() ? INT64_MAX : events_.begin()->first;
        if (std::min(next, event) == INT64_MAX) return true;
        now_ns_ = std::min(next, event);
        continue;
      }
      number = draw();
    }
    switch_to(number);
  }
}

void Fibers::pause(uint32_t number, int64_t when_ns) {
  int64_t& until = fibers_[number]->paused_until_ns;
  until = std::max(until, when_ns);
}

void Fibers::wake(uint32_t number, int64_t when_ns) {
  int64_t& wakes_at = fibers_[number]->wakes_at_ns;
  wakes_at = std::min(wakes_at, when_ns);
}

void Fibers::kill(uint32_t number) {
  Fiber& fiber = *fibers_[number];
  if (fiber.is_done || fiber.is_killed) return;
  fiber.is_killed = true;
  if (on_killed) on_killed(number);
}

void Fibers::run_killed() {
  for (uint32_t i = 0; i < fibers_.size(); ++i) {
    Fiber& fiber = *fibers_[i];
    if (!fiber.is_killed || fiber.is_done) continue;
    if (fiber.has_begun) {
      while (!fiber.is_done) switch_to(i);
    } else {
      fiber.is_done = true;
      take_stack(fiber);
    }
  }
}

void Fibers::kill_all() {
  on_killed = nullptr;
  for (uint32_t i = 0; i < fibers_.size(); ++i) kill(i);
  run_killed();
}

void Fibers::sleep_until(int64_t when_ns) {
  if (running_ == kNone) return;
  Fiber& fiber = *fibers_[running_];
  if (fiber.is_killed) {
    fiber.passed_ns += std::max<int64_t>(when_ns - now_ns(), 0);
    return;
  }
  fiber.wakes_at_ns = when_ns;
  give_way();
}

void Fibers::fault(const std::string& text) {
  if (is_killed()) return;
  if (fault_.empty()) fault_ = text;
  if (running_ == kNone) return;
  // Until the object is destroyed.
  while (!fibers_[running_]->is_killed) give_way();
}

}  // namespace model
