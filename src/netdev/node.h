#pragma once
#include <nupa/device.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "netdev/door.h"
#include "netdev/events.h"
#include "netdev/search.h"
#include "netdev/session.h"
#include "netdev/tun_device.h"
#include "progress/loop.h"

namespace nupa::netdev {

/// What a node is to be.
struct NodeOptions {
  std::string network;
  std::string node;  ///< its name; empty: its first address
  std::string interface = "nupa0";
  std::vector<Prefix> addresses;
  uint32_t mtu = kMaxMtu;
  uint32_t queues = 1;
  Key key{};
  std::vector<Gid> peers;  ///< addresses where other nodes' hosts are, besides those of this runtime directory
  /// Of all that the node waits for. Tests have simulated ones.
  const progress::Clock* clock = &progress::system_clock();
};

/// A node of a network, until it is told to end: the interface, the connections to all others, and what is said about
/// them. One thread runs it, which sleeps in a loop; the pumps have theirs.
class Node final {
 public:
  /// Makes the interface and is there for others. Errors: as TunDevice::open(), open_device() and Door::open(); what is
  /// wrong is in the log too.
  static Result<std::unique_ptr<Node>> start(NodeOptions options);
  ~Node();
  /// Until `nupa net down`, or the descriptor becomes readable. Returns what ended it: 0, or an errno value, and then
  /// the reason is in the log. ENODEV: the interface was removed; ENOMEM; those of Loop::watch(). `on_settled` is
  /// called once each node that was known at the start is connected, has refused or has not answered for a second.
  int run(int until_fd, const std::function<void()>& on_settled);

 private:
  Node(NodeOptions options, std::unique_ptr<progress::Loop> loop)
      : options_(std::move(options)),
        clock_(*options_.clock),
        loop_(std::move(loop)),
        look_(*loop_, [this](int64_t) { look_after_all(); }) {}
  Result<void> open();

  struct Totals {
    uint64_t sent = 0, sent_bytes = 0, received = 0, received_bytes = 0;
    uint64_t no_room = 0, too_long = 0, wrong_source = 0, malformed = 0, refused = 0;  ///< thrown away

    void add(const Session& session);
  };
  /// Another node, as long as this one runs.
  struct Peer {
    uint64_t session = 0;  ///< the connection that carries packets; 0: there is none
    uint64_t instance = 0;
    std::vector<Prefix> addresses;
    uint32_t mtu = 0;
    int64_t since_ns = 0;  ///< of the present state
    uint64_t connections = 0;
    std::string why_not;  ///< the last reason of an end
    Totals before;        ///< of connections before the present one
  };
  /// What a status is made of, while the node goes on with its work.
  struct Measurement {
    int64_t began_ns;
    int64_t ends_ns;
    std::map<std::string, Totals> earlier;
  };
  /// All that may have to be done, in one turn of the loop; whoever has something for it runs it soon.
  void look_after_all();
  void take_events();
  void take(Events::Event& event);
  void take_completions();
  void look_after(int64_t now);
  void look_at(Session& session, int64_t now);
  /// Why the other end cannot take part; empty: it can.
  std::string objection_to(const Session& session);
  void come_up(Session& session, int64_t now);
  void forget(Session& session, int64_t now);
  /// Another node has refused this one, which it had asked.
  void note_refusal(const Session& session, int64_t now);
  /// Of two connections between the same nodes that both asked for: the one that the lesser name asked for.
  bool is_the_one_to_stay(const Session& session) const {
    return session.asks() == (options_.node < session.card()->node);
  }
  /// For the search: the owner of a session that asks at the service.
  Result<uint64_t> connect(uint64_t service, const ConnectionRoute& route);
  bool is_connected(const std::string& node) const;
  Session* session_of(uint64_t owner) const;
  bool is_settled(int64_t now) const;
  int64_t next_deadline() const;

  /// None: the status, which comes when it has been measured.
  std::optional<std::string> answer_at_door(const std::string& question);
  std::map<std::string, Totals> totals() const;
  /// Asks all peers for a round trip. Rates are those from now to status().
  void begin_to_measure();
  std::string status();

  NodeOptions options_;
  const progress::Clock& clock_;
  std::unique_ptr<progress::Loop> loop_;
  progress::Loop::Timer look_;
  Events events_{[this] { look_.run_soon(); }};
  std::unique_ptr<Door> door_;  ///< goes last: who finds no node of this name may be the next one
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProtectionDomain> pd_;
  std::unique_ptr<CompletionChannel> channel_;
  std::unique_ptr<progress::Loop::Watch> channel_ready_;
  std::unique_ptr<CompletionQueue> cq_;
  std::unique_ptr<TunDevice> tun_;
  std::shared_ptr<ConnectionManager> manager_;
  Gid gid_;  ///< by which processes of this host find this one's port
  std::unique_ptr<World> world_;

  std::map<uint64_t, std::unique_ptr<Session>> sessions_;
  std::map<std::string, Peer> peers_;
  std::unique_ptr<Search> search_;
  uint64_t strangers_ = 0;
  std::optional<Measurement> measurement_;
  bool settled_ = false;
  std::function<void()> on_settled_;
  int64_t started_ns_ = 0;
  int error_ = 0;
};

}  // namespace nupa::netdev
