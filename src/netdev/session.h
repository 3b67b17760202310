// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/connect.h>
#include <nupa/connection_manager.h>
#include <nupa/device.h>

#include <memory>
#include <string>

#include "netdev/peer_info.h"
#include "netdev/peer_authentication.h"
#include "netdev/packet_loop.h"

namespace nupa::netdev {

/// The objects that all connections of a node share.
struct NodeContext {
  Device& device;
  ProtectionDomain& pd;
  CompletionQueue& cq;  ///< completion queue of the control queue pairs
  ConnectionManager& manager;
  Key key;
  std::string network;
  PeerInfo self;  ///< the node's own peer info, without channels
  std::vector<std::unique_ptr<PacketLoop>> packet_loops;
  uint64_t next_channel = 1;
  const progress::Clock& clock = progress::system_clock();
  uint32_t device_place = 0;  ///< of the device in list_devices()

  /// Returns the GID index with which a queue pair of the device leaves by a route. A route by a pool's own device
  /// works from each device, with any GID.
  uint32_t gid_index_of(const ConnectionRoute& route) const {
    return route.device == device_place ? route.gid_index : 0;
  }
};

/// Returns the service id of a network at an address, and that of one node on its host. Both are in the range of the
/// local administrator (IBTA A3.2.3.3).
uint64_t service_of(const std::string& network);
uint64_t service_of(const std::string& network, const std::string& node);

/// A connection to another node. It is set up by the communication manager, then both sides prove the key, then they
/// exchange peer info, and then packets flow. A control queue pair carries the peer info, and each channel has a queue
/// pair. Runs on the node's thread.
class Session {
 public:
  enum class State : uint8_t {
    kConnecting,
    kProving,  ///< connected; the peer's info has not arrived
    kAgreed,   ///< channels are connected here; the peer has not reported that it is ready
    kUp,
    kOver,
  };

  /// Connects to another node. Returns the errors of the device and the manager.
  static Result<std::unique_ptr<Session>> ask(NodeContext& context, uint64_t owner, uint64_t service,
                                              const ConnectionRoute& route);
  /// Handles a request of another node. Returns EACCES if it does not have the network's key.
  static Result<std::unique_ptr<Session>> answer(NodeContext& context, uint64_t owner, ConnectionId id,
                                                 const ConnectionRequest& request);
  ~Session();

  // Handlers of events. Each may change the state.
  void on_reply(const ConnectionReply& reply);
  void on_completion(const WorkCompletion& completion);
  /// Accepts the peer's info and connects the channels.
  void accept();
  /// Rejects the peer and sends it the reason.
  void reject(const std::string& why);
  void end(const std::string& why);
  /// Sends packets on this session, which must be up. If several sessions lead to the same node, only one of them
  /// sends; all receive.
  void activate();

  State state() const { return state_; }
  /// The peer's info, once it has arrived.
  const PeerInfo* peer_info() const { return peer_info_ ? &*peer_info_ : nullptr; }
  bool has_new_peer_info() const { return peer_info_ && !agreed_; }
  bool asks() const { return asks_; }
  bool was_refused() const { return refused_; }
  const std::string& why() const { return why_; }
  uint64_t owner() const { return owner_; }
  int64_t began_ns() const { return began_ns_; }
  const std::vector<Link>& links() const { return links_; }
  const std::vector<std::unique_ptr<LinkStatistics>>& traffic() const { return traffic_; }
  /// Returns the errno value of a failed channel, or 0.
  int channel_error() const;
  /// Probes the first channel. The request runs later on the packet loop's thread.
  void probe();
  int64_t round_trip_ns() const;
  std::string_view transport() const;
  const Gid& remote() const { return path_.remote; }

 private:
  Session(NodeContext& context, uint64_t owner, bool asks);
  Result<void> prepare();
  int bring_up(uint32_t gid_index, uint32_t qp_num, uint32_t psn);
  Result<void> make_channels(uint32_t queues_there);
  int connect_channels();
  /// Permits frames from the peer.
  void open_links();
  /// Returns false if the packet loop has ended. The session has then ended, too.
  bool call(size_t packet_loop, const std::function<void()>& what);
  void close_links();
  PacketLoop& packet_loop_of(size_t channel) { return *context_.packet_loops[channel % context_.packet_loops.size()]; }
  void send_peer_info();
  void send_message(uint8_t kind, std::string_view text);
  void receive_message(std::span<const std::byte> message);

  NodeContext& context_;
  const uint64_t owner_;
  const bool asks_;
  const int64_t began_ns_;
  State state_ = State::kConnecting;
  ConnectionId id_ = 0;
  ConnectionPath path_;
  uint32_t gid_index_ = 0;
  uint32_t psn_ = 0;
  PeerAuthentication authentication_;
  std::unique_ptr<MemoryRegion> buffers_;
  std::unique_ptr<QueuePair> qp_;
  uint32_t messages_sent_ = 0;
  uint32_t messages_received_ = 0;
  bool agreed_ = false;
  bool refused_ = false;
  std::string why_;
  std::optional<PeerInfo> peer_info_;
  ConnectOptions path_options_;  ///< options for a queue pair on the path between the two ports
  std::vector<std::unique_ptr<PeerChannel>> channels_;
  std::vector<std::unique_ptr<LinkStatistics>> traffic_;  ///< one for each packet loop
  std::vector<Link> links_;                               ///< one for each packet loop
  bool linked_ = false;
};

}  // namespace nupa::netdev
