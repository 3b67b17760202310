// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/connection_manager.h>

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "base/recent.h"
#include "cm/engine/engine.h"
#include "cm/mad_name.h"
#include "cm/peer_watch.h"
#include "core/process.h"
#include "core/seam/mad_carrier.h"
#include "net/find_route.h"
#include "progress/condition.h"
#include "progress/lifecycle.h"

namespace nupa::cm {

/// The communication manager of this process (docs/design/connection-manager.md). It joins the engine with the
/// transports of its messages. Processes of the same host and user are reached by the node's sockets, others by
/// datagrams to queue pair 1. The process that receives the host's datagrams passes them on to other processes, even if
/// it has no connections.
class Connections final : public ConnectionManager,
                          public core::ProcessService,
                          private MadOutput,
                          private ConnectionSink,
                          private progress::ForkParticipant {
 public:
  explicit Connections(core::Process& process);
  /// The service thread must have stopped.
  ~Connections() override;
  static const core::ServiceEntry kEntry;
  /// Returns the communication manager of the process, or null if the composition root does not name it.
  static Connections* of(core::Process& process) { return static_cast<Connections*>(process.find_service(kEntry)); }

  /// Attaches a program. EBUSY if another one is attached, or the errors of sockets and threads.
  Result<void> attach(ConnectionSink& sink);
  /// Detaches the program. It gets no notifications after this returns.
  void detach();

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

  Result<void> start() override;
  void on_payload(host::Peer& peer, const Mad& mad) override;
  void on_peer_exit(host::Peer& peer) override;

  // The functions below run on the service thread.
  /// Repeats the requests whose time has come.
  void ask_again(int64_t now);
  /// Probes the processes on other hosts that have connections with this one, if it is time.
  void watch_peers(int64_t now);

  /// At a fork, the child has no connections. Another thread may have held the locks, so calls in the child return
  /// before they take one.
  void before_fork() override {}
  void in_parent() override {}
  bool in_child() override;
  void process_ends();

 private:
  /// Starts receiving datagrams to queue pair 1. Returns the errors of threads.
  Result<void> hear();
  void send(const Way& way, const Mad& mad) override;
  /// Records a message that does not leave as a packet, for a capture.
  [[gnu::noinline, gnu::cold]] void record(const Way& way, const Mad& mad) const;
  /// Calls `act` with the engine and handles the results.
  template <class Act>
  int with_engine(Act&& act) {
    if (abandoned_) return ENODEV;
    std::unique_lock lock(mutex_);
    const int error = act(engine_);
    settle(std::move(lock));
    return error;
  }
  /// After a change of the engine, with the mutex held by `lock`: delivers the messages of this process to itself, sets
  /// the engine's timer and releases the mutex. The program's sink then wakes the threads that wait for events.
  void settle(std::unique_lock<std::mutex> lock);
  /// Returns the program's sink for a notification, or null.
  ConnectionSink* notified() {
    is_notified_ = true;
    return sink_;
  }
  void on_timer(int64_t now);

  Way way_from(host::Peer& peer) const;
  /// True if a process of this host and user has the address. It may be in another network namespace.
  bool has_process_at(const Gid& address) const;
  /// EHOSTUNREACH if no transport leads to the host at the address and no process of this host has the address.
  Result<void> check_reach(const Gid& address) const;
  /// Finds a process of this host and user that has the address and listens for the service.
  std::optional<Way> find_listener(uint64_t service_id, const Gid* address, const Gid& gid);
  Result<Way> way_to(uint64_t service_id, std::span<const std::byte> private_data, const ConnectionRoute& route);
  /// Handles a datagram to queue pair 1, whatever socket it came from.
  void on_datagram(const core::MadDatagram& datagram);
  /// True if the message was for another process and was passed to it.
  bool pass_on(const Way& way, const Mad& mad);
  bool pass_on_request(const Envelope& envelope, const Way& way, const Mad& mad);
  /// Passes the REJ of a peer that gave up to the process that got its REQ.
  bool pass_on_timeout(const Envelope& envelope, const Way& way, const Mad& mad);
  void note_passed_on(uint64_t ca_guid, uint32_t local_id, const std::string& name);
  void on_relayed(const MadName& name);
  /// True if the datagram was a probe. A probe of this process is answered.
  bool answer_probe(const core::MadDatagram& datagram);
  /// Returns the time of its next call.
  int64_t ask_peers(int64_t now);
  void process_exited(const Gid& remote, uint16_t port);
  void confirm(const Gid& remote, uint16_t port);
  /// Tries to receive for the host, if no process does and this process expects messages.
  void seek_host_socket(int64_t now);
  /// Called with the mutex held. True if this process expects messages.
  bool hears() const { return !services_.empty() || engine_.connections() > 0; }

  enum class Asked : uint8_t { kConnection, kDatagramService };
  /// A request to another process that is not answered yet. Programs often agree over TCP, and one connects while the
  /// other is still about to listen. On a real network that takes no longer than finding the path. If no process has
  /// the service yet, the request is therefore repeated for a short time, also to other processes.
  struct Question {
    Asked asked_for = Asked::kConnection;
    ConnectionId id = 0;
    uint64_t service_id = 0;
    std::vector<std::byte> private_data;
    ConnectionRoute route;
    int64_t until_ns = 0;
    int64_t pause_ns = 0;
    int64_t next_ns = INT64_MAX;
  };
  bool will_ask_again(uint64_t owner);
  /// Called with the mutex held. Reports that still no process has the service.
  void stays_refused(uint64_t owner, const Question& question);
  /// Calls `ask` with the way to `route`.
  template <class Ask>
  int ask(Asked asked_for, uint64_t service_id, std::span<const std::byte> private_data, const ConnectionRoute& route,
          uint64_t owner, ConnectionId* id, Ask&& ask);

  struct Name {
    explicit Name(MadName taken) : name(std::move(taken)), parent_only(name.fd()) {}
    MadName name;
    progress::ParentOnly parent_only;
    std::unique_ptr<progress::Loop::Watch> watch;
  };
  struct Service {
    ListenerAddress address;
    std::vector<std::unique_ptr<Name>> names;
    shm::ListenerShared* shared = nullptr;
    bool listens = false;
  };
  Result<std::vector<std::unique_ptr<Name>>> take_names(const ListenerAddress& address);
  /// Called with the mutex held.
  Name* find_name(uint64_t owner, int fd);

  // As ConnectionSink: forwards the notifications to the program's sink, if there is one.
  uint64_t on_request(uint64_t owner, ConnectionId id, const ConnectionRequest& request) override {
    ConnectionSink* const sink = notified();
    return sink == nullptr ? 0 : sink->on_request(owner, id, request);
  }
  uint64_t on_datagram_request(uint64_t owner, ConnectionId id, const DatagramRequest& request) override {
    ConnectionSink* const sink = notified();
    return sink == nullptr ? 0 : sink->on_datagram_request(owner, id, request);
  }
  void on_reply(uint64_t owner, const ConnectionReply& reply) override {
    questions_.erase(owner);
    if (ConnectionSink* const sink = notified()) sink->on_reply(owner, reply);
  }
  void on_established(uint64_t owner, const PrivateData<224>& data) override {
    if (ConnectionSink* const sink = notified()) sink->on_established(owner, data);
  }
  void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>& data) override {
    if (reason == static_cast<uint16_t>(RejectReason::kInvalidServiceId) && will_ask_again(owner)) return;
    questions_.erase(owner);
    if (ConnectionSink* const sink = notified()) sink->on_rejected(owner, reason, data);
  }
  void on_unreachable(uint64_t owner) override {
    questions_.erase(owner);
    if (ConnectionSink* const sink = notified()) sink->on_unreachable(owner);
  }
  void on_disconnected(uint64_t owner, bool silent) override {
    if (ConnectionSink* const sink = notified()) sink->on_disconnected(owner, silent);
  }
  void on_time_wait_exit(uint64_t owner) override {
    if (ConnectionSink* const sink = notified()) sink->on_time_wait_exit(owner);
  }
  void on_datagram_reply(uint64_t owner, const DatagramReply& reply) override {
    if (reply.status == DatagramStatus::kUnsupported && will_ask_again(owner)) return;
    questions_.erase(owner);
    if (ConnectionSink* const sink = notified()) sink->on_datagram_reply(owner, reply);
  }

