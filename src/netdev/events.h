// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/connection_manager.h>

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <variant>

namespace nupa::netdev {

/// Collects the events of a node's connections that the communication manager and the packet loops report. The node's
/// loop takes them. Any thread may report.
class Events final : public ConnectionSink {
 public:
  static constexpr uint64_t kOfNetwork = 1, kOfNode = 2;  ///< owners: the two services on which a node listens

  struct Asked {
    uint64_t owner;
    ConnectionId id;
    ConnectionRequest request;
  };
  struct Replied {
    ConnectionReply reply;
  };
  struct Ended {
    std::string why;
  };
  struct InterfaceLost {
    int error;
  };
  using What = std::variant<Asked, Replied, Ended, InterfaceLost>;
  struct Event {
    uint64_t owner;  ///< owner of a connection; 0 for the node itself
    What what;
  };

  /// Each report calls `wake` on the thread that reports.
  explicit Events(std::function<void()> wake) : wake_(std::move(wake)) {}

  /// Returns a number for a connection that was not used before.
  uint64_t new_owner();
  void push(uint64_t owner, What what);
  /// Returns all events since the last call.
  std::deque<Event> take();

  uint64_t on_request(uint64_t owner, ConnectionId id, const ConnectionRequest& request) override;
  uint64_t on_datagram_request(uint64_t, ConnectionId, const DatagramRequest&) override { return 0; }
  void on_reply(uint64_t owner, const ConnectionReply& reply) override { push(owner, Replied{reply}); }
  void on_established(uint64_t, const PrivateData<224>&) override {}
  void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>& data) override;
  void on_unreachable(uint64_t owner) override { push(owner, Ended{"no answer"}); }
  void on_disconnected(uint64_t owner, bool) override { push(owner, Ended{"the peer disconnected"}); }
  void on_time_wait_exit(uint64_t) override {}
  void on_datagram_reply(uint64_t, const DatagramReply&) override {}

 private:
  static constexpr uint64_t kFirstOwner = 16;

  std::function<void()> wake_;
  std::mutex mutex_;
  std::deque<Event> events_;
  uint64_t next_owner_ = kFirstOwner;
};

}  // namespace nupa::netdev
