// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "host/completion_port.h"
#include "core/completion_sink.h"
#include "core/local_key.h"
#include "core/receive_queue.h"
#include "core/request_recorder.h"
#include "core/seam/endpoint.h"
#include "core/seam/qp_context.h"
#include "core/seam/shared_target.h"
#include "core/srq.h"
#include "shm/send_lock.h"

namespace nupa::core {

class Qp;

/// A queue pair as a transport sees it: this process's keys, receives and completion queues. All calls are made with
/// the queue pair's send lock held.
class QpContextImpl final : public QpContext {
 public:
  /// `qp` already has its number and its place in the tables.
  explicit QpContextImpl(Qp& qp);

  bool locate(const Sge& sge, uint32_t rights, std::byte** data) override;
  WcStatus run_local(const SendWr& wr) override;
  void complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) override;
  void wake() override;
  void wake_pollers(int64_t when_ns) override;
  void wake_at(int64_t when_ns) override;
  std::byte* reach(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) override;
  bool may_flush(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t flags) override;
  std::optional<Region> region_of(uint32_t rkey, uint32_t rights) override;
  bool wrote(uint32_t length) override;
  bool awaits_memory() const override { return awaits_memory_; }
  WcStatus run_atomic(Atomic operation, uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t* operand,
                      uint64_t swap) override;
  Selection select(uint32_t srqn) override;
  bool take_receive() override;
  std::optional<uint64_t> waiting_receives() const override;
  uint64_t receive_room() override { return holds_receive() ? receive_.room() : 0; }
  bool place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) override;
  void complete_receive(const Inbound& message, WcStatus status) override;
  void return_receive() override;
  bool invalidate(uint32_t rkey) override;
  void refuse(std::optional<EventType> event) override;
  uint8_t rnr_timer() const override;
  void established() override;
  Relay* relay() const override { return relay_; }
  void set_relay(Relay* relay) { relay_ = relay; }
  /// Called when the queue pair leaves the states that receive: calls that wait for a memory owner are given up.
  void forget_calls() {
    if (target_) target_->forget_calls();
  }

 private:
  bool is_xrc() const { return type() == QpType::kXrcRecv; }
  /// This queue pair as a target of requests.
  SharedTarget& target();
  /// The same, checked against the present state of the tables.
  SharedTarget& checked_target();
  /// Returns whether `receive_` may still be filled: an owner may have removed a queue of an XRC domain.
  bool holds_receive();
  /// Records whether the memory's owner still has to serve the call that returned `status`. Returns true for kSuccess.
  bool succeeded(WcStatus status) {
    awaits_memory_ = status == host::kNotServedYet;
    return status == WcStatus::kSuccess;
  }
  /// Access to memory of another process that is not shared: a copy of at most one packet.
  std::byte* copy_of(const host::RemoteRange& range, uint64_t length, uint32_t rights);

  Qp& qp_;
  Relay* relay_ = nullptr;
  std::optional<SharedTarget> target_;
  SharedTarget::Receive receive_;
  uint32_t selected_ = 0;       ///< XRC: the queue that was selected last
  uint32_t receive_queue_ = 0;  ///< XRC: the queue that `receive_` belongs to, and its life
  uint64_t receive_life_ = 0;
  std::unique_ptr<std::byte[]> copy_;
  bool awaits_memory_ = false;
  bool written_ = false;  ///< `copy_` holds the bytes of `written_range_`
  host::RemoteRange written_range_{};
};

class alignas(64) Qp final : public QueuePair {
 public:
  Qp(DeviceImpl& device, Pd* pd, uint32_t index, const QpOptions& options);
  /// Second part of the construction: creates rings and the table entry. ENOMEM, EFBIG.
  int open();
  ~Qp() override;

  uint32_t number() const override { return qp_num_; }
  QpType type() const override { return options_.type; }
  uint32_t handle() const override { return index_; }
  void* user_context() const override { return options_.user_context; }
  int modify(const QpAttr& attr, uint32_t mask) override;
  int query(QpAttr* attr, QpOptions* options) const override;
  void post_begin() override { shm::SendLock(shared_->send_lock).lock(); }
  int post(const SendWr& wr) override;
  void post_end() override {
    if (__builtin_expect(batches_, 0)) endpoint_->send();
    shm::SendLock(shared_->send_lock).unlock();
  }
  int post_send(const SendWr& wr) override;
  int post_recv(const RecvWr& wr) override;
  Result<std::shared_ptr<std::byte>> map_remote(uint32_t rkey, uint64_t address, uint64_t length,
                                                uint32_t rights) override;
  std::string_view transport() const override;
  int attach_multicast(const Gid& gid, uint16_t lid) override;
  int detach_multicast(const Gid& gid, uint16_t lid) override;
  int close() override;