  struct WayAsked {
    Gid to;
    uint32_t scope = 0;
    std::optional<Gid> from;
    bool operator==(const WayAsked&) const = default;
  };

  core::Process& process_;
  mutable base::Recent<WayAsked, net::FoundRoute> routes_;
  core::MadCarrier* const mads_;  ///< null: no transport leads to other hosts

  std::mutex mutex_;
  ConnectionSink* sink_ = nullptr;
  bool is_notified_ = false;  ///< the sink got notifications and was not called after them
  uint32_t after_ = 0;        ///< threads that call the sink after notifications, without the mutex
  progress::Condition after_is_over_;
  bool ends_ = false;              ///< the process exits
  progress::Condition farewells_;  ///< with ends_: notified after each change of the engine
  ConnectionEngine engine_;
  std::deque<Mad> to_self_;
  std::map<uint64_t, Service> services_;
  std::map<uint64_t, Question> questions_;  ///< by owner
  bool seeks_ = false;                      ///< tries to get the host's socket; stays true once it has it
  std::optional<MadRelay> relay_;
  /// A REQ that was passed on. It is needed because the REJ of a peer that gives up before any reply holds only the
  /// peer's id and GUID.
  struct PassedOn {
    uint64_t ca_guid;
    uint32_t local_id;
    std::string name;  ///< socket name of the process that received it
  };
  /// Repeats of one REQ take one entry. Beyond this number, the oldest entry is dropped.
  static constexpr size_t kMostPassedOn = 256;
  std::mutex passed_on_mutex_;
  std::deque<PassedOn> passed_on_;
  /// True in a forked child. The members then belong to the parent and may be in the middle of a change. Calls check
  /// this before they lock, since a thread of the parent may have held the mutex.
  std::atomic<bool> abandoned_{false};

  // Used by the service thread, or before any thread can call this object.
  std::unique_ptr<Name> slot_name_;
  std::unique_ptr<core::MadSocket> host_socket_;
  std::unique_ptr<progress::Loop::Watch> host_socket_ready_;
  std::unique_ptr<PeerWatch> watch_;
  std::unique_ptr<progress::Loop::Watch> watch_ready_;
  /// A packet arrived while no peer was watched, and watch_peers() has not run since.
  std::atomic<bool> look_around_{false};
  std::atomic<bool> watches_{false};

  progress::Loop::Timer engine_due_;
  progress::Loop::Timer questions_due_;
  progress::Loop::Timer seek_due_;
  progress::Loop::Timer watch_due_;
};

}  // namespace nupa::cm
