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
#include "progress/lifecycle.h"

namespace nupa::cm {

/// The communication manager of this process: the engine, and what carries its messages (docs/connections.md):
/// processes of this host and user by the node's sockets, others by datagrams to queue pair 1. The process that
/// receives what comes for the host passes on what is for other processes, also if it has no connections itself.
class Connections final : public ConnectionManager,
                          public core::ProcessService,
                          private MadOutput,
                          private ConnectionSink,
                          private progress::ForkParticipant {
 public:
  explicit Connections(core::Process& process);
  /// The service thread has stopped.
  ~Connections() override;
  static const core::ServiceEntry kEntry;
  /// That of the process; null: the composition root does not name it.
  static Connections* of(core::Process& process) { return static_cast<Connections*>(process.find_service(kEntry)); }

  /// A program wants connections. EBUSY: another one does; errors of sockets and threads.
  Result<void> attach(ConnectionSink& sink);
  /// It wants them no more, and hears of none when this returns.
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
  void on_peer_gone(host::Peer& peer) override;

  // The service thread's.
  /// Asks the questions again that are due.
  void ask_again(int64_t now);
  /// Asks the processes of other hosts that connections lead to whether they live, if it is time.
  void watch_peers(int64_t now);

  /// fork(): the child has no connections. Its locks may be held for ever: calls return before they take one.
  void before_fork() override {}
  void in_parent() override {}
  bool in_child() override;
  void process_ends();

 private:
  /// Hears what comes to queue pair 1. Errors: those of threads.
  Result<void> hear();
  void send(const Way& way, const Mad& mad) override;
  /// Calls `act` with the engine, and does what comes of it.
  template <class Act>
  int with_engine(Act&& act) {
    if (abandoned_) return ENODEV;
    std::lock_guard lock(mutex_);
    const int error = act(engine_);
    settle();
    return error;
  }
  /// Under the mutex, after a change of the engine: what this process has sent to itself, and the engine's deadline.
  void settle();
  void on_timer(int64_t now);

  Way way_from(host::Peer& peer) const;
  /// A process of this host and user has the address. Its network may be another one.
  bool has_process_at(const Gid& address) const;
  /// EHOSTUNREACH: nothing leads to other hosts, and no process of this host has the address.
  Result<void> check_reach(const Gid& address) const;
  /// A process of this host and user that has the address and listens for the service.
  std::optional<Way> find_listener(uint64_t service_id, const Gid* address, const Gid& gid);
  Result<Way> way_to(uint64_t service_id, std::span<const std::byte> private_data, const ConnectionRoute& route);
  /// From queue pair 1, wherever it was read.
  void on_datagram(const core::MadDatagram& datagram);
  /// True: it was for another process, which got it.
  bool pass_on(const Way& way, const Mad& mad);
  bool pass_on_request(const Envelope& envelope, const Way& way, const Mad& mad);
  /// The REJ of an end that gave up goes where its REQ went.
  bool pass_on_timeout(const Envelope& envelope, const Way& way, const Mad& mad);
  void note_passed_on(uint64_t ca_guid, uint32_t local_id, const std::string& name);
  void on_relayed(const MadName& name);
  /// True: it was a question whether this process lives, and has been answered.
  bool answer_probe(const core::MadDatagram& datagram);
  /// Returns when it wants to be called again.
  int64_t ask_peers(int64_t now);
  void process_gone(const Gid& remote, uint16_t port);
  void confirm(const Gid& remote, uint16_t port);
  /// Tries to receive for the host, if nobody does and this process has something to hear.
  void seek_host_socket(int64_t now);
  /// Under the mutex: it has something to hear.
  bool hears() const { return !services_.empty() || engine_.connections() > 0; }

  enum class Asked : uint8_t { kConnection, kDatagramService };
  /// What is asked of others and not answered yet. Programs agree over TCP and connect while the other one is still on
  /// its way to listen, which on a real network takes no longer than finding the way there: where nobody has the
  /// service yet it is looked for a little longer, also in other processes.
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
  /// Under the mutex: nobody has the service, as before.
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
  /// Under the mutex.
  Name* find_name(uint64_t owner, int fd);

  // As ConnectionSink: to the program's, if there is one.
  uint64_t on_request(uint64_t owner, ConnectionId id, const ConnectionRequest& request) override {
    return sink_ == nullptr ? 0 : sink_->on_request(owner, id, request);
  }
  uint64_t on_datagram_request(uint64_t owner, ConnectionId id, const DatagramRequest& request) override {
    return sink_ == nullptr ? 0 : sink_->on_datagram_request(owner, id, request);
  }
  void on_reply(uint64_t owner, const ConnectionReply& reply) override {
    questions_.erase(owner);
    if (sink_ != nullptr) sink_->on_reply(owner, reply);
  }
  void on_established(uint64_t owner, const PrivateData<224>& data) override {
    if (sink_ != nullptr) sink_->on_established(owner, data);
  }
  void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>& data) override {
    if (reason == static_cast<uint16_t>(RejectReason::kInvalidServiceId) && will_ask_again(owner)) return;
    questions_.erase(owner);
    if (sink_ != nullptr) sink_->on_rejected(owner, reason, data);
  }
  void on_unreachable(uint64_t owner) override {
    questions_.erase(owner);
    if (sink_ != nullptr) sink_->on_unreachable(owner);
  }
  void on_disconnected(uint64_t owner, bool silent) override {
    if (sink_ != nullptr) sink_->on_disconnected(owner, silent);
  }
  void on_time_wait_exit(uint64_t owner) override {
    if (sink_ != nullptr) sink_->on_time_wait_exit(owner);
  }
  void on_datagram_reply(uint64_t owner, const DatagramReply& reply) override {
    if (reply.status == DatagramStatus::kUnsupported && will_ask_again(owner)) return;
    questions_.erase(owner);
    if (sink_ != nullptr) sink_->on_datagram_reply(owner, reply);
  }

