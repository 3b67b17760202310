#pragma once
#include <nupa/connection_manager.h>

#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "cm/connection/engine.h"
#include "cm/mad_name.h"
#include "core/peer_watch.h"
#include "core/runtime.h"
#include "transport/roce/management.h"

namespace nupa::core {

/// The communication manager of this process: the engine, and what carries its messages (docs/connections.md):
/// processes of this host and user by the node's sockets, others by datagrams to queue pair 1. Whoever has the UDP port
/// where standard peers look passes on what is for other processes.
class Connections final : public ConnectionManager, private cm::MadOutput {
 public:
  static Result<std::shared_ptr<Connections>> create(std::shared_ptr<Runtime> runtime, ConnectionSink& sink);
  ~Connections() override;

  Result<ConnectionRoute> find_route(const Gid& to, uint32_t scope, const Gid* from) const override;
  Result<ConnectionRoute> find_address(const Gid& address) const override;
  int bind(uint64_t owner, const ListenerAddress& address) override;
  int listen(uint64_t owner) override;
  void unbind(uint64_t owner) override;
  int connect(const ConnectionRequest& request, const ConnectionRoute& route, uint64_t owner,
              ConnectionId* id) override;
  int ask_datagram(const DatagramRequest& request, const ConnectionRoute& route, uint64_t owner,
                   ConnectionId* id) override;
  int accept(ConnectionId id, const ConnectionReply& reply) override;
  int answer_datagram(ConnectionId id, const DatagramReply& reply) override;
  int reject(ConnectionId id, RejectReason reason, const PrivateData<148>& data) override;
  int establish(ConnectionId id) override;
  int note_established(ConnectionId id) override;
  int disconnect(ConnectionId id) override;
  void release(ConnectionId id) override;

  // What the runtime tells, on the service thread.
  void on_mad(cm::Peer& peer, const cm::Mad& mad);
  void on_peer_gone(cm::Peer& peer);
  /// Returns when it wants to be called again.
  int64_t on_tick(int64_t now);

  // fork(): the child has no connections.
  void before_fork() { mutex_.lock(); }
  void after_fork_parent() { mutex_.unlock(); }
  void after_fork_child();
  void process_ends();

 private:
  Connections(std::shared_ptr<Runtime> runtime, ConnectionSink& sink);
  void send(const cm::Way& way, const cm::Mad& mad) override;
  /// Calls `act` with the engine, and does what comes of it.
  template <class Act>
  int with_engine(Act&& act);
  /// Under the mutex: what this process has sent to itself. Whether the service thread has to be told of a deadline.
  bool settle();

  /// A process of this host and user that has the address and listens for the service.
  std::optional<cm::Way> find_listener(uint64_t service_id, const Gid* address, const Gid& gid);
  Result<cm::Way> way_to(uint64_t service_id, std::span<const std::byte> private_data, const ConnectionRoute& route);
  /// From queue pair 1, wherever it was read.
  void on_datagram(const roce::ManagementDatagram& datagram);
  /// True: it was for another process, which got it.
  bool pass_on(const cm::Way& way, const cm::Mad& mad);
  void on_relayed(const cm::MadName& name);
  /// True: it was a question whether this process lives, and has been answered.
  bool answer_probe(const roce::ManagementDatagram& datagram);
  /// Returns when it wants to be called again.
  int64_t watch_peers(int64_t now);
  void process_gone(const Gid& remote, uint16_t port);
  /// Tries to get the port where standard peers look, if nobody has it and this process has something to hear.
  void seek_standard_port();
  Result<void> start_hearing();
  uint16_t port_of(const roce::ManagementDatagram& datagram) const;

  struct Service {
    ListenerAddress address;
    std::vector<std::unique_ptr<cm::MadName>> names;
    segment::ListenerShared* shared = nullptr;
    bool listens = false;
  };
  Result<std::vector<std::unique_ptr<cm::MadName>>> take_names(const ListenerAddress& address);
  void give_back(Service service);

  std::shared_ptr<Runtime> runtime_;
  ConnectionSink& sink_;
  const bool standard_;  ///< nothing but the standard is spoken on the wire
  const bool uses_packets_;

  std::mutex mutex_;
  cm::ConnectionEngine engine_;
  std::deque<cm::Mad> to_self_;
  std::map<uint64_t, Service> services_;
  std::optional<cm::MadRelay> relay_;
  int64_t sleeps_until_ = 0;  ///< the service thread
  bool abandoned_ = false;    ///< this is a fork's child

  // Service thread, or before it can call in.
  std::unique_ptr<cm::MadName> slot_name_;
  std::optional<roce::ManagementSocket> standard_socket_;
  int64_t seek_again_ns_ = 0;
  std::unique_ptr<PeerWatch> watch_;
  int64_t watch_again_ns_ = 0;
  /// Something came by packets while nobody was watched.
  std::atomic<bool> look_around_{false};
  std::atomic<bool> watches_{false};
};

}  // namespace nupa::core
