// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "progress/lifecycle.h"
#include "progress/waiter.h"
#include "transport/pool/medium/layout.h"

namespace nupa::pool {

/// How long leave() waits for a thread that is writing to a peer.
inline constexpr int64_t kLeaveNs = 2'000'000;

/// The state of this process in the pool, and the places where its threads are writing to others. It joins once, and
/// leaves or loses the pool for good. Any thread.
class Membership {
 public:
  bool is_of_this_process() const { return own_.holds(); }
  bool has_joined() const { return is_joined_.load(); }
  bool is_lost() const { return is_lost_.load(); }
  bool is_usable() const { return is_joined_.load() && may_write() && own_.holds(); }

  void join() { is_joined_.store(true); }
  /// The pool is not this process's any more.
  void lose() { is_lost_.store(true); }
  /// Lets no thread begin to write, and waits for those that are writing. False: one is writing still, or the process
  /// is no member.
  bool leave() {
    if (!own_.holds() || !is_joined_.load() || has_left_.exchange(true)) return false;
    // A thread that writes has set its flag before it looks at has_left_.
    const auto is_writing = [&] {
      return std::any_of(writing_.begin(), writing_.end(), [](const auto& each) { return each.load(); });
    };
    return progress::wait_for([&] { return !is_writing(); }, progress::kHolderPolicy,
                              progress::Deadline::in_ns(kLeaveNs));
  }

  /// Threads that write at the same time have different ones.
  enum class Direction : uint8_t { kRing, kReport };
  /// A store to a peer's inbox, or to memory that it has granted. leave() waits for it; false: the process may not
  /// write.
  class Writing {
   public:
    Writing(Membership& membership, uint32_t channel, Direction direction)
        : flag_(membership.writing_[kDirections * channel + static_cast<uint32_t>(direction)]) {
      flag_.store(true);
      may_ = membership.may_write();
    }
    ~Writing() { flag_.store(false, std::memory_order_release); }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;
    explicit operator bool() const { return may_; }

   private:
    std::atomic<bool>& flag_;
    bool may_ = false;
  };

 private:
  static constexpr uint32_t kDirections = 2;
  bool may_write() const { return !has_left_.load() && !is_lost_.load(); }

  const progress::OfThisProcess own_;
  std::atomic<bool> is_joined_{false};
  std::atomic<bool> has_left_{false};
  std::atomic<bool> is_lost_{false};
  std::array<std::atomic<bool>, kDirections * kMaxChannels> writing_{};
};

}  // namespace nupa::pool
