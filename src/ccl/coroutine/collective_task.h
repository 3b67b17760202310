// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A collective task: the coroutine that runs one rank's part of a collective. It suspends wherever it has to wait.
/// Several tasks therefore make progress side by side in one thread, and all of them can be ended at any wait.
#include <atomic>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "ccl/error/cause.h"
#include "ccl/coroutine/frame_pool.h"
#include "progress/words.h"

namespace nupa::ccl {

/// A wait until a word reaches a value, with the rank that counts the word up.
struct Wait : progress::WordWait {
  Wait() = default;
  /// Rank `by` counts the word `at` up to `until`. `asleep` counts the threads that sleep at the word; it is null if
  /// the change arrives by RDMA, which wakes no sleeper.
  Wait(const std::atomic<uint32_t>* at, uint32_t until, uint32_t by = kNoRank, std::atomic<uint32_t>* asleep = nullptr)
      : WordWait{at, asleep, until}, rank(by) {}

  uint32_t rank = kNoRank;
};
static_assert(sizeof(Wait) == 24, "the rank lies behind the value");

/// The coroutine type of algorithms: `CollectiveTask f(...) { if (int e = co_await Wait{...}) co_return e; ...
/// co_return 0; }`. `co_await` of a wait returns 0, or the errno value of end(), which the algorithm then has to
/// return. Not thread-safe. As in every coroutine, references among the arguments must outlive it.
class [[nodiscard]] CollectiveTask {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  /// State that a task shares with the tasks that it awaits.
  struct State {
    std::coroutine_handle<> innermost;
    Wait wait;
    int error = 0;
  };

  struct promise_type {
    State own;
    State* state = &own;
    std::coroutine_handle<> caller;
    int result = 0;

    /// If the first argument of the coroutine has a frame pool, the frame comes from that pool. Always inlined: without
    /// optimisation GCC takes delete for that of another function (-Wmismatched-new-delete).
    template <class First, class... Others>
    requires requires(First& first) {
      { first.frames() } -> std::same_as<FramePool&>;
    }
    [[gnu::always_inline]] static void* operator new(size_t bytes, First& first, Others&...) {
      return FramePool::take(&first.frames(), bytes);
    }
    [[gnu::always_inline]] static void* operator new(size_t bytes) { return FramePool::take(nullptr, bytes); }
    [[gnu::always_inline]] static void operator delete(void* frame) { FramePool::give(frame); }

    CollectiveTask get_return_object() { return CollectiveTask(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    struct Return {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(Handle ended) noexcept {
        promise_type& promise = ended.promise();
        if (!promise.caller) return std::noop_coroutine();
        promise.state->innermost = promise.caller;
        return promise.caller;
      }
      void await_resume() noexcept {}
    };
    Return final_suspend() noexcept { return {}; }
    void return_value(int value) { result = value; }
    [[noreturn]] void unhandled_exception() noexcept { std::terminate(); }

    struct Pause {
      promise_type& promise;
      Wait wait;
      // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the analyzer does not see how a promise is made
      bool await_ready() const { return promise.state->error != 0 || wait.is_over(); }
      void await_suspend(Handle) const { promise.state->wait = wait; }
      int await_resume() const { return promise.state->error; }
    };
    Pause await_transform(Wait wait) { return {*this, wait}; }
    struct Call;
    Call await_transform(CollectiveTask&& inner);
  };

  CollectiveTask(CollectiveTask&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  CollectiveTask& operator=(CollectiveTask&&) = delete;
  ~CollectiveTask() {
    if (handle_) handle_.destroy();
  }

  bool is_done() const { return handle_.done(); }
  /// Runs a task that is not done as far as it can. Returns true if it is done now.
  bool go_on() {
    State& state = handle_.promise().own;
    if (!state.innermost) {
      state.innermost = handle_;
    } else if (state.error == 0 && !state.wait.is_over()) {
      return false;
    }
    state.innermost.resume();
    return handle_.done();
  }
  /// The wait of a task that has started and is not done.
  const Wait& waits_for() const { return handle_.promise().own.wait; }
  /// Ends the task: its waits return `error` from now on, and it is done when this function returns.
  void end(int error) {
    handle_.promise().own.error = error;
    while (!go_on()) {
    }
  }
  /// The result of a task that is done.
  int result() const { return handle_.promise().result; }

 private:
  explicit CollectiveTask(Handle handle) : handle_(handle) {}
  Handle handle_;
};

/// `co_await` of another task returns its result.
struct CollectiveTask::promise_type::Call {
  CollectiveTask inner;
  promise_type& caller;
  bool await_ready() const { return false; }
  std::coroutine_handle<> await_suspend(Handle handle) {
    promise_type& called = inner.handle_.promise();
    called.caller = handle;
    called.state = caller.state;
    caller.state->innermost = inner.handle_;
    return inner.handle_;
  }
  int await_resume() const { return inner.result(); }
};

inline CollectiveTask::promise_type::Call CollectiveTask::promise_type::await_transform(CollectiveTask&& inner) {
  return Call{std::move(inner), *this};
}

}  // namespace nupa::ccl
