#pragma once
#include <list>
#include <optional>
#include <vector>

#include "cm/completion_port.h"
#include "core/cq.h"
#include "core/receive_queue.h"
#include "core/srq.h"
#include "core/wire_host.h"
#include "segment/send_lock.h"
#include "transport/transport.h"

namespace nupa::core {

/// What a list's entry names in this process, if its key opens it in domain `pd` with `rights`.
WcStatus find_local(const segment::MrShared* keys, uint32_t pd, const Sge& sge, uint32_t rights,
                    transport::Piece* piece);

/// A send request that could not be executed at once: a copy that outlives the caller's lists.
struct WaitingWr {
  SendWr wr;
  std::vector<Sge> list;
  std::vector<std::byte> inline_data;
  AddressVector vector;
  uint32_t position = 0;     ///< in the send queue
  int64_t first_try_ns = 0;  ///< when the peer was first found not ready; 0: not tried yet
  int64_t next_try_ns = 0;
  transport::Verdict why = transport::Verdict::kDone;
  uint32_t rnr_timer = 0;  ///< kNotReady: what the receiver asks for (IBTA table 45)
};

class alignas(64) Qp final : public QueuePair {
 public:
  Qp(DeviceImpl& device, Pd* pd, uint32_t index, const QpOptions& options);
  /// Second half of the construction: rings and table entry. ENOMEM, EFBIG.
  int open();
  ~Qp() override;

  uint32_t number() const override { return qp_num_; }
  QpType type() const override { return options_.type; }
  uint32_t handle() const override { return index_; }
  void* user_context() const override { return options_.user_context; }
  int modify(const QpAttr& attr, uint32_t mask) override;
  int query(QpAttr* attr, QpOptions* options) const override;
  void post_begin() override { segment::SendLock(shared_->send_lock).lock(); }
  int post(const SendWr& wr) override;
  void post_end() override {
    if (__builtin_expect(wire_ != nullptr, 0)) wire_->send();
    segment::SendLock(shared_->send_lock).unlock();
  }
  int post_send(const SendWr& wr) override {
    post_begin();
    const int error = post(wr);
    post_end();
    return error;
  }
  int post_recv(const RecvWr& wr) override;
  Result<std::shared_ptr<std::byte>> map_remote(uint32_t rkey, uint64_t address, uint64_t length,
                                                uint32_t rights) override;
  std::string_view transport() const override;
  int attach_multicast(const Gid& gid, uint16_t lid) override;
  int detach_multicast(const Gid& gid, uint16_t lid) override;
  int close() override;

  uint32_t index() const { return index_; }
  Cq* send_cq() const { return send_cq_; }
  Cq* recv_cq() const { return recv_cq_; }
  uint64_t xrcd_identity() const { return shared_->xrcd; }

  /// Completion queue: entries of the send queue up to `position` are free.
  void retire(uint32_t position) { send_tail_.store(position, std::memory_order_release); }
  void retire_receive() {
    if (queue_ != nullptr) queue_->retire(true);  // under its completion queue's lock
  }
  void count_received() {
    auto& counter = shared_->received;
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  /// Tries the waiting requests. Returns when to try next (CLOCK_MONOTONIC ns), INT64_MAX: nothing waits.
  /// Never blocks: if the send side is busy it asks to be called again.
  int64_t progress(int64_t now_ns);
  /// Service thread: a peer's first request may have come before this queue pair was told that it is connected.
  void tell_established();
  /// Service thread: a peer moved this queue pair to the error state. False: busy, call again.
  bool handle_error();
  /// Service thread: the process is gone, and if this queue pair is connected to it, it fails.
  bool handle_peer_gone(cm::Peer& peer);
  /// To the process, or to another one in its slot.
  bool connected_to(const cm::Peer& peer) const;
  /// Service thread: looks for the other end. True if there is nothing more to look for. `give_up`: if it is gone,
  /// the queue pair fails as when a peer dies.
  bool look_for_peer(bool give_up);
  void recover(uint32_t dead_tag);

 private:
  friend class WireHost;
  QpState state() const { return segment::state_of(shared_->state.load(std::memory_order_acquire)); }
  /// Within one life. False: it failed meanwhile, by a peer's request for example, and only RESET leads out of the
  /// error state (IBTA 10.3.1).
  bool set_state(QpState state);
  void next_epoch();

  // qp_send.cc
  static uint32_t operations(QpType type);
  int check(const SendWr& wr) const;
  WcStatus locate(const Sge& sge, uint32_t rights, transport::Piece* piece) const;
  transport::Outcome execute_list(const SendWr& wr, const AddressVector* vector, uint64_t* length);
  transport::Outcome execute(const SendWr& wr, const AddressVector* vector, uint64_t* length);
  void finish(const SendWr& wr, uint32_t position, const transport::Outcome& outcome, uint64_t length);
  /// 0, or ENOMEM: it was not taken.
  int keep(const SendWr& wr, uint32_t position, const transport::Outcome& outcome);
  WcStatus run_local(const SendWr& wr);
  transport::Outcome execute_local(const SendWr& wr);
  /// After a window was invalidated: sets `copier_` if the peer is inside a post.
  void look_for_copier();
  void complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length);
  void fail_send(const SendWr& wr, uint32_t position, WcStatus status);
  /// A completion found no room (IBTA 11.6.3.2, local work queue catastrophic error).
  void fail_for_overrun();
  void flush_sends();
  bool expired(const WaitingWr& waiting, int64_t now, WcStatus* status) const;
  int64_t next_try(const WaitingWr& waiting, int64_t now) const;

