// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "ccl/channel/message_channel.h"
#include "ccl/p2p/message.h"

namespace nupa::ccl {

/// The messages between this rank and one peer. A message is a header and its bytes, divided into fragments. The first
/// fragment begins with the header.
class MessagePeer {
 public:
  using Pointer = std::shared_ptr<Message>;
  /// Returns the receive that takes the next message, and removes it so that no other message matches it. Null: there
  /// is none.
  using Match = std::function<Pointer(uint32_t source, int32_t tag)>;

  explicit MessagePeer(uint32_t rank) : rank_(rank) {}

  void set_channel(MessageChannel* channel) { channel_ = channel; }
  bool has_channel() const { return channel_ != nullptr; }
  MessageChannel& channel() { return *channel_; }

  void add_send(Pointer message) { sends_.push_back(std::move(message)); }
  bool has_sends() const { return !sends_.empty(); }
  /// Sends as much as there is room for. Returns true if anything was sent.
  bool push();
  /// Takes what has arrived. `keeps` returns whether a message without a receive is stored, so that later ones can
  /// arrive; otherwise it stays in the channel, and the sender has to wait. Returns true if anything arrived. There may
  /// be more after give_kept().
  bool pull(const Match& match, const std::function<bool()>& keeps);
  bool is_coming() const { return is_coming_; }
  /// Gives a receive the oldest stored message that matches it. Returns false if there is none.
  bool give_kept(Message& receive);
  /// Stores a message from this rank to itself.
  void keep(const Message& send);
  /// Ends all messages, including those that have arrived in part. Calls `finish` for each message that a thread may
  /// wait for.
  void end(const std::function<void(Message&)>& finish);

 private:
  struct Header {
    uint64_t bytes;
    int32_t tag;
    uint8_t type;  ///< Message::type
    uint8_t unused[3];
  };
  static_assert(sizeof(Header) == 16);
  struct Kept {
    int32_t tag;
    uint8_t type;
    std::vector<std::byte> bytes;
  };

  void begin(const Match& match, const std::function<bool()>& keeps);
  void take(const std::byte* data, size_t bytes);

  const uint32_t rank_;
  MessageChannel* channel_ = nullptr;
  std::deque<Pointer> sends_;
  // The message that is arriving.
  bool is_coming_ = false;
  Header header_{};
  Pointer receive_;
  size_t came_ = 0;
  std::deque<Kept> kept_;
};

}  // namespace nupa::ccl
