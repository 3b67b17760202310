// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Programs that run in turns in one thread, with a time of their own. Between any two steps of one of them another one
/// may go on. A run depends on the seed alone.
#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace model {

class Fibers {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  /// The time that a step takes.
  static constexpr int64_t kStepNs = 20;

  explicit Fibers(uint64_t seed) : random_(seed) {}
  /// Programs that have not ended are forgotten, with all that is on their stacks.
  ~Fibers() = default;
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  uint64_t below(uint64_t number) { return random_() % number; }
  bool one_in(uint64_t number) { return below(number) == 0; }

  /// Adds a program that begins with the next run(), or soon in this one. Returns its number.
  uint32_t add(std::function<void()> body);
  /// Runs the programs until `done()` is true, until none can go on, after `limit` steps, or after a fault. Returns
  /// true if none of the latter two ended the run.
  bool run(uint64_t limit, const std::function<bool()>& done = {});
  /// Calls `event` at that time of a run, while no program runs.
  void plan(int64_t when_ns, std::function<void()> event) { events_.emplace(when_ns, std::move(event)); }
  bool has_plans() const { return !events_.empty(); }

  int64_t now_ns() const { return now_ns_ + (running_ != kNone ? fibers_[running_]->passed_ns : 0); }
  uint64_t steps() const { return steps_; }
  bool is_done(uint32_t number) const { return fibers_[number]->is_done; }
  /// The program goes on at `when_ns` at the earliest.
  void pause(uint32_t number, int64_t when_ns);
  /// A program that sleeps wakes up then, if it would sleep for longer, and unless it is paused.
  void wake(uint32_t number, int64_t when_ns);
  /// The program never goes on, and keeps its stack.
  void stop(uint32_t number) { fibers_[number]->is_stopped = true; }
  /// The program has ended as if at its next step. Its code runs on to its end at once, but nothing that it does
  /// counts: each of its steps has to check is_killed().
  void kill(uint32_t number);
  /// The same when the program has done so many further steps.
  void kill_after(uint32_t number, uint64_t steps) { fibers_[number]->steps_left = steps; }
  void kill_all();
  /// Called for each program that is killed.
  std::function<void(uint32_t number)> on_killed;

  // Within a program.
  /// The program that runs; kNone: none.
  uint32_t running() const { return running_; }
  /// True if the program that runs was killed.
  bool is_killed() const { return running_ != kNone && fibers_[running_]->is_killed; }
  /// Others may go on here. Outside of programs it does nothing.
  void step() {
    if (running_ == kNone) return;
    Fiber& fiber = *fibers_[running_];
    if (fiber.is_killed) return;
    ++steps_;
    now_ns_ += kStepNs;
    if (fiber.steps_left != UINT64_MAX && fiber.steps_left-- == 0) return kill(running_);
    if (--stretch_ == 0 || (!events_.empty() && events_.begin()->first <= now_ns_)) end_stretch();
  }
  void sleep_until(int64_t when_ns);
  /// Ends the run. Does not return in a program that was not killed.
  void fault(const std::string& text);
  const std::string& fault() const { return fault_; }

 private:
  struct Fiber {
    std::function<void()> body;
    std::unique_ptr<char[]> stack;
    ucontext_t context{};
    bool has_begun = false;
    bool is_done = false;
    bool is_stopped = false;
    bool is_killed = false;
    int64_t wakes_at_ns = 0;
    int64_t paused_until_ns = 0;
    int64_t passed_ns = 0;  ///< after its end: the time for which it would have slept
    uint64_t steps_left = UINT64_MAX;
  };
  static void enter();
  void switch_to(uint32_t number);
  void take_stack(Fiber& fiber);
  void give_way();
  /// Another program goes on, or the same one.
  void end_stretch();
  /// Finds the programs that can go on. Returns when the next one can.
  int64_t find_able();
  uint32_t draw();
  void run_killed();

  inline static Fibers* entering_ = nullptr;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::multimap<int64_t, std::function<void()>> events_;
  std::vector<uint32_t> able_;
  ucontext_t scheduler_{};
  uint32_t running_ = kNone;
  uint32_t next_ = kNone;  ///< drawn by the program that ran
  uint64_t until_ = 0;     ///< steps
  uint64_t stretch_ = 0;
  uint64_t steps_ = 0;
  int64_t now_ns_ = 1'000'000'000;
  std::string fault_;
};

}  // namespace model
