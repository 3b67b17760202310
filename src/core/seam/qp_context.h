// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The core's side of a queue pair, as a transport sees it: its identity, its send lock, this process's memory by key,
/// the completion of requests, and the operations of the responder.

#include <nupa/queue_pair.h>

#include <optional>

#include "shm/layout.h"
#include "shm/send_lock.h"

namespace nupa::core {

class Relay;

/// The part of a message that the completion of its receive shows.
struct Inbound {
  WcOpcode opcode = WcOpcode::kRecv;
  uint32_t imm_data = 0;  ///< the immediate data as sent, or the invalidated key with wc_flag::kWithInv
  uint32_t wc_flags = 0;
  uint32_t byte_len = 0;
  uint32_t src_qp = 0;
  bool solicited = false;
  uint8_t sl = 0;     ///< service level, where the transport has one
  uint16_t slid = 0;  ///< UD: the sender's local identifier
};

/// Returns whether the receive queue that an XRC request names exists.
enum class Selection : uint8_t {
  kYes,
  kLater,  ///< the process that may own it has not answered yet
  kNone,
};

/// The atomic operations; ATOMIC_WRITE is one of them.
enum class AtomicOp : uint8_t { kCompareSwap, kFetchAdd, kWrite };

/// The core's side of one queue pair. Calls are made with its send lock held, unless a function states otherwise. It
/// lives longer than the queue pair's endpoint.
class QpContext {
 public:
  /// Constant while the queue pair exists.
  struct Identity {
    uint32_t number = 0;
    QpType type = QpType::kRc;
    QpCap cap = {};
    bool hears_itself = true;                     ///< UD: receives its own datagrams to groups that it is a member of
    shm::QpShared* shared = nullptr;              ///< its entry in the tables that processes of this host see
    shm::StatisticsShared* statistics = nullptr;  ///< for `nupa stat`; the transport writes its name there
  };

  QpContext() = default;
  explicit QpContext(const Identity& identity) : identity_(identity) {}
  virtual ~QpContext() = default;
  QpContext(const QpContext&) = delete;
  QpContext& operator=(const QpContext&) = delete;

  // Any thread, at any time.
  uint32_t number() const { return identity_.number; }
  QpType type() const { return identity_.type; }
  const QpCap& cap() const { return identity_.cap; }
  bool hears_itself() const { return identity_.hears_itself; }
  shm::QpShared& shared() const { return *identity_.shared; }
  shm::StatisticsShared& statistics() const { return *identity_.statistics; }
  shm::PortCountsShared& port_counts() const { return statistics().port; }
  QpState state() const { return shm::state_of(shared().state.load(std::memory_order_acquire)); }
  /// UD only.
  uint32_t qkey() const { return shared().qkey.load(std::memory_order_relaxed); }

  // Locking. A transport's thread calls these while it holds no other send lock.
  /// Never waits. Returns false if another thread holds the lock.
  bool try_enter() { return shm::SendLock(shared().send_lock).try_lock(); }
  void leave() { shm::SendLock(shared().send_lock).unlock(); }

  // Requester.
  /// Finds the bytes of a list's entry at this moment and checks `rights` (access bits) on them. *data is null for a
  /// null region. Returns false if the key does not allow the access any more.
  virtual bool locate(const Sge& sge, uint32_t rights, std::byte** data) = 0;
  /// Executes BIND_MW or LOCAL_INV. kMwBindErr: forbidden.
  virtual WcStatus run_local(const SendWr& wr) = 0;
  /// Ends a request that post() took. `length`: bytes of the message. The core writes the completion and counts it; on
  /// a failure it changes the queue pair's state and raises events.
  virtual void complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) = 0;
  /// Requests a call of Endpoint::progress(): soon, and by each thread that polls the completion queue of the sends and
  /// finds it empty.
  virtual void wake() {}
  /// As wake(), but the service thread calls at `when_ns` (CLOCK_MONOTONIC) or earlier; INT64_MAX: another thread will
  /// wake it (ProcessContext::try_waiting_requests).
  virtual void wake_pollers([[maybe_unused]] int64_t when_ns) {}
  /// Requests a call of Endpoint::progress() at `when_ns` (CLOCK_MONOTONIC) or earlier, by the service thread only.
  virtual void wake_at([[maybe_unused]] int64_t when_ns) {}

