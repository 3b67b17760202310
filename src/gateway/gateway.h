// SPDX-License-Identifier: Apache-2.0
#pragma once
/// `nupa gateway`: connections of rdma_cm between hosts that have no path to each other (docs/design/gateway.md). The
/// command line creates a Gateway and runs it; one thread does everything.
#include <nupa/connection_manager.h>
#include <nupa/device.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <variant>
#include <vector>

#include "gateway/mapping.h"
#include "gateway/splice.h"
#include "progress/loop.h"

namespace nupa::gateway {

struct GatewayOptions {
  std::vector<Mapping> mappings;
  uint64_t window = 1u << 20;  ///< bytes of each ring; whole pages
  uint32_t most_connections = 256;
};
/// The least and the largest window, bytes.
constexpr uint64_t kLeastWindow = 2 * RequestRelay::kPartBytes;
constexpr uint64_t kLargestWindow = 1u << 30;

class Gateway final : private ConnectionSink {
 public:
  /// Opens the devices and listens. Errors: those of the communication manager and of devices; EADDRNOTAVAIL: LISTEN is
  /// no address of this host.
  static Result<std::unique_ptr<Gateway>> open(const GatewayOptions& options);
  ~Gateway() override;

  /// Carries connections until `ended` is readable.
  Result<void> run(int ended);

 private:
  // Events of the communication manager, in the order in which they came.
  struct Requested {
    uint64_t listener;
    ConnectionId id;
    ConnectionRequest request;
  };
  struct Replied {
    ConnectionReply reply;
  };
  struct Established {};
  struct Rejected {
    uint16_t reason;
    PrivateData<148> data;
  };
  struct Ended {};  ///< disconnected
  struct Unreachable {};
  struct Event {
    uint64_t owner;
    std::variant<Requested, Replied, Established, Rejected, Ended, Unreachable> what;
  };

  /// A connection with the states of its two sides at the communication manager.
  struct Connection {
    uint64_t number = 0;
    const Mapping* mapping = nullptr;
    ConnectionId near = 0;  ///< 0: released
    ConnectionId far = 0;
    bool is_accepted = false;
    bool is_established = false;
    int64_t closes_by_ns = 0;  ///< one side has disconnected; the other one follows at this time at the latest
    bool near_has_ended = false;
    std::unique_ptr<Splice> splice;
  };
  /// A device with the objects that its queue pairs share.
  struct OpenDevice {
    std::unique_ptr<Device> device;
    std::unique_ptr<ProtectionDomain> pd;
    std::unique_ptr<CompletionQueue> cq;
  };

  explicit Gateway(const GatewayOptions& options) : options_(options) {}
  Result<void> open();
  Result<Side> side_of(uint32_t device);

  // ConnectionSink
  uint64_t on_request(uint64_t owner, ConnectionId id, const ConnectionRequest& request) override;
  uint64_t on_datagram_request(uint64_t owner, ConnectionId id, const DatagramRequest& request) override;
  void on_reply(uint64_t owner, const ConnectionReply& reply) override;
  void on_established(uint64_t owner, const PrivateData<224>& data) override;
  void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>& data) override;
  void on_unreachable(uint64_t owner) override;
  void on_disconnected(uint64_t owner, bool silent) override;
  void on_time_wait_exit(uint64_t) override {}
  void on_datagram_reply(uint64_t, const DatagramReply&) override {}
  void note(uint64_t owner, decltype(Event::what) what);

  // The gateway's thread.
  void work();
  bool take_events();
  bool take_completions();
  void move_requests();
  void look();
  void close_ended(int64_t now);
  void arm();
  void handle(uint64_t owner, Requested& event);
  void handle(Connection& connection, bool near, const Replied& event);
  void handle(Connection& connection, bool near, const Established& event);
  void handle(Connection& connection, bool near, const Rejected& event);
  void handle(Connection& connection, bool near, const Ended& event);
  void handle(Connection& connection, bool near, const Unreachable& event);
  Result<void> ask_far(Connection& connection, const ConnectionRequest& request);
  void reject(Connection& connection, uint16_t reason, const PrivateData<148>& data);
  void end(Connection& connection);

  const GatewayOptions options_;
  std::unique_ptr<progress::Loop> loop_;
  std::unique_ptr<CompletionChannel> channel_;
  std::map<uint32_t, OpenDevice> devices_;
  std::unordered_map<uint64_t, Connection> connections_;  ///< by number
  std::unique_ptr<progress::Loop::Timer> go_on_;
  std::unique_ptr<progress::Loop::Watch> channel_ready_;

  std::mutex mutex_;
  std::vector<Event> events_;
  uint64_t next_number_ = 1;
  std::atomic<bool> has_work_{false};  ///< events_ or relays have something
  std::atomic<bool> sleeps_{false};
  int64_t active_ns_ = 0;
  int64_t looked_ns_ = 0;
  std::shared_ptr<ConnectionManager> manager_;  ///< destroyed first: it calls this object
};

}  // namespace nupa::gateway
