#pragma once
#include <nupa/connect.h>
#include <nupa/connection_manager.h>
#include <nupa/device.h>

#include <memory>
#include <string>

#include "netdev/card.h"
#include "netdev/proof.h"
#include "netdev/pump.h"

namespace nupa::netdev {

/// What all connections of a node have in common.
struct World {
  Device& device;
  ProtectionDomain& pd;
  CompletionQueue& cq;  ///< of their control queue pairs
  ConnectionManager& manager;
  Key key;
  std::string network;
  NodeCard self;  ///< without lanes
  std::vector<std::unique_ptr<Pump>> pumps;
  uint64_t next_lane = 1;
  const progress::Clock& clock = progress::system_clock();
};

/// Which service a network has at an address, and which one a node of it has on its host (IBTA A3.2.3.3: of a local
/// administrator).
uint64_t service_of(const std::string& network);
uint64_t service_of(const std::string& network, const std::string& node);

/// A connection to another node: by the communication manager, then the proof of the key, then cards, then packets. A
/// queue pair of its own carries the cards; each lane has another one. One thread: the node's.
class Session {
 public:
  enum class State : uint8_t {
    kConnecting,
    kProving,  ///< connected; the other end's card has not come
    kAgreed,   ///< its lanes are connected here; it has not said that it is ready
    kUp,
    kOver,
  };

  /// This node asks. Errors: those of the device and the manager.
  static Result<std::unique_ptr<Session>> ask(World& world, uint64_t owner, uint64_t service,
                                              const ConnectionRoute& route);
  /// This node is asked. EACCES: without the network's key.
  static Result<std::unique_ptr<Session>> answer(World& world, uint64_t owner, ConnectionId id,
                                                 const ConnectionRequest& request);
  ~Session();

  // What happens; each changes the state.
  void on_reply(const ConnectionReply& reply);
  void on_completion(const WorkCompletion& completion);
  /// The other end's card has come and nothing speaks against it.
  void agree();
  /// The other end is told why not.
  void refuse(const std::string& why);
  void end(const std::string& why);
  /// This one, of several to the same node, is where packets go. Once it is up; they come from it before.
  void carry();

  State state() const { return state_; }
  /// Of the other end; from its card on.
  const NodeCard* card() const { return card_ ? &*card_ : nullptr; }
  bool has_new_card() const { return card_ && !agreed_; }
  bool asks() const { return asks_; }
  bool was_refused() const { return refused_; }
  const std::string& why() const { return why_; }
  uint64_t owner() const { return owner_; }
  int64_t began_ns() const { return began_ns_; }
  const std::vector<Link>& links() const { return links_; }
  const std::vector<std::unique_ptr<Traffic>>& traffic() const { return traffic_; }
  /// Whether a lane has failed, and why: an errno value.
  int lane_error() const;
  /// Of the first lane. Its pump's thread is asked, and not waited for.
  void probe();
  int64_t round_trip_ns() const;
  std::string_view transport() const;
  const Gid& remote() const { return path_.remote; }

 private:
  Session(World& world, uint64_t owner, bool asks);
  Result<void> prepare();
  int bring_up(uint32_t gid_index, uint32_t qp_num, uint32_t psn);
  Result<void> make_lanes(uint32_t queues_there);
  int connect_lanes();
  /// Frames may come from now on.
  void open_links();
  /// False: the pump has ended, and so has this.
  bool call(size_t pump, const std::function<void()>& what);
  void close_links();
  Pump& pump_of(size_t lane) { return *world_.pumps[lane % world_.pumps.size()]; }
  void send_card();
  void say(uint8_t kind, std::string_view text);
  void hear(std::span<const std::byte> message);

  World& world_;
  const uint64_t owner_;
  const bool asks_;
  const int64_t began_ns_;
  State state_ = State::kConnecting;
  ConnectionId id_ = 0;
  ConnectionPath path_;
  uint32_t gid_index_ = 0;
  uint32_t psn_ = 0;
  Proof proof_;
  std::unique_ptr<MemoryRegion> buffers_;
  std::unique_ptr<QueuePair> qp_;
  uint32_t said_ = 0;
  uint32_t heard_ = 0;
  bool agreed_ = false;
  bool refused_ = false;
  std::string why_;
  std::optional<NodeCard> card_;
  ConnectOptions way_;  ///< how the two ports reach each other
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<Traffic>> traffic_;  ///< one for each pump
  std::vector<Link> links_;                        ///< the same
  bool linked_ = false;
};

}  // namespace nupa::netdev
