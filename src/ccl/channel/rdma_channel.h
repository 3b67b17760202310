// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/device.h>

#include <atomic>

#include "ccl/channel/message_channel.h"

namespace nupa::ccl {

/// The immediate data of a message: the channel's kind, and either the length of a fragment or the number of taken
/// fragments.
struct ImmediateData {
  ChannelKind channel;
  bool is_taken;
  uint32_t value;

  uint32_t packed() const {
    return static_cast<uint32_t>(channel) << 31 | static_cast<uint32_t>(is_taken) << 30 | value;
  }
  static ImmediateData unpacked(uint32_t word) {
    return {static_cast<ChannelKind>(word >> 31), (word >> 30 & 1) != 0, word & 0x3fffffff};
  }
};

/// A channel by RDMA WRITE with immediate, which writes fragments into the peer's channel buffer. The thread that polls
/// completions passes them to note() and note_arrived().
///
/// Memory order: the completion queue orders the peer's fragments before their completions. Within this process the
/// thread that polls releases `arrived_`, `taken_` and `completed_`, and the rank's thread acquires them by a Wait: the
/// first with the lengths of the fragments, the others before it writes into a slot again. No thread sleeps at these
/// words (their sleepers are null), so they need no full barrier.
class RdmaChannel final : public MessageChannel {
 public:
  /// This rank's side.
  struct Here {
    std::byte* channel;
    uint32_t lkey;         ///< of the channel
    uint32_t memory_lkey;  ///< of all memory
  };
  /// The peer's side, with the address and key as the queue pair uses them.
  struct There {
    uint64_t channel;
    uint32_t rkey;
  };
  RdmaChannel(QueuePair& qp, ChannelKind kind, const Here& here, const There& there, uint32_t rank,
              const ChannelLayout& layout)
      : qp_(qp), kind_(kind), here_(here), there_(there), rank_(rank), layout_(layout) {}

  size_t fragment_bytes() const override { return layout_.fragment_bytes(); }
  Wait can_send() const override { return {&taken_, sent_ + 1 - layout_.fragments(), rank_, nullptr}; }
  std::byte* room() override { return here_.channel + layout_.out_slot(sent_); }
  void send(size_t bytes) override { send_from(room(), bytes, here_.lkey); }
  bool send_zero_copy(const void* data, size_t bytes) override {
    send_from(data, bytes, here_.memory_lkey);
    zero_copy_end_ = posted_;
    return true;
  }
  bool has_zero_copy_sends() const override {
    return static_cast<int32_t>(zero_copy_end_ - completed_.load(std::memory_order_acquire)) > 0;
  }
  Wait can_receive() const override { return {&arrived_, received_ + 1, rank_, nullptr}; }
  const std::byte* front() const override { return here_.channel + layout_.in_slot(received_); }
  size_t front_bytes() const override { return lengths_[received_ % layout_.fragments()]; }
  void pop() override;
  bool is_used() const override { return posted_ != 0 || arrived_.load(std::memory_order_acquire) != 0; }
  void pop_last() override {
    ++received_;
    parted_.store(true, std::memory_order_release);
  }
  Wait all_arrived() const override { return {&completed_, posted_, rank_, nullptr}; }

  /// Records a received message. The thread that polls calls it.
  void note(const ImmediateData& note);
  /// Records that a message has arrived at the peer.
  void note_arrived() { completed_.fetch_add(1, std::memory_order_release); }
  /// Records that the connection has failed. Returns false if the peer had sent its last fragment before.
  bool note_break();

 private:
  void send_from(const void* data, size_t bytes, uint32_t lkey);
  void post(SendWr& wr);

  QueuePair& qp_;
  const ChannelKind kind_;
  const Here here_;
  const There there_;
  const uint32_t rank_;
  const ChannelLayout layout_;
  uint32_t sent_ = 0;
  uint32_t received_ = 0;
  uint32_t posted_ = 0;
  std::atomic<uint32_t> completed_{0};
  uint32_t zero_copy_end_ = 0;  ///< value of `posted_` after the last send_zero_copy()
  std::atomic<bool> parted_{false};
  uint32_t unreported_ = 0;  ///< taken fragments that were not reported to the peer
  std::atomic<uint32_t> arrived_{0};
  std::atomic<uint32_t> taken_{0};
  uint32_t lengths_[kMostFragments] = {};
};

}  // namespace nupa::ccl
