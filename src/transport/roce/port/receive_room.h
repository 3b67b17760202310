#pragma once
#include <atomic>
#include <cstdint>

namespace nupa::roce {

/// How much may be under way to a socket, of all who send to it together and of each of them. It grows while the socket
/// is found empty about as often as not, and shrinks while packets always wait: those grow cold. share() from any
/// thread, all else by one at a time.
class ReceiveRoom {
 public:
  /// `socket_bytes`: of its receive buffer, as the kernel counts them.
  explicit ReceiveRoom(uint32_t socket_bytes);

  /// A look at the socket ended as nothing was left, or before.
  void count_look(bool emptied) { ++(emptied ? empty_looks_ : full_looks_); }
  /// Something came from a sender; *turn is where this keeps when it did last.
  void count_sender(uint64_t* turn) {
    if (*turn == turn_) return;
    *turn = turn_;
    ++senders_;
  }
  /// Chooses anew if it is time; false: it is not.
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
  uint32_t senders_ = 0;  ///< in this count
  uint32_t senders_before_ = 0;
  uint32_t full_looks_ = 0;   ///< in this turn: that ended before the socket was empty
  uint32_t empty_looks_ = 0;  ///< and that found its end
};

}  // namespace nupa::roce
