#pragma once
/// A collective as one rank sees it: a function that is left wherever it would have to wait, and goes on when asked to.
/// So several make progress side by side in one thread, and all of them can be ended at any wait.
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

/// A wait for a word to come to a value, with the rank that counts it up.
struct Wait : progress::WordWait {
  Wait() = default;
  /// Rank `by` counts `at` up to `until`. `asleep`: how many threads sleep there; null: nobody wakes them, since a wire
  /// brings the change.
  Wait(const std::atomic<uint32_t>* at, uint32_t until, uint32_t by = kNoRank, std::atomic<uint32_t>* asleep = nullptr)
      : WordWait{at, asleep, until}, rank(by) {}

  uint32_t rank = kNoRank;
};
static_assert(sizeof(Wait) == 24, "the rank lies behind the value");

/// The coroutine type of algorithms: `Steps f(...) { if (int e = co_await Wait{...}) co_return e; ... co_return 0; }`.
/// A wait gives 0, or the errno value by which all is ended: then there is nothing to be done but to return it. One
/// thread at a time. Arguments are kept as a coroutine keeps them: references must outlive it.
class [[nodiscard]] Steps {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  /// What one that waits for another, and that one, have in common.
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

    /// Frames of functions whose first argument has a pool come from there.
    template <class First, class... Others>
    requires requires(First& first) {
      { first.frames() } -> std::same_as<FramePool&>;
    }
    static void* operator new(size_t bytes, First& first, Others&...) {
      return FramePool::take(&first.frames(), bytes);
    }
    static void* operator new(size_t bytes) { return FramePool::take(nullptr, bytes); }
    static void operator delete(void* frame) { FramePool::give(frame); }

    Steps get_return_object() { return Steps(Handle::from_promise(*this)); }
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
    Call await_transform(Steps&& inner);
  };

  Steps(Steps&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Steps& operator=(Steps&&) = delete;
  ~Steps() {
    if (handle_) handle_.destroy();
  }

  bool is_done() const { return handle_.done(); }
  /// Of one that is not done: goes on as far as it can. True: now it is.
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
  /// Of one that is not done and has begun: what it waits for.
  const Wait& waits_for() const { return handle_.promise().own.wait; }
  /// Ends it: its waits give `error` from now on, and it is done when this returns.
  void end(int error) {
    handle_.promise().own.error = error;
    while (!go_on()) {
    }
  }
  /// Of one that is done.
  int result() const { return handle_.promise().result; }

 private:
  explicit Steps(Handle handle) : handle_(handle) {}
  Handle handle_;
};

/// `co_await` of another algorithm gives its result.
struct Steps::promise_type::Call {
  Steps inner;
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

inline Steps::promise_type::Call Steps::promise_type::await_transform(Steps&& inner) {
  return Call{std::move(inner), *this};
}

}  // namespace nupa::ccl
