// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

namespace nupa::roce {

/// The receive budget of a socket: the bytes in flight to it of all senders together, and of each of them. It grows
/// while the socket is found empty about as often as not, and shrinks while packets always wait, since those leave the
/// caches. Any thread calls share(); one thread at a time calls the rest.
class ReceiveBudget {
 public:
  /// `socket_bytes`: size of its receive buffer, as the kernel counts it.
  explicit ReceiveBudget(uint32_t socket_bytes);

  /// Counts a look at the socket. `emptied`: the look ended because nothing was left.
  void count_look(bool emptied) { ++(emptied ? empty_looks_ : full_looks_); }
  /// A sender's packet arrived. *turn holds the period in which the sender was last counted.
  void count_sender(uint64_t* turn) {
    if (*turn == turn_) return;
    *turn = turn_;
    ++senders_;
  }
  /// Adjusts the budget if it is time. Returns false if it is not.
  bool choose(int64_t now);

  /// Bytes for each sender.
  uint32_t share() const { return share_.load(std::memory_order_relaxed); }
  /// Bytes for the responses to this process's READs, which come from some of the senders.
  uint32_t for_responses() const;

 private:
  const uint32_t whole_;
  uint32_t room_;
  std::atomic<uint32_t> share_;
  uint64_t turn_ = 1;
  int64_t turn_ends_ns_ = 0;
  int64_t count_ends_ns_ = 0;
  uint32_t senders_ = 0;  ///< counted in this period
  uint32_t senders_before_ = 0;
  uint32_t full_looks_ = 0;   ///< looks in this interval that ended before the socket was empty
  uint32_t empty_looks_ = 0;  ///< looks in this interval that emptied the socket
};

}  // namespace nupa::roce
