// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The core's side of a queue pair, as a transport sees it: its identity, its lock, this process's memory by key, the
/// completion of requests, and the operations of the responding half.

#include <nupa/queue_pair.h>

#include <optional>

#include "shm/layout.h"
#include "shm/send_lock.h"

namespace nupa::core {

/// The part of a message that a receive's completion shows.
struct Inbound {
  WcOpcode opcode = WcOpcode::kRecv;
  uint32_t imm_data = 0;  ///< as sent, or the invalidated key with wc_flag::kWithInv
  uint32_t wc_flags = 0;
  uint32_t byte_len = 0;
  uint32_t src_qp = 0;
  bool solicited = false;
  uint8_t sl = 0;     ///< service level, where the transport has one
  uint16_t slid = 0;  ///< UD: the sender's local identifier
};

/// Whether there is a receive queue that a request names (XRC).
enum class Selection : uint8_t {
  kYes,
  kLater,  ///< the process that may own it does not answer yet
  kNone,
};

/// ATOMIC_WRITE is one too.
enum class AtomicOp : uint8_t { kCompareSwap, kFetchAdd, kWrite };

/// The core's side of one queue pair. Calls are made with its send lock held, unless a function says otherwise. It
/// lives longer than the queue pair's endpoint.
class QpContext {
 public:
  /// Constant while the queue pair exists.
  struct Identity {
    uint32_t number = 0;
    QpType type = QpType::kRc;
    QpCap cap = {};
    bool hears_itself = true;                     ///< UD: gets its own datagrams to groups that it is a member of
    shm::QpShared* shared = nullptr;              ///< its row in the tables that processes of this host see
    shm::StatisticsShared* statistics = nullptr;  ///< for `nupa stat`; the transport that fills it names itself
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
  QpState state() const { return shm::state_of(shared().state.load(std::memory_order_acquire)); }
  /// UD only.
  uint32_t qkey() const { return shared().qkey.load(std::memory_order_relaxed); }

  // The send lock, for a thread of the transport that holds no other one.
  /// Never waits. False: another thread holds it.
  bool try_enter() { return shm::SendLock(shared().send_lock).try_lock(); }
  void leave() { shm::SendLock(shared().send_lock).unlock(); }

  // The requester.
  /// Where the bytes of a list's entry lie at this moment, with `rights` (access bits) on them; *data null: a null
  /// region. False: the key does not open them any more.
  virtual bool locate(const Sge& sge, uint32_t rights, std::byte** data) = 0;
  /// BIND_MW and LOCAL_INV. kMwBindErr: forbidden.
  virtual WcStatus run_local(const SendWr& wr) = 0;
  /// Ends a request that post() took; `length`: bytes of the message. The core writes the completion, counts, and on a
  /// failure changes the state and raises events.
  virtual void complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) = 0;
  /// Endpoint::progress() is wanted: soon, and by each thread that polls for completions of the sends in vain.
  virtual void wake() {}
  /// The same at `when_ns` (CLOCK_MONOTONIC), by the service thread alone.
  virtual void wake_at([[maybe_unused]] int64_t when_ns) {}

  // The responder, where the target's own thread serves it.
  /// The memory that a request names, if the queue pair and the key give it `rights` (IBTA 9.4.1.1.3); else null.
  /// `length` is not 0; longer than one packet: the rights are asked for alone. Valid until the engine's call ends, or
  /// with XRC until the next one of this queue pair, since it may be a copy. `srqn`: XRC, whose requests name their
  /// receive queue.
  virtual std::byte* reach(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) = 0;
  /// The engine has written `length` bytes to the memory that reach() returned last, from its beginning. False: the
  /// memory is out of reach by now.
  virtual bool wrote([[maybe_unused]] uint32_t length) { return true; }
  /// The last call of reach(), wrote(), place() or run_atomic() failed only for now: the memory is another process's,
  /// which has to copy and has not done so (kNotServedYet of run_atomic). The same call, later, goes on with it.
  virtual bool awaits_memory() const { return false; }
  using Atomic = AtomicOp;
  /// `operand` goes in as compare, add or new value and comes back as the value found. kSuccess; kRemAccessErr: as
  /// reach(); kRemInvReqErr: no word that a processor can be atomic on; kRemOpErr: out of reach; kNotServedYet.
  virtual WcStatus run_atomic(Atomic operation, uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t* operand,
                              uint64_t swap);
  /// XRC: the receive queue that a request names, of its domain. Never waits.
  virtual Selection select([[maybe_unused]] uint32_t srqn) { return Selection::kYes; }
  /// Takes the oldest posted receive, of the queue selected last; it stays taken until completed or returned. False:
  /// none is posted.
  virtual bool take_receive() = 0;
  /// Bytes that the taken receive has room for.
  virtual uint64_t receive_room() = 0;
  /// Copies into the taken receive's buffers; *behind: where the copy ended. False: their keys do not open them.
  virtual bool place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) = 0;
  virtual void complete_receive(const Inbound& message, WcStatus status) = 0;
  virtual void return_receive() = 0;
  /// SEND_WITH_INV. False: not such a window's key.
  virtual bool invalidate(uint32_t rkey) = 0;
  /// The responder refuses a request: the queue pair goes to the error state, with an event if one is named.
  virtual void refuse(std::optional<EventType> event) = 0;
  /// The code of the time that a requester waits for a receive (IBTA table 45).
  virtual uint8_t rnr_timer() const = 0;
  /// A request has come and its turn, before it is checked. Only the first one counts (IBTA 11.6.3.1).
  virtual void established() = 0;

 protected:
  Identity identity_{};  ///< constant once a transport has the context
};

}  // namespace nupa::core