  /// Gives the peer's requests to `relay`, which outlives the queue pair. Called in RESET or INIT.
  void set_relay(Relay* relay) { context_.set_relay(relay); }
  /// After a change of the relay: has the endpoint send the answers that are due. Called between post_begin() and
  /// post_end().
  void answer() {
    if (endpoint_ != nullptr) endpoint_->answer();
  }
  /// The peer has no receive for the oldest request. Called between post_begin() and post_end().
  bool awaits_receive() const { return endpoint_ != nullptr && endpoint_->awaits_receive(); }

  uint32_t index() const { return index_; }
  CompletionSink* send_cq() const { return send_cq_; }
  CompletionSink* recv_cq() const { return recv_cq_; }
  uint64_t xrcd_identity() const { return shared_->xrcd; }

  /// Called by the completion queue: entries of the send queue up to `position` are free.
  void retire(uint32_t position) { send_tail_.store(position, std::memory_order_release); }
  void retire_receive() {
    if (queue_ != nullptr) queue_->retire(true);  // the caller holds the completion queue's lock
  }
  void count_received() {
    auto& counter = shared_->received;
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  /// Continues the requests that wait. Returns the time of the next call (CLOCK_MONOTONIC ns), or INT64_MAX if none
  /// waits. Never blocks: if the send side is busy it asks to be called again.
  int64_t progress(int64_t now_ns);
  /// Service thread: raises the event of a peer's first request that came while this queue pair was in RTR.
  void report_established();
  /// Service thread: handles the error state that a peer set. Returns false if the queue pair is busy; the caller calls
  /// again.
  bool handle_error();
  /// Service thread: the process exited. If this queue pair is connected to it, its requests fail; a UD queue pair
  /// drops its state about that process. Returns false if the queue pair is busy; the caller calls again.
  bool handle_peer_exit(host::Peer& peer);
  /// True if it is connected to the process, or to another one in its slot.
  bool connected_to(host::Peer& peer) const;
  /// True if it is in the error state, or a peer recorded an error.
  bool has_failed() const;
  void recover(uint32_t dead_tag);
  /// In a forked child: the queue pair is in RESET, where posts fail, and no request that the parent posted is sent.
  void abandon() {
    if (batches_) batches_ = false;
  }

 private:
  friend class QpContextImpl;
  QpState state() const { return shm::state_of(shared_->state.load(std::memory_order_acquire)); }
  /// Changes the state within one life. Returns false if the queue pair failed meanwhile, for example by a peer's
  /// request: only RESET leaves the error state (IBTA 10.3.1).
  bool set_state(QpState state);
  void next_epoch();

  // qp_send.cc
  static uint32_t operations(QpType type);
  static uint32_t usual_operations(QpType type, uint32_t max_send_sge);
  /// Takes a request with the send lock held.
  int post_now(const SendWr& wr);
  /// The same for a request of any kind in any state.
  [[gnu::noinline]] int post_any(const SendWr& wr);
  int check(const SendWr& wr) const;
  /// The part of check() for BIND_MW and FLUSH.
  [[gnu::cold]] int check_fields(const SendWr& wr) const;
  WcStatus locate(const Sge& sge, uint32_t rights, Piece* piece) const {
    return find_local(keys_, shared_->pd, sge, rights, piece);
  }
  /// Checks the length of a request whose list is valid, and the depth that it needs.
  WcStatus check_length(Opcode opcode, uint64_t length) const;
  /// The same check for a request that a response ends.
  WcStatus check_read(Opcode opcode, uint64_t length) const;
  [[gnu::noinline]] int post_list(const SendWr& wr, uint32_t position);
  int submit(const Request& request);
  /// The same while a capture is attached.
  [[gnu::noinline, gnu::cold]] int submit_recorded(const Request& request);
  [[gnu::noinline, gnu::cold]] void record_end(const SendWr& wr, uint32_t position, WcStatus status);
  /// Null: the transport records its own packets, or there is no memory.
  RequestRecorder* recorder();
  [[gnu::noinline]] int end_post(const Request& request, Posted posted);
  void finish(const SendWr& wr, uint32_t position, uint64_t length);
  /// Ends a request: writes its completion, counts it, and changes the state after a fault.
  void complete(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length);
  void count_failure(WcStatus status);
  WcStatus run_local(const SendWr& wr);
  void write_completion(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length);
  /// The same, into the completion queue's ring.
  void write_entry(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length);
  /// Called with the send lock held, after a local fault. Raises `event`, if there is one, unless an earlier fault was
  /// recorded. The service thread raises it and flushes the receives, because a peer may be filling one.
  [[gnu::cold]] void enter_error(std::optional<EventType> event);
  void flush_sends();

  // qp_receive.cc
  /// Called with the send lock held, like everything that pushes completions. Returns false if a peer is still filling
  /// a receive.
  bool flush_receives();
  void drop_receives();
  void wake_sender();
  void push_flush(const shm::RecvSlot& slot);
  std::function<bool(uint32_t)> death_test();
  std::function<bool(const shm::RecvSlot&)> completion_test();

  // qp.cc
  int to_rtr(const QpAttr& attr);
  int to_reset();
  int to_error();
  void apply(const QpAttr& attr, uint32_t mask);
  /// Waits until no sender that began before the state change still uses this queue pair. `slot`, `qp_num`: its peer
  /// over shared memory, or 0.
  void await_senders(uint32_t slot, uint32_t qp_num);
  void publish_attributes();
  void report_drained();
  /// Called with the send lock held. Returns the endpoint, for withdraw() without that lock.
  std::unique_ptr<Endpoint> take_endpoint();
  /// From now on the port's counts grow with this endpoint's messages or packets.
  void begin_counts(shm::Counting counting);
  /// Moves messages that are not in the port's counts there: the endpoint ends.
  void settle_counts();

  // The members that each request reads come first: with a thousand queue pairs in turn every cache line counts. First
  // cache line:
  Process& process_;
  shm::QpShared* shared_;
  const shm::MrShared* keys_;           ///< this process's key table
  std::unique_ptr<Endpoint> endpoint_;  ///< used with the send lock held, like all members of the send side
  const uint32_t usual_operations_;     ///< bits by Opcode: the operations that post_now() executes
  const uint32_t max_send_wr_;
  uint32_t send_head_ = 0;
  std::atomic<uint32_t> send_tail_{0};  ///< set by the thread that polls the send completion queue
  const uint16_t max_inline_data_;
  const bool signal_all_;
  bool batches_ = false;       ///< copy of the endpoint's traits, like copies_in_post_
  uint8_t max_rd_atomic_ = 0;  ///< READs and atomics that may be outstanding
  /// In SQD: requests that had begun still run. When they have ended, an event is raised if it was requested.
  std::atomic<bool> finishes_first_{false};
  // Second cache line:
  host::CompletionPort send_port_;
  SideSlot* const side_slot_;  ///< of the send completion queue; null: there is none

  const uint32_t operations_;  ///< bits by Opcode: the operations of its transport service
  const uint16_t max_send_sge_;
  const bool datagram_;
  bool copies_in_post_ = false;
  shm::SendLock send_lock_;
  bool reports_drained_ = false;
  DeviceImpl& device_;
  Pd* pd_;
  uint32_t index_;
  uint32_t qp_num_;
  uint32_t last_completed_ = 0;  ///< position of the request whose completion was written last
  QpOptions options_;
  CompletionSink* send_cq_;
  CompletionSink* recv_cq_;
  Srq* srq_;
  Xrcd* xrcd_;

  QpContextImpl context_;
  std::unique_ptr<RequestRecorder> recorder_;  ///< made for the first request that a capture records
  std::unique_ptr<ReceiveQueue> queue_;
  host::CompletionPort recv_port_;  ///< used with the send lock held, for flushed receives

  mutable std::mutex attr_mutex_;  ///< held in modify() and query()
  QpAttr attr_;
  std::atomic<bool> last_wqe_reported_{false};
  std::atomic<bool> open_{false};

 public:
  Users openers;  ///< further handles made by open_qp
};

/// A further handle on an XRC_RECV queue pair.
class SharedQp final : public QueuePair {
 public:
  SharedQp(Qp& qp, void* user_context) : qp_(qp), user_context_(user_context) { qp_.openers.add(); }
  ~SharedQp() override {
    if (open_) qp_.openers.drop();
  }
  uint32_t number() const override { return qp_.number(); }
  QpType type() const override { return qp_.type(); }
  uint32_t handle() const override { return qp_.handle(); }
  void* user_context() const override { return user_context_; }
  int modify(const QpAttr& attr, uint32_t mask) override { return qp_.modify(attr, mask); }
  int query(QpAttr* attr, QpOptions* options) const override { return qp_.query(attr, options); }
  void post_begin() override { qp_.post_begin(); }
  int post(const SendWr& wr) override { return qp_.post(wr); }
  void post_end() override { qp_.post_end(); }
  int post_recv(const RecvWr& wr) override { return qp_.post_recv(wr); }
  int attach_multicast(const Gid& gid, uint16_t lid) override { return qp_.attach_multicast(gid, lid); }
  int detach_multicast(const Gid& gid, uint16_t lid) override { return qp_.detach_multicast(gid, lid); }
  int close() override {
    if (open_) qp_.openers.drop();
    open_ = false;
    return 0;
  }

 private:
  Qp& qp_;
  void* user_context_;
  bool open_ = true;
};

}  // namespace nupa::core
