// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A thread that is stopped in the middle of an allocation, with the locks that it holds there. Replaces the operators
/// of the program: included by one of its files.
#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <new>
#include <thread>
#include <utility>

namespace nupa::test {

/// Called once in this thread, before its next allocation.
inline thread_local std::function<void()>* before_allocation = nullptr;

/// A thread that makes a call and stops at the call's first allocation, until the object ends. False in stands(): the
/// call has come back without one.
class HeldAllocation {
 public:
  explicit HeldAllocation(const std::function<void()>& call)
      : thread_([this, call] {
          std::function<void()> step = [this] {
            reached_.set_value(true);
            let_go_.get_future().wait();
          };
          before_allocation = &step;
          call();
          if (std::exchange(before_allocation, nullptr) != nullptr) reached_.set_value(false);
        }),
        stands_(reached_.get_future().get()) {}
  ~HeldAllocation() {
    let_go_.set_value();
    thread_.join();
  }
  HeldAllocation(const HeldAllocation&) = delete;
  HeldAllocation& operator=(const HeldAllocation&) = delete;
  bool stands() const { return stands_; }

 private:
  std::promise<bool> reached_;
  std::promise<void> let_go_;
  std::thread thread_;
  bool stands_;
};

}  // namespace nupa::test

void* operator new(size_t size, const std::nothrow_t&) noexcept {
  if (auto* step = std::exchange(nupa::test::before_allocation, nullptr); step != nullptr) (*step)();
  return std::malloc(size == 0 ? 1 : size);
}
void* operator new(size_t size) {
  if (void* const memory = operator new(size, std::nothrow); memory != nullptr) return memory;
  throw std::bad_alloc();
}
// Not inlined: GCC would find free() of what an operator has given.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