  // qp_wire.cc
  int post_wire(const SendWr& wr, QpState now);
  void finish_wire(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length);
  int connect_by_packets(const QpAttr& attr);

  // qp_multicast.cc
  int join_on_wire(const Gid& gid);
  /// What leads to the other end.
  struct Links {
    std::unique_ptr<transport::WireEndpoint> wire;
    std::unique_ptr<transport::Endpoint> endpoint;
    /// Without the send lock: after this no thread of a transport calls them.
    void withdraw();
  };
  /// Under the send lock.
  Links take_links();

  // qp_receive.cc
  /// Under the send lock, as everything that pushes completions. False: a peer is still filling one.
  bool flush_receives();
  void drop_receives();
  void wake_sender();
  void push_flush(const segment::RecvSlot& slot);
  std::function<bool(uint32_t)> death_test();
  std::function<bool(const segment::RecvSlot&)> completion_test();

  // qp.cc
  int to_rtr(const QpAttr& attr);
  int to_reset();
  int to_error();
  void apply(const QpAttr& attr, uint32_t mask);
  void publish_attributes();
  void fail_for_lost_peer();
  void tell_drained();

  /// Takes the oldest waiting request from the list.
  std::unique_ptr<WaitingWr> take_waiting();

  // First what each request looks at: with a thousand queue pairs in turn every cache line counts. One line:
  Runtime& runtime_;
  segment::QpShared* shared_;
  const segment::MrShared* keys_;                  ///< this process's table of keys
  std::unique_ptr<transport::Endpoint> endpoint_;  ///< under the send lock, as all to do with sends
  const uint32_t operations_;                      ///< bits by Opcode: what its transport service has
  const uint32_t max_send_wr_;
  uint32_t send_head_ = 0;
  std::atomic<uint32_t> send_tail_{0};  ///< set by whoever polls the send completion queue
  const uint16_t max_send_sge_;
  const uint16_t max_inline_data_;
  const bool datagram_;
  const bool signal_all_;
  bool waits_ = false;  ///< waiting_ is not empty
  /// In SQD: the request that was tried before goes on to its end, and then its end is told if asked for.
  std::atomic<bool> finishes_first_{false};
  transport::WireEndpoint* wire_ = nullptr;  ///< instead of endpoint_: requests that complete later
  // And one more.
  cm::CompletionPort send_port_;

  segment::SendLock send_lock_;
  bool tells_drained_ = false;
  /// The oldest request invalidated a window, and the peer, which alone has its key, may still be copying through it:
  /// it holds its send lock since before.
  struct Copier {
    const cm::Peer* peer;
    const std::atomic<uint32_t>* lock;
    uint32_t seen;
    int64_t until_ns;  ///< a process that is stopped is not waited for any longer
  };
  std::optional<Copier> copier_;
  std::list<std::unique_ptr<WaitingWr>> waiting_;
  DeviceImpl& device_;
  Pd* pd_;
  uint32_t index_;
  uint32_t qp_num_;
  QpOptions options_;
  Cq* send_cq_;
  Cq* recv_cq_;
  Srq* srq_;
  Xrcd* xrcd_;
  struct Patience {
    uint8_t timeout = 0;
    uint8_t retry_cnt = 0;
    uint8_t rnr_retry = 0;
  } patience_;

  WireHost host_{*this};
  std::unique_ptr<transport::WireEndpoint> wire_owner_;
  std::unique_ptr<ReceiveQueue> queue_;
  cm::CompletionPort recv_port_;  ///< under the send lock, for flushed receives

  mutable std::mutex attr_mutex_;  ///< modify, query
  QpAttr attr_;
  std::atomic<bool> last_wqe_told_{false};
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
