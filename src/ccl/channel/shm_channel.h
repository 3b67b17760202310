// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ccl/channel/message_channel.h"
#include "ccl/coroutine/waiter.h"
#include "progress/words.h"

namespace nupa::ccl {

/// A channel between ranks that map each other's arenas: the sender writes into the peer's channel buffer.
///
/// Memory order, on any processor: send() writes the fragment and its length, and releases them by counting `arrived`
/// up. The receiver acquires them by a Wait for `arrived`. pop() releases the slot by counting `taken` up after the
/// fragment was read, and the sender acquires it by a Wait for `taken`. Each word has one writer.
/// progress::count_up() has the barrier between a word and the look at its sleepers.
class ShmChannel final : public MessageChannel {
 public:
  /// `here`: the channel buffer of this rank. `there`: that of the peer. `rank`: the peer.
  ShmChannel(std::byte* here, std::byte* there, uint32_t rank, const ChannelLayout& layout, const WaitRules& rules)
      : here_(here), there_(there), rank_(rank), layout_(layout), rules_(rules) {}

  size_t fragment_bytes() const override { return layout_.fragment_bytes(); }
  Wait can_send() const override {
    return {&head(here_).taken, sent_ + 1 - layout_.fragments(), rank_, &head(here_).sleepers};
  }
  std::byte* room() override { return there_ + layout_.in_slot(sent_); }
  void send(size_t bytes) override {
    ChannelHead& peer = head(there_);
    peer.lengths[sent_ % layout_.fragments()] = static_cast<uint32_t>(bytes);
    progress::count_up(peer.arrived, ++sent_, peer.sleepers, rules_.fences());
  }
  bool send_zero_copy(const void*, size_t) override { return false; }
  bool has_zero_copy_sends() const override { return false; }
  Wait can_receive() const override { return {&head(here_).arrived, received_ + 1, rank_, &head(here_).sleepers}; }
  const std::byte* front() const override { return here_ + layout_.in_slot(received_); }
  size_t front_bytes() const override { return head(here_).lengths[received_ % layout_.fragments()]; }
  void pop() override {
    ChannelHead& peer = head(there_);
    progress::count_up(peer.taken, ++received_, peer.sleepers, rules_.fences());
  }
  bool is_used() const override { return sent_ != 0 || head(here_).arrived.load(std::memory_order_acquire) != 0; }
  void pop_last() override { pop(); }
  /// The data has arrived when send() returns.
  Wait all_arrived() const override { return {&head(here_).taken, head(here_).taken.load(), rank_}; }

 private:
  static ChannelHead& head(std::byte* channel) { return *reinterpret_cast<ChannelHead*>(channel); }

  std::byte* const here_;
  std::byte* const there_;
  const uint32_t rank_;
  const ChannelLayout layout_;
  const WaitRules rules_;
  uint32_t sent_ = 0;
  uint32_t received_ = 0;
};

}  // namespace nupa::ccl