  // Responder, where the target's own thread serves requests.
  /// Takes the peer's requests in place of the operations below; null: there is none. Constant while the queue pair has
  /// an endpoint.
  virtual Relay* relay() const { return nullptr; }
  /// Returns the memory that a request names if the queue pair and the key give it `rights` (IBTA 9.4.1.1.3); otherwise
  /// null. `length` is not 0; if it exceeds one packet, only the rights are checked. The pointer is valid until the
  /// engine's call ends; with XRC until the next call for this queue pair, since it may point to a copy. `srqn`: the
  /// receive queue that an XRC request names.
  virtual std::byte* reach(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) = 0;
  /// Returns whether the queue pair and the key allow a FLUSH with these flush_flag bits of the range, or of the whole
  /// region or window. `length` may be 0.
  virtual bool may_flush([[maybe_unused]] uint32_t srqn, [[maybe_unused]] uint32_t rkey,
                         [[maybe_unused]] uint64_t address, [[maybe_unused]] uint64_t length,
                         [[maybe_unused]] uint32_t flags) {
    return false;
  }
  struct Region {
    uint64_t address = 0;  ///< of its first byte, as its key has it
    uint64_t length = 0;
    std::byte* at = nullptr;
  };
  /// Returns the whole memory region that a remote key of this process names, if the key gives the queue pair `rights`
  /// on it. Empty: it does not, or the key is that of a window, or a relay serves requests. It is valid until the key
  /// or the rights are revoked: see Transport::revoked() and Endpoint::await_peer().
  virtual std::optional<Region> region_of([[maybe_unused]] uint32_t rkey, [[maybe_unused]] uint32_t rights) {
    return std::nullopt;
  }
  /// Called after the engine has written `length` bytes to the memory that reach() returned last, from its beginning.
  /// Returns false if the memory is not accessible any more.
  virtual bool wrote([[maybe_unused]] uint32_t length) { return true; }
  /// True if the last call of reach(), wrote(), place() or run_atomic() failed only for the moment (run_atomic()
  /// returns kNotServedYet). The memory belongs to another process, which has to copy and has not done so. The same
  /// call, made again later, continues the operation.
  virtual bool awaits_memory() const { return false; }
  using Atomic = AtomicOp;
  /// `operand` holds the compare, add or new value and receives the value found. Returns kSuccess; kRemAccessErr if
  /// reach() returns null; kRemInvReqErr if the processor cannot access the word atomically; kRemOpErr if the memory is
  /// not accessible; kNotServedYet.
  virtual WcStatus run_atomic(Atomic operation, uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t* operand,
                              uint64_t swap);
  /// XRC: selects the receive queue that a request names, in the queue pair's domain. Never waits.
  virtual Selection select([[maybe_unused]] uint32_t srqn) { return Selection::kYes; }
  /// Takes the oldest posted receive of the queue that was selected last. It stays taken until it is completed or
  /// returned. Returns false if none is posted.
  virtual bool take_receive() = 0;
  /// Returns the number of receives that are posted and not taken. Empty: this queue pair alone does not decide who
  /// takes them (a shared receive queue), or they are those of a relay.
  virtual std::optional<uint64_t> waiting_receives() const { return std::nullopt; }
  /// Bytes that the taken receive can hold.
  virtual uint64_t receive_room() = 0;
  /// Copies into the taken receive's buffers. *behind, unless `behind` is null, is set to the address where the copy
  /// ended. Returns false if the keys of the buffers do not allow it.
  virtual bool place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) = 0;
  virtual void complete_receive(const Inbound& message, WcStatus status) = 0;
  virtual void return_receive() = 0;
  /// SEND_WITH_INV: invalidates the window. Returns false if `rkey` is no key of such a window.
  virtual bool invalidate(uint32_t rkey) = 0;
  /// Refuses a request: the queue pair enters the error state, and raises `event` if there is one.
  virtual void refuse(std::optional<EventType> event) = 0;
  /// The time code of an RNR NAK: how long a requester waits before it sends again (IBTA table 45).
  virtual uint8_t rnr_timer() const = 0;
  /// Called for a request whose turn has come, before it is checked. Only the first call has an effect (IBTA 11.6.3.1).
  virtual void established() = 0;

 protected:
  Identity identity_{};  ///< constant once a transport has the context
};

}  // namespace nupa::core
