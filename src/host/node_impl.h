#pragma once
/// The one Node, in two files: its life and its messages in node_impl.cc, how it meets other processes in node_meet.cc.
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host/connection.h"
#include "host/node.h"
#include "host/peer_table.h"
#include "host/published_channels.h"
#include "progress/lifecycle.h"
#include "progress/wake_up.h"

namespace nupa::host {

using progress::Loop;

class NodeImpl final : public Node, private Peer::Asker, private progress::ForkParticipant {
 public:
  NodeImpl(NodeEvents& events, std::unique_ptr<Loop> loop) : events_(events), loop_(std::move(loop)) {}
  ~NodeImpl() override {
    stop();
    attention_.reset();
    if (!abandoned_) doorbell_.close();
  }

  Result<void> start(int region_fd, const std::vector<std::vector<Gid>>& gids,
                     const std::function<bool(uint32_t slot)>& reserve,
                     const std::function<void(shm::SegmentHeader&)>& describe);
  Result<void> serve() override;
  void stop() override;

  shm::Segment& segment() override { return *segment_; }
  uint32_t slot() const override { return slot_; }
  Result<uint32_t> take_slot(const std::function<Result<bool>(uint32_t slot)>& reserve) override;
  MemoryDomain domain() const override { return dir_->domain(); }
  Peer& self() override { return *self_; }
  Result<PeerRef> connect(uint32_t slot, std::chrono::milliseconds timeout) override;
  PeerRef find(uint32_t slot) override;
  RuntimeDir& runtime_dir() override { return *dir_; }
  std::vector<PeerRef> peers() override;
  std::vector<uint32_t> slots() override { return dir_->processes_by_age(); }
  Result<uint32_t> publish_channel(int event_fd) override;
  void withdraw_channel(uint32_t index) override;
  Result<void> send_payload(Peer& peer, const Payload& payload) override;
  Loop& loop() override { return *loop_; }
  /// The service thread, and the one that waits for the end of the process.
  int internal_threads() const override { return 2; }

  void before_fork() override { mutex_.lock(); }
  void in_parent() override { mutex_.unlock(); }
  bool in_child() override;

 private:
  /// Without a lock: peers that see this process gone know that it was a clean exit, and new ones do not find it.
  void stop_being_found();
  void say_goodbye();
  /// Removes sockets of processes that were killed before anybody met them. The kernel closes the descriptors of a
  /// killed process one after the other: a peer may report its death before its socket refuses, so this looks again.
  void sweep();
  // Handlers of the loop.
  void accept_all();
  void on_socket(int fd);
  void on_room(int fd);
  /// The first message of a process that has connected, or that was asked. False: as on_message().
  bool on_hello(Connection& connection, Received received);
  /// False: the connection is to be dropped, and the log has the reason.
  bool on_message(Connection& connection, Received received);
  /// `lock`: of the mutex, held since it was seen that the connection ended.
  void drop(int fd, std::unique_lock<std::mutex> lock);
  /// Of the processes that have gone some time ago, what was kept.
  void let_go();
  void channels_are_wanted() override { ask_for_channels_.run_soon(); }
  /// Asks peers for the channels that were signalled without their descriptors.
  void ask_for_channels(int64_t now);
  void take_channel(Peer& peer, uint32_t index, Received& received);
  Message message_of(MessageKind kind, uint32_t index = 0) const;
  /// Takes a connection for which there is no descriptor by the one that is kept for this, and refuses it. False: there
  /// is none, or the kept one is gone.
  bool refuse_next();
  /// Tells a process on its socket that this one does not meet it.
  void send_refusal(int fd);
  Result<void> say_hello(int fd);
  /// Waits for the hello of the process in `slot`, which has this process's. The service thread waits on after
  /// `timeout`.
  Result<PeerRef> wait_for_hello(base::UniqueFd socket, uint32_t slot, std::chrono::milliseconds timeout);
  // Under the mutex.
  /// Whether descriptors for one more peer may be held.
  bool has_room();
  /// This process and the one that has the slot do not meet. It stays so for the life of both: a queue pair of either
  /// may be connected by another transport already.
  void refuse(uint32_t slot);
  bool is_refused(uint32_t slot) const;
  /// The first time that a process is refused.
  void warn_once(const char* what);
  using Connections = std::unordered_map<int, Connection>;
  /// On which the process in `slot` was asked and has not answered yet.
  Connections::iterator asked_of(uint32_t slot) {
    return std::find_if(connections_.begin(), connections_.end(), [slot](const auto& entry) {
      return entry.second.peer == nullptr && entry.second.asked_slot == slot;
    });
  }
  /// And the loop takes its answer.
  bool is_asked(uint32_t slot) {
    const auto found = asked_of(slot);
    return found != connections_.end() && found->second.watch != nullptr;
  }
  /// A socket on which the process in `slot` has not answered yet, or none. Its watch goes without the mutex, which the
  /// handler locks.
  std::pair<base::UniqueFd, std::unique_ptr<Loop::Watch>> take_asked(uint32_t slot);
  /// Answers a peer that wants the channel's descriptor.
  void send_channel(Connection& connection, uint32_t index);
  void tell_all(const Message& message, int fd = -1);
  void send_rest();
  Connection& add_connection(base::UniqueFd fd, PeerRef peer);
  NodeEvents& events_;
  std::unique_ptr<RuntimeDir> dir_;
  std::unique_ptr<shm::Segment> segment_;
  uint32_t slot_ = 0;
  std::array<std::atomic<uint32_t>, shm::kMaxBanks - 1> further_slots_{};
  uint64_t instance_ = 0;
  int region_fd_ = -1;
  base::UniqueFd listener_;
  base::UniqueFd spare_;       ///< the service thread's: gives way to a connection that is to be refused
  progress::WakeUp doorbell_;  ///< which peers have, too
  PeerRef self_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Loop::Watch> arrivals_;
  std::unique_ptr<Loop::Watch> attention_;
  Loop::Timer ask_for_channels_{*loop_, [this](int64_t now) { ask_for_channels(now); }};
  Loop::Timer ask_again_{*loop_, [this](int64_t) {
                           for (const PeerRef& peer : peers()) peer->forget_asked();
                         }};                                   ///< for channels that did not come
  Loop::Timer let_go_{*loop_, [this](int64_t) { let_go(); }};  ///< at the time of gone_.front()

  std::mutex mutex_;
  Connections connections_;
  PeerTable met_;
  PublishedChannels channels_;
  std::map<uint32_t, RuntimeDir::SocketId> refused_;  ///< by slot
  bool warned_ = false;

  bool running_ = false;
  bool stopped_ = false;
  bool abandoned_ = false;  ///< this is a fork's child: nothing here is its own
  /// Whose memory is to be given back though somebody keeps them, and when: the service thread's.
  std::deque<std::pair<int64_t, std::weak_ptr<Peer>>> gone_;
};

}  // namespace nupa::host
