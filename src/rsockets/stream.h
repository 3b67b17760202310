// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#include <memory>
#include <mutex>
#include <vector>

#include "rsockets/endpoint.h"
#include "rsockets/limits.h"
#include "rsockets/mappings.h"
#include "progress/spin_lock.h"
#include "rsockets/receive_ring.h"
#include "rsockets/send_window.h"
#include "rsockets/service.h"
#include "rsockets/settings.h"
#include "rsockets/socket.h"
#include "rsockets/stream_buffers.h"
#include "rsockets/stream_options.h"

namespace nupa::rsockets {

class Cursor;
class Listener;

/// A stream rsocket. It is idle, then listening, or connecting and connected.
///
/// Locks, in the order in which they are taken: send_mutex_ and receive_mutex_ (one for each direction, held for a
/// whole call), connection_mutex_ (connection events), completions_ (polling the queue, control messages). A send that
/// has room takes only send_mutex_. A receive of data that has arrived takes only receive_mutex_.
class Stream final : public Socket {
 public:
  enum class Phase {
    kIdle,
    kListening,
    kAddress,     ///< being resolved
    kRoute,       ///< being resolved
    kConnecting,  ///< request sent, or reply sent and not confirmed yet
    kConnected,
    kDisconnected,  ///< closed cleanly, by both sides or by the peer
    kFailed,
  };

  /// Returns null and sets errno on failure.
  static std::unique_ptr<Stream> make(int domain);
  /// Accepts a listener's request on the listener's channel. Returns null if the request was rejected; then the id is
  /// destroyed.
  static std::unique_ptr<Stream> answer(const Stream& listener, rdma_cm_id* id, const rdma_conn_param& request);
  ~Stream() override;

  int fd() const override { return channel_.fd(); }
  int bind(const sockaddr* addr, socklen_t length) override;
  int listen(int backlog) override;
  int accept(Socket** accepted) override;
  int connect(const sockaddr* addr, socklen_t length) override;
  int shutdown(int how) override;
  void close() override;
  ssize_t send(Pieces data, int flags, const sockaddr* to, socklen_t length) override;
  ssize_t receive(Pieces room, int flags, sockaddr* from, socklen_t* length) override;
  int local_name(sockaddr* addr, socklen_t* length) override;
  int peer_name(sockaddr* addr, socklen_t* length) override;
  int set_option(int level, int name, const void* value, socklen_t length) override;
  int get_option(int level, int name, void* value, socklen_t* length) override;
  size_t readable_bytes() override;
  short ready(short events) override;
  void arm(std::vector<pollfd>* fds) override;
  void wake(int descriptor) override;

  off_t map(void* buffer, size_t length, int protection, off_t offset);
  int unmap(void* buffer, size_t length);
  ssize_t write_mapped(const std::byte* data, size_t length, off_t offset, int flags);

  Phase phase() const { return phase_.load(std::memory_order_acquire); }
  bool connected() const { return phase() == Phase::kConnected; }
  /// True if a connection was requested and its result is not known yet.
  bool connecting() const { return phase() >= Phase::kAddress && phase() <= Phase::kConnecting; }
  rdma_cm_id* id() const { return id_; }
  /// Ends an attempt to connect, which then has failed with `error`. Returns false if the connection is established.
  bool give_up(int error);
  /// On the listener's side: the connection is established. Moves it to a separate event channel. Returns 0 or a
  /// negative errno.
  int established();
  /// Called at the exit of the process, so that the peer reads an end of file. Changes no other state, because other
  /// threads may still use the stream.
  void send_goodbye();
  /// Waits until the peer's adapter has acknowledged all control messages, the connection has failed, or the deadline
  /// passes.
  void await_goodbye(const Deadline& deadline);

 private:
  explicit Stream(int domain);

  // stream_connect.cc
  int create_endpoint();
  ConnectData connect_data() const;
  int take_connect_data(const void* data, size_t length);
  int begin_connect();
  int send_request();
  void handle_connection_events();
  void handle_event(const rdma_cm_event& event);
  void retry_or_fail(int error);
  void enter(Phase phase) { phase_.store(phase, std::memory_order_release); }
  void become_connected();
  void fail(int error);
  void peer_left();
  int finish_connecting(bool nonblocking);

