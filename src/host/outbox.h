// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <memory>
#include <utility>

#include "host/peer.h"
#include "host/wire.h"

namespace nupa::host {

/// The messages to another process. If its socket has no room, they wait here and are sent in order. Under the lock of
/// the owner, which calls send_waiting() when the socket has room. No call waits for the other process.
class Outbox {
 public:
  /// The most messages that may wait. Beyond it, messages of the communication manager are lost; it repeats them. A
  /// connection has one on its way, and another one if the first is repeated or the connection ends at once. So as many
  /// connections as a slot has queue pairs can begin together.
  static constexpr size_t kMostMessages = 2 * size_t{shm::kSlotQp};
  /// The most memory of waiting messages: the cost of another process while it is stopped. Most of it is used only if
  /// that process has the descriptors of all possible channels.
  static constexpr size_t kMostBytes = size_t{10} << 20;

  /// `fd`, unless it is -1, is sent with the message; that of a channel stays open until forget_channel(). EAGAIN: too
  /// many messages wait, and this one is lost. EPIPE, ECONNRESET: the other process exited.
  Result<void> send(int socket, const Message& message, int fd = -1, const Payload* payload = nullptr);
  /// Sends as many messages as the socket has room for. If the other process exited, drops them all.
  void send_waiting(int socket);
  /// Number of messages that wait.
  size_t size() const { return waiting_.size(); }
  /// Drops the waiting messages about this completion channel.
  void forget_channel(uint32_t index);
  void clear() { waiting_.clear(); }
  /// Number of messages lost since the last call.
  size_t take_lost() { return std::exchange(lost_, 0); }

 private:
  struct Waiting {
    Message message;
    int fd;
    std::unique_ptr<Payload> payload;
  };
  /// At most two messages wait for each channel: that it is there, and that it was removed.
  static_assert(kMostMessages * (sizeof(Waiting) + sizeof(Payload)) + 2 * size_t{Peer::kMaxChannels} * sizeof(Waiting) <
                kMostBytes);

  std::deque<Waiting> waiting_;
  size_t lost_ = 0;
};

}  // namespace nupa::host
