// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The only implementation of Node, in two files: its lifetime and its messages are in node_impl.cc, and the handshake
/// with other processes is in node_handshake.cc.
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
    if (!abandoned_) wakeup_fd_.close();
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
  /// The service thread, and the thread that runs the exit actions.
  int internal_threads() const override { return 2; }

  void before_fork() override { mutex_.lock(); }
  void in_parent() override { mutex_.unlock(); }
  bool in_child() override;

 private:
  /// Makes the exit a clean one for peers that notice it, and new peers do not find this process. Takes no lock.
  void stop_being_found();
  void send_goodbye();
  /// Removes sockets of processes that were killed before any process connected to them. The kernel closes the
  /// descriptors of a killed process one after the other: a peer may report its death before its socket refuses
  /// connections, so this checks again.
  void sweep();
  /// True if a peer has ended and its socket is still in the runtime directory. Forgets those whose socket is not.
  bool is_one_dying();
  // Handlers of the loop.
  void accept_all();
  void on_socket(int fd);
  void on_room(int fd);
  /// The first message of a process that has connected, or of one that this process connected to. False: as
  /// on_message().
  bool on_hello(Connection& connection, Received received);
  bool on_capture(Connection& connection, Received received);
  /// False: the connection must be dropped, and the log has the reason.
  bool on_message(Connection& connection, Received received);
  /// `lock`: holds the mutex since the end of the connection was seen.
  void drop(int fd, std::unique_lock<std::mutex> lock);
  /// Frees the memory that is kept of processes that exited some time ago.
  void let_go();
  void channels_are_wanted() override { ask_for_channels_.run_soon(); }
  /// Asks peers for the descriptors of channels that were signalled without them.
  void ask_for_channels(int64_t now);
  void take_channel(Peer& peer, uint32_t index, Received& received);
  Message message_of(MessageKind kind, uint32_t index = 0) const;
  /// Accepts a connection for which there is no descriptor, by the descriptor that is kept for this, and rejects it.
  /// False: no connection waits, or there is no kept descriptor.
  bool refuse_next();
  /// Sends a process the message that this one does not connect to it.
  void send_refusal(int fd);
  Result<void> send_hello(int fd);
  /// Waits for the hello of the process in `slot`, which has this process's hello. After `timeout` the service thread
  /// goes on waiting.
  Result<PeerRef> wait_for_hello(base::UniqueFd socket, uint32_t slot, std::chrono::milliseconds timeout);
  // The following functions are called under the mutex.
  /// True if descriptors for one more peer may be held.
  bool has_room();
  /// This process and the one that has the slot do not connect. This stays so as long as both live: a queue pair of
  /// either may be connected by another transport already.
  void refuse(uint32_t slot);
  bool is_refused(uint32_t slot) const;
  /// Logs a warning the first time that a process is rejected.
  void warn_once(const char* what);
  using Connections = std::unordered_map<int, Connection>;
  /// The connection on which this process has sent its hello to `slot` and has no answer yet.
  Connections::iterator asked_of(uint32_t slot) {
    return std::find_if(connections_.begin(), connections_.end(), [slot](const auto& entry) {
      return entry.second.peer == nullptr && entry.second.asked_slot == slot;
    });
  }
  /// True if there is such a connection and the loop takes the answer.
  bool is_asked(uint32_t slot) {
    const auto found = asked_of(slot);
    return found != connections_.end() && found->second.watch != nullptr;
  }
  /// Takes the socket on which the process in `slot` has not answered yet, or none. The caller destroys the watch
  /// without the mutex, which the handler locks.
  std::pair<base::UniqueFd, std::unique_ptr<Loop::Watch>> take_asked(uint32_t slot);
  /// Answers a peer that asks for the channel's descriptor.
  void send_channel(Connection& connection, uint32_t index);
  void notify_all_peers(const Message& message, int fd = -1);
  void send_rest();
  Connection& add_connection(base::UniqueFd fd, PeerRef peer);
  NodeEvents& events_;
  std::unique_ptr<RuntimeDir> dir_;
  std::unique_ptr<shm::Segment> segment_;
  uint32_t slot_ = 0;
  std::array<std::atomic<uint32_t>, shm::kMaxBanks - 1> further_slots_{};
  std::atomic<bool> is_removed_{false};  ///< stop_being_found() has removed the names of the socket
  uint64_t instance_ = 0;
  int region_fd_ = -1;
  base::UniqueFd listener_;
  base::UniqueFd spare_;        ///< used by the service thread: closed to accept a connection that is to be rejected
  progress::WakeUp wakeup_fd_;  ///< peers have it, too
  PeerRef self_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Loop::Watch> arrivals_;
  std::unique_ptr<Loop::Watch> attention_;
  Loop::Timer ask_for_channels_{*loop_, [this](int64_t now) { ask_for_channels(now); }};
  Loop::Timer ask_again_{*loop_, [this](int64_t) {
                           for (const PeerRef& peer : peers()) peer->forget_asked();
                         }};                                   ///< lets channels that did not come be requested again
  Loop::Timer let_go_{*loop_, [this](int64_t) { let_go(); }};  ///< set to the time of exited_.front()

  std::mutex mutex_;
  Connections connections_;
  PeerTable known_peers_;
  PublishedChannels channels_;
  std::map<uint32_t, RuntimeDir::SocketId> refused_;  ///< by slot
  /// Slots and sockets of peers that have ended, whose sockets may still accept connections.
  std::vector<std::pair<uint32_t, RuntimeDir::SocketId>> dying_;
  bool warned_ = false;

  bool running_ = false;
  bool stopped_ = false;
  bool abandoned_ = false;  ///< this is a child of fork(): everything here belongs to the parent
  /// Exited processes of which a PeerRef is left, with the time when their memory is freed. Used by the service thread.
  std::deque<std::pair<int64_t, std::weak_ptr<Peer>>> exited_;
};

}  // namespace nupa::host