  // stream_progress.cc
  void progress();
  void progress_locked();
  bool handle_receive(uint32_t message);
  void handle_completion(const ibv_wc& completion);
  void repost_receives(bool all);
  void update_credits();
  int post_control(uint32_t message, const RemoteBuffer* target);
  short revents(short events) const;
  bool control_room() const { return controls_posted_.load() - controls_done_.load() < kControlRequests; }

  // stream_send.cc
  bool can_send() const { return window_.open() && targets_.open(); }
  int wait_for_room(bool nonblocking);
  /// Counts the request. The caller adds its scatter list.
  ibv_send_wr write_request(uint32_t staged, uint32_t message, bool is_message, uint64_t addr, uint32_t key);
  /// Returns 0 or a negative errno.
  int post_write(const ibv_send_wr& wr, ibv_sge* list, int count, unsigned int flags);
  int send_table_entries(bool nonblocking);
  uint32_t chunk(size_t left, uint32_t ramp, uint32_t room) const;
  int write_chunk(Cursor* from, uint32_t length, uint32_t message, bool is_message, uint64_t addr, uint32_t key);
  int send_error() const;

  // stream_receive.cc
  size_t copy_out(Pieces room, size_t skip_room, bool peek);
  bool at_end() const;

  int take_error() { return error_.exchange(0); }
  int keepalive_seconds() const;
  int set_socket_option(int name, const void* value, socklen_t length);
  int set_tcp_option(int name, int value);
  int set_rdma_option(int name, const void* value, socklen_t length);
  int get_socket_option(int name, void* value, socklen_t* length);
  int get_tcp_option(int name, void* value, socklen_t* length);
  int get_rdma_option(int name, void* value, socklen_t* length);
  void start_keepalive();
  /// Runs on the service loop. Sends a zero-length WRITE that the peer's adapter must acknowledge, so a dead peer is
  /// noticed.
  void send_keepalive();

  friend class Listener;

  StreamOptions options_;
  EventChannel channel_;
  rdma_cm_id* id_ = nullptr;
  std::unique_ptr<Listener> listener_;
  sockaddr_storage destination_{};
  int attempts_ = 0;

  std::atomic<Phase> phase_{Phase::kIdle};
  std::atomic<int> error_{0};
  std::atomic<bool> write_shut_{false};  ///< shut by this side
  std::atomic<bool> read_shut_{false};   ///< shut by this side
  std::atomic<bool> peer_shut_{false};   ///< the peer sends no more data
  std::atomic<bool> closing_{false};
  KeepAlive keep_alive_;

  std::mutex connection_mutex_;

  std::mutex send_mutex_;
  SendWindow window_;
  TargetTable targets_;
  uint32_t inline_bytes_ = 0;
  bool executes_at_once_ = true;  ///< inline requests of any length work; cleared when one was refused
  ibv_qp* qp_ = nullptr;

  alignas(64) std::mutex receive_mutex_;
  ReceiveRing ring_;
  std::unique_ptr<StreamBuffers> buffers_;

  /// Protects polling of the completion queue and the state that it changes.
  alignas(64) progress::SpinLock completions_;
  CompletionSource source_;
  RemoteBuffer peer_targets_{};  ///< the peer's table; length counts its entries
  uint32_t peer_next_target_ = 1;
  bool swap_tables_ = false;
  uint32_t receives_to_post_ = 0;
  uint32_t repost_together_ = 1;
  uint16_t messages_ = 0;           ///< received messages that took a credit
  uint16_t messages_credited_ = 0;  ///< value of messages_ at the last credit message
  std::atomic<uint32_t> controls_posted_{0};
  std::atomic<uint32_t> controls_done_{0};
  bool end_reported_ = false;  ///< this side has sent its message that it sends no more
  bool was_writable_ = true;   ///< result of the last check, to count edges
  uint32_t quiet_looks_ = 0;
  std::atomic<int> broken_{0};  ///< errno of a fault that a completion reported

  Mappings mappings_;
};

}  // namespace nupa::rsockets
