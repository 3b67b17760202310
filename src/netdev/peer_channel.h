// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/connect.h>
#include <nupa/device.h>

#include <atomic>
#include <deque>
#include <memory>

#include "netdev/ring.h"

namespace nupa::netdev {

/// The data about a channel that the peer needs.
struct ChannelInfo {
  uint32_t qp_num = 0;
  uint32_t psn = 0;  ///< PSN of the first packet that this side expects
  uint32_t rkey = 0;
  uint64_t address = 0;  ///< address of the RingWords
};

/// A channel is a queue pair between two nodes with a ring on each side. If the peer's ring can be mapped, frames are
/// written directly into it, and the queue pair's messages only wake a sleeping peer. Otherwise frames are written into
/// a local copy of the ring, and RDMA WRITEs transfer what was added. One thread uses the channel and passes it all
/// completions of its queue pair.
class PeerChannel {
 public:
  /// Creates a channel. Its completions have the wr_id `number` * kKinds + kind. Returns the errors of the device.
  static Result<std::unique_ptr<PeerChannel>> create(Device& device, ProtectionDomain& pd, CompletionQueue& cq,
                                                     uint64_t number);
  static constexpr uint64_t kKinds = 4;
  /// The most completions of one channel that may wait for a poll, for all its sends and receives.
  static constexpr uint32_t kMaxCompletions = 1024;

  ChannelInfo info() const;
  uint64_t number() const { return number_; }
  /// Moves the queue pair from RESET to RTS. `path` describes the route between the two ports; the channel sets the
  /// other options. Returns an errno value.
  int connect(const ConnectOptions& path, const ChannelInfo& peer);
  /// Selects the mapped ring or the copy. Frames may be sent afterwards.
  void start_sending();

  // Sending.
  /// Returns room for a frame of any size, or nullptr until the peer has read more.
  std::byte* reserve();
  /// Commits `bytes` that were written at reserve().
  void commit(uint32_t bytes);
  /// Publishes all committed frames to the peer.
  void flush();
  uint64_t unflushed() const { return writer_.tail() - published_; }
  /// Requests a wakeup when there is room, before this side sleeps. Returns false if there is room now.
  bool wait_for_room();

  // Receiving.
  std::optional<std::span<const std::byte>> next();
  void done() { reader_.done(); }
  /// Permits the peer to reuse the bytes of all frames that are done.
  void give_back();
  /// Requests a wakeup when frames arrive, before this side sleeps. Returns false if there are frames now.
  bool wait_for_frames();
  void awake();

  void on_completion(const WorkCompletion& completion);
  /// Sends a probe that the peer answers.
  void probe();
  /// Returns the round-trip time of the last probe, or 0 if none was answered.
  int64_t round_trip_ns() const { return round_trip_ns_.load(std::memory_order_relaxed); }
  /// Returns the errno value of the failure that ended the channel, or 0.
  int error() const { return error_; }
  bool is_mapped() const { return remote_ != nullptr; }
  std::string_view transport() const { return qp_->transport(); }

 private:
  PeerChannel() = default;
  enum Kind : uint64_t { kReceive, kData, kWord };
  bool post_receive();
  /// Sends a zero-length message whose 32 bits of immediate data are `word`.
  void send_word(uint32_t word);
  void on_word(uint32_t word);
  void post_data();
  void write(uint64_t from, uint64_t bytes, bool has_word);
  void fail(int error) {
    if (error_ == 0) error_ = error;
  }

  uint64_t number_ = 0;
  uint32_t psn_ = 0;
  std::unique_ptr<MemoryRegion> ring_;  ///< ring that the peer writes to
  RingWords* words_ = nullptr;
  RingReader reader_{nullptr};
  uint64_t announced_tail_ = 0;  ///< tail of the peer's writes, from its messages
  uint64_t given_back_ = 0;
  uint32_t messages_since_ = 0;  ///< data messages since the last kReadUpTo message
  bool comes_by_messages_ = false;

  ChannelInfo peer_;
  std::shared_ptr<std::byte> remote_;  ///< the peer's ring, mapped
  RingWords* remote_words_ = nullptr;
  std::unique_ptr<MemoryRegion> copy_;  ///< local copy of the peer's ring, if that is not mapped
  RingWriter writer_{nullptr};
  uint64_t head_ = 0;                 ///< position up to which the peer has read, as last known
  uint64_t published_ = 0;            ///< position up to which frames were published
  uint64_t skipped_at_ = UINT64_MAX;  ///< position of the record that skips the rest of the ring
  std::deque<uint64_t> unread_;       ///< end positions of messages that the peer has not read yet
  int64_t probed_at_ns_ = 0;
  std::atomic<int64_t> round_trip_ns_{0};  ///< read by any thread
  int error_ = 0;
  std::unique_ptr<QueuePair> qp_;  ///< destroyed first, because it uses the memory
};

}  // namespace nupa::netdev
