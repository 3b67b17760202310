// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

#include "base/unique_fd.h"
#include "progress/timer_descriptor.h"
#include <nupa/result.h>

namespace nupa::progress {

/// The sockets on which packets arrive, and the right to take them. They wake the thread that serves them, unless a
/// thread of the program has claimed the right and takes packets itself while it sleeps: then they wake that one alone.
///
/// A program that sleeps for each message comes back soon after it has sent, and its answer may be there before: where
/// two programs share a core it nearly always is. So the right stays with the program for a while after a claim ends (a
/// loan), and only then packets wake the serving thread again, those too that came meanwhile.
///
/// It is two epoll sets: the inner one holds the sockets; the outer one holds the inner one, to which it is blind while
/// the right is the program's, and a timer that ends the loan. A claim that follows a loan costs no system call.
class ReceiveRight {
 public:
  /// A loan lasts between half of this and all of it. A packet that comes to a program which computes waits as long; a
  /// shorter one would be renewed with each message of two programs on one core, at 3 to 7 us.
  static constexpr int64_t kLoanNs = 250'000;

  /// EMFILE, ENFILE, ENOMEM.
  Result<void> open();
  /// One socket more; closing it takes it out. Any thread. ENOMEM, ENOSPC.
  Result<void> add(int fd);
  /// In a child: it has no right to the sockets of its parent.
  void close();

  /// Readable while packets wait.
  int packets_fd() const { return packets_.get(); }
  /// For the serving thread: readable while packets wait that are not the program's, and when a loan is over. Then it
  /// calls end_loan().
  int thread_fd() const { return thread_.get(); }
  /// Packets wake the serving thread again, if no claim has come. False: no loan was over.
  bool end_loan();

  /// A claim, for as long as the object lives. Empty: another thread has one.
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
  enum class State : uint8_t { kThreads, kLent, kClaimed };

  bool claim();
  void lend();
  bool wakes_thread(bool wakes) const;

  base::UniqueFd packets_;
  base::UniqueFd thread_;
  TimerDescriptor loan_;
  std::atomic<State> state_{State::kThreads};
  int64_t loan_ends_ns_ = 0;  ///< as the timer is set; the claimer's
};

}  // namespace nupa::progress
