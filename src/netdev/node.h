// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/device.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "netdev/control_socket.h"
#include "netdev/events.h"
#include "netdev/search.h"
#include "netdev/session.h"
#include "netdev/tun_device.h"
#include "progress/loop.h"

namespace nupa::netdev {

/// The configuration of a node.
struct NodeOptions {
  std::string network;
  std::string node;  ///< its name; empty means its first address
  std::string interface = "nupa0";
  std::vector<Prefix> addresses;
  uint32_t mtu = kMaxMtu;
  uint32_t queues = 1;
  Key key{};
  std::vector<Gid> peers;  ///< addresses of hosts with other nodes, besides the nodes of this runtime directory
  /// The clock for all waits of the node. Tests use a simulated one.
  const progress::Clock* clock = &progress::system_clock();
};

/// A node of a network: the interface, the connections to all other nodes, and their status. One thread runs it and
/// sleeps in a loop. Each packet loop has its own thread.
class Node final {
 public:
  /// Creates the interface and accepts connections. Returns the errors of TunDevice::open(), open_device() and
  /// ControlSocket::open(). The log holds the reason, too.
  static Result<std::unique_ptr<Node>> start(NodeOptions options);
  ~Node();
  /// Runs until `nupa net down`, or until the descriptor becomes readable. Returns 0, or an errno value whose reason is
  /// in the log: ENODEV if the interface was removed, ENOMEM, or an error of Loop::watch(). Calls `on_settled` once
  /// every node that was known at the start is connected, has rejected this one, or has not answered for a second.
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
    uint64_t no_room = 0, too_long = 0, wrong_source = 0, malformed = 0, refused = 0;  ///< dropped packets

    void add(const Session& session);
  };
  /// Another node. It is kept until this node exits.
  struct Peer {
    uint64_t session = 0;  ///< the connection that carries packets, or 0
    uint64_t instance = 0;
    std::vector<Prefix> addresses;
    uint32_t mtu = 0;
    int64_t since_ns = 0;  ///< begin of the present state
    uint64_t connections = 0;
    std::string why_not;  ///< reason for the end of the last connection
    Totals before;        ///< totals of earlier connections
  };
  /// The data of a status that is being measured while the node continues its work.
  struct Measurement {
    int64_t began_ns;
    int64_t ends_ns;
    std::map<std::string, Totals> earlier;
  };
  /// Does all pending work in one turn of the loop. Code that has new work schedules this function soon.
  void look_after_all();
  void take_events();
  void take(Events::Event& event);
  void take_completions();
  void look_after(int64_t now);
  void look_at(Session& session, int64_t now);
  /// Returns the reason why the peer cannot take part, or an empty string.
  std::string objection_to(const Session& session);
  void come_up(Session& session, int64_t now);
  void forget(Session& session, int64_t now);
  /// Records that the node that requested the connection has then rejected it.
  void note_refusal(const Session& session, int64_t now);
  /// True for the connection to keep when two nodes have connected to each other at once: the one that the lesser name
  /// requested.
  bool is_the_one_to_stay(const Session& session) const {
    return session.asks() == (options_.node < session.peer_info()->node);
  }
  /// For the search: returns the owner of a new session that connects to the service.
  Result<uint64_t> connect(uint64_t service, const ConnectionRoute& route);
  bool is_connected(const std::string& node) const;
  Session* session_of(uint64_t owner) const;
  bool is_settled(int64_t now) const;
  int64_t next_deadline() const;

  /// Answers a question at the control socket. Returns nothing for the status, which is sent when it has been measured.
  std::optional<std::string> answer_at_control_socket(const std::string& question);
  std::map<std::string, Totals> totals() const;
  /// Sends probes to all peers. Rates in status() cover the time since this call.
  void begin_to_measure();
  std::string status();

  NodeOptions options_;
  const progress::Clock& clock_;
  std::unique_ptr<progress::Loop> loop_;
  progress::Loop::Timer look_;
  Events events_{[this] { look_.run_soon(); }};
  std::unique_ptr<ControlSocket>
      control_socket_;  ///< destroyed last, because another node may take the name when the socket is closed
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProtectionDomain> pd_;
  std::unique_ptr<CompletionChannel> channel_;
  std::unique_ptr<progress::Loop::Watch> channel_ready_;
  std::unique_ptr<CompletionQueue> cq_;
  std::unique_ptr<TunDevice> tun_;
  std::shared_ptr<ConnectionManager> manager_;
  Gid gid_;  ///< the GID of this node's port, for processes of this host
  std::unique_ptr<NodeContext> context_;

  std::map<uint64_t, std::unique_ptr<Session>> sessions_;
  std::map<std::string, Peer> peers_;
  std::unique_ptr<Search> search_;
  uint64_t unknown_peers_ = 0;
  std::optional<Measurement> measurement_;
  bool settled_ = false;
  std::function<void()> on_settled_;
  int64_t started_ns_ = 0;
  int error_ = 0;
};

}  // namespace nupa::netdev