  struct WayAsked {
    Gid to;
    uint32_t scope = 0;
    std::optional<Gid> from;
    bool operator==(const WayAsked&) const = default;
  };

  core::Process& process_;
  mutable base::Recent<WayAsked, net::FoundRoute> routes_;
  core::MadCarrier* const mads_;  ///< null: nothing leads to other hosts

  std::mutex mutex_;
  ConnectionSink* sink_ = nullptr;
  ConnectionEngine engine_;
  std::deque<Mad> to_self_;
  std::map<uint64_t, Service> services_;
  std::map<uint64_t, Question> questions_;  ///< by owner
  bool seeks_ = false;                      ///< the host's socket; once it has it, for ever
  std::optional<MadRelay> relay_;
  /// A REQ that was passed on. A peer that gives up before any reply names only its id and GUID in the REJ.
  struct PassedOn {
    uint64_t ca_guid;
    uint32_t local_id;
    std::string name;  ///< socket name of the process that received it
  };
  /// Repeats of one take one place. Beyond these the oldest is forgotten.
  static constexpr size_t kMostPassedOn = 256;
  std::mutex passed_on_mutex_;
  std::deque<PassedOn> passed_on_;
  /// This is a fork's child: what stands here is of the parent, perhaps in the middle of a change. Calls look at it
  /// before they lock: a thread of the parent may have held the mutex.
  std::atomic<bool> abandoned_{false};

  // Service thread, or before anything can call it.
  std::unique_ptr<Name> slot_name_;
  std::unique_ptr<core::MadSocket> host_socket_;
  std::unique_ptr<progress::Loop::Watch> host_socket_ready_;
  std::unique_ptr<PeerWatch> watch_;
  std::unique_ptr<progress::Loop::Watch> watch_ready_;
  /// Something came by packets while nobody was watched, and watch_peers() has not looked since.
  std::atomic<bool> look_around_{false};
  std::atomic<bool> watches_{false};

  progress::Loop::Timer engine_due_;
  progress::Loop::Timer questions_due_;
  progress::Loop::Timer seek_due_;
  progress::Loop::Timer watch_due_;
};

}  // namespace nupa::cm
