#pragma once
#include <deque>
#include <memory>
#include <utility>

#include "host/peer.h"
#include "host/wire.h"

namespace nupa::host {

/// The messages to another process: what its socket has no room for waits here and leaves in order. Under the lock of
/// its owner, who calls send_waiting() when the socket has room. No call waits for the other process.
class Outbox {
 public:
  /// So many messages may wait before those of the communication manager are lost, which repeats them. A connection has
  /// one on its way, and another one where the first is repeated or the connection ends at once: so many connections as
  /// a slot has queue pairs can begin together.
  static constexpr size_t kMostMessages = 2 * size_t{shm::kSlotQp};
  /// Their memory: what another process costs this one while it is stopped. Most of it only where that one has the
  /// descriptors of all channels that there can be.
  static constexpr size_t kMostBytes = size_t{10} << 20;

  /// `fd`, unless it is -1, travels with the message; a channel's stays open until forget_channel().
  /// EAGAIN: too much waits, the message is lost; EPIPE, ECONNRESET: the other process is gone.
  Result<void> send(int socket, const Message& message, int fd = -1, const Payload* payload = nullptr);
  /// Sends what the socket has room for. Where the other process is gone nothing waits any more.
  void send_waiting(int socket);
  /// How many messages wait.
  size_t size() const { return waiting_.size(); }
  /// What waits to be said of this completion channel is not said.
  void forget_channel(uint32_t index);
  void clear() { waiting_.clear(); }
  /// How many messages were lost since this was called last.
  size_t take_lost() { return std::exchange(lost_, 0); }

 private:
  struct Waiting {
    Message message;
    int fd;
    std::unique_ptr<Payload> payload;
  };
  /// Of each channel two messages wait at most: that it is there, that it is gone.
  static_assert(kMostMessages * (sizeof(Waiting) + sizeof(Payload)) + 2 * size_t{Peer::kMaxChannels} * sizeof(Waiting) <
                kMostBytes);

  std::deque<Waiting> waiting_;
  size_t lost_ = 0;
};

}  // namespace nupa::host
