// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

#include "base/unique_fd.h"
#include "progress/timer_descriptor.h"
#include <nupa/result.h>

namespace nupa::progress {

/// The sockets on which packets arrive, and the right to take packets. They wake the serving thread, unless a thread of
/// the program has claimed the right and takes packets itself while it sleeps: then they wake only that thread.
///
/// A program that sleeps for each message comes back soon after it has sent. The answer may be there before it sleeps;
/// where two programs share a core it nearly always is. So the right stays with the program for a while after a claim
/// ends (a grant). Only then do packets wake the serving thread again, including those that came meanwhile.
///
/// The class has two epoll sets. The inner one holds the sockets. The outer one holds a timer that ends the grant, and
/// the inner one, whose events are disabled while the program has the right. A claim that follows a grant costs no
/// system call.
///
/// Memory order: `state_` changes by sequentially consistent updates, and the set's events by epoll_ctl(2), whose calls
/// the kernel executes one after the other. A claim changes the state first and disables the events second. end_grant()
/// enables them and then looks at the state: if the claim's call came before, it sees the claim and disables them
/// again.
///
/// end_grant() takes the timer and then looks at the state. lend() sets the timer and then changes the state, and its
/// thread may lose the processor between the two. A timer that ends there ends no grant. end_grant() notes it in the
/// state, and lend() sets the timer again.
class ReceiveRight {
 public:
  /// A grant lasts between half of this and all of it. A packet for a program that computes waits as long. A shorter
  /// grant would be renewed with each message of two programs on one core, at 3 to 7 us.
  static constexpr int64_t kGrantNs = 250'000;

  /// EMFILE, ENFILE, ENOMEM.
  Result<void> open();
  /// Adds a socket; closing the socket removes it. Any thread. ENOMEM, ENOSPC.
  Result<void> add(int fd);
  /// In a child of fork(), which must not use its parent's sockets.
  void close();

  /// Readable while packets wait.
  int packets_fd() const { return packets_.get(); }
  /// For the serving thread: readable while packets wait that are not left to the program, and when a grant has ended.
  /// Then it calls end_grant().
  int thread_fd() const { return thread_.get(); }
  /// Lets packets wake the serving thread again, if there is no new claim. False: no grant had ended.
  bool end_grant();
  /// True if packets do not wake the serving thread at present. Once true, it stays so until end_grant(). For the
  /// serving thread.
  bool is_of_program() const { return state_.load() != State::kThreads; }

  /// A claim that lasts as long as the object. False as a boolean: another thread has a claim.
  class Claim {
   public:
    explicit Claim(ReceiveRight& right) : right_(right), holds_(right.claim()) {}
    ~Claim() {
      if (holds_) right_.lend();
    }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    explicit operator bool() const { return holds_; }

   private:
    ReceiveRight& right_;
    const bool holds_;
  };

 private:
  enum class State : uint8_t {
    kThreads,
    kLent,
    kClaimed,
    kTimerTaken,  ///< as kClaimed, and end_grant() has taken the timer since the claim began
  };

  bool claim();
  void lend();
  bool wakes_thread(bool wakes) const;

  base::UniqueFd packets_;
  base::UniqueFd thread_;
  TimerDescriptor grant_;
  std::atomic<State> state_{State::kThreads};
  int64_t grant_ends_ns_ = 0;  ///< the time that the timer is set to; used by the claimer only
};

}  // namespace nupa::progress
