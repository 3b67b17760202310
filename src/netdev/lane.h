#pragma once
#include <nupa/connect.h>
#include <nupa/device.h>

#include <atomic>
#include <deque>
#include <memory>

#include "netdev/ring.h"

namespace nupa::netdev {

/// What the other end of a lane has to know of it.
struct LaneCard {
  uint32_t qp_num = 0;
  uint32_t psn = 0;  ///< of the first packet that it expects
  uint32_t rkey = 0;
  uint64_t address = 0;  ///< of its RingWords
};

/// A queue pair between two nodes with a ring at each end. Where the other end's ring can be mapped, frames are put
/// into it where it lies, and a queue pair's message only wakes an end that sleeps; else they are put into a copy of it
/// here, and RDMA WRITEs bring over what has been added. One thread, which gives it all completions of its queue pair.
class Lane {
 public:
  /// `number` comes back in the completions: wr_id / kKinds. Errors: those of the device.
  static Result<std::unique_ptr<Lane>> create(Device& device, ProtectionDomain& pd, CompletionQueue& cq,
                                              uint64_t number);
  static constexpr uint64_t kKinds = 4;
  /// Completions of one lane that may wait for being polled: of all its sends and receives.
  static constexpr uint32_t kMaxCompletions = 1024;

  LaneCard card() const;
  uint64_t number() const { return number_; }
  /// From RESET to RTS. `path`: how the two ends' ports reach each other; the rest is the lane's own. errno values.
  int connect(const ConnectOptions& path, const LaneCard& peer);
  /// Takes the way that fits: frames may be sent from now on.
  void start_sending();

  // To the other end.
  /// Room for a frame of any size; nullptr: there is none until the other end has read on.
  std::byte* reserve();
  /// So many bytes have been put there.
  void commit(uint32_t bytes);
  /// All that has been committed is on its way.
  void flush();
  uint64_t unflushed() const { return writer_.tail() - published_; }
  /// This end is going to sleep, and wants to be woken when there is room. False: there is some now.
  bool wait_for_room();

  // From there.
  std::optional<std::span<const std::byte>> next();
  void done() { reader_.done(); }
  /// The other end may use again what is done.
  void give_back();
  /// This end is going to sleep, and wants to be woken by frames. False: there are some now.
  bool wait_for_frames();
  void awake();

  void on_completion(const WorkCompletion& completion);
  /// Asks the other end for an answer.
  void probe();
  /// By the last answer; 0: there was none.
  int64_t round_trip_ns() const { return round_trip_ns_.load(std::memory_order_relaxed); }
  /// It is over: an errno value.
  int error() const { return error_; }
  bool is_mapped() const { return remote_ != nullptr; }
  std::string_view transport() const { return qp_->transport(); }

 private:
  Lane() = default;
  enum Kind : uint64_t { kReceive, kData, kWord };
  bool post_receive();
  /// A message without bytes, which says what its 32 bits do.
  void tell(uint32_t word);
  void on_word(uint32_t word);
  void post_data();
  void write(uint64_t from, uint64_t bytes, bool tells);
  void fail(int error) {
    if (error_ == 0) error_ = error;
  }

  uint64_t number_ = 0;
  uint32_t psn_ = 0;
  std::unique_ptr<MemoryRegion> ring_;  ///< what comes here
  RingWords* words_ = nullptr;
  RingReader reader_{nullptr};
  uint64_t told_tail_ = 0;  ///< where the other end has written to, by its messages
  uint64_t given_back_ = 0;
  uint32_t messages_since_ = 0;  ///< data messages since the last word of what has been given back
  bool comes_by_messages_ = false;

  LaneCard peer_;
  std::shared_ptr<std::byte> remote_;  ///< the other end's ring, mapped
  RingWords* remote_words_ = nullptr;
  std::unique_ptr<MemoryRegion> copy_;  ///< else a copy of it
  RingWriter writer_{nullptr};
  uint64_t head_ = 0;                 ///< where the other end has read to, as far as is known here
  uint64_t published_ = 0;            ///< up to where it knows
  uint64_t skipped_at_ = UINT64_MAX;  ///< where the record that skips the rest of the ring is
  std::deque<uint64_t> unread_;       ///< ends of the messages that it has not read yet
  int64_t probed_at_ns_ = 0;
  std::atomic<int64_t> round_trip_ns_{0};  ///< read by any thread
  int error_ = 0;
  std::unique_ptr<QueuePair> qp_;  ///< goes first: it uses the memory
};

}  // namespace nupa::netdev
