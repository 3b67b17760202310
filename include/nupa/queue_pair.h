// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Queue pairs, shared receive queues, and the work requests that are posted to them.
#include <nupa/completion.h>
#include <nupa/memory.h>
#include <nupa/types.h>

#include <cerrno>
#include <string_view>

namespace nupa {

// ---- work requests --------------------------------------------------------------------------------------------------

/// One request for a send queue (IBTA 11.4.1.1). Fields that do not belong to the opcode are not read. `sg_list` is
/// read only during the call. The memory that it names belongs to the device until the completion, except with
/// send_flag::kInline.
struct SendWr {
  uint64_t wr_id = 0;             ///< any value; the completion holds it
  const Sge* sg_list = nullptr;   ///< `num_sge` pieces of local memory; may be null if that is 0
  uint32_t num_sge = 0;           ///< 0 to the queue pair's max_send_sge
  Opcode opcode = Opcode::kSend;  ///< operation; the queue pair's type must have it
  uint32_t flags = 0;             ///< send_flag bits
  uint32_t imm_or_rkey = 0;       ///< *_WITH_IMM: immediate, network byte order; *_INV: the rkey to invalidate;
                                  ///< kFlush: flush_flag bits
  uint32_t rkey = 0;              ///< RDMA, atomics and kFlush: the peer's key; BIND_MW: the window's new rkey
  uint64_t remote_addr = 0;       ///< RDMA and atomics: address, or offset in a zero-based region of the peer
  uint64_t compare_add = 0;  ///< value to compare with or to add; kAtomicWrite: the 8 bytes, if `sg_list` is empty;
                             ///< kFlush: bytes of the range from `remote_addr` on
  uint64_t swap = 0;         ///< kCompareSwap: the new value
  uint32_t remote_qpn = 0;   ///< UD: queue pair of the receiver
  uint32_t remote_qkey = 0;  ///< UD; the high bit set: the queue pair's own Q_Key is used
  uint32_t remote_srqn = 0;  ///< XRC: SharedReceiveQueue::number() of the receiver
  const AddressHandle* ah = nullptr;  ///< UD: the destination, not null
  MemoryWindow* mw = nullptr;         ///< kBindMw: the window, not null
  MwBindInfo bind{};                  ///< kBindMw: the memory
};

/// One receive. `sg_list` is read only during the call. The memory that it names belongs to the device until the
/// completion.
struct RecvWr {
  uint64_t wr_id = 0;            ///< any value; the completion holds it
  const Sge* sg_list = nullptr;  ///< `num_sge` pieces of local memory; may be null if that is 0
  uint32_t num_sge = 0;          ///< 0 to the queue's max_recv_sge or max_sge
};

// ---- shared receive queues ------------------------------------------------------------------------------------------

/// The types of shared receive queues.
enum class SrqType : uint32_t {
  kBasic = 0,  ///< for queue pairs of this process
  kXrc = 1     ///< for XRC queue pairs of a domain (IBTA annex A14)
};

/// The attributes that SharedReceiveQueue::modify() may set, one bit each (IBTA 10.2.9).
namespace srq_attr {
constexpr uint32_t kMaxWr = 1u << 0;  ///< the size
constexpr uint32_t kLimit = 1u << 1;  ///< the limit
}  // namespace srq_attr

/// The options of Device::create_srq().
struct SrqOptions {
  uint32_t max_wr = 1;             ///< 1 to DeviceAttr::max_srq_wr receives
  uint32_t max_sge = 1;            ///< 0 to DeviceAttr::max_srq_sge entries of a receive's list
  uint32_t limit = 0;              ///< as in SharedReceiveQueue::modify(), at most `max_wr`
  SrqType type = SrqType::kBasic;  ///< type
  XrcDomain* xrcd = nullptr;       ///< kXrc: the domain, not null
  CompletionQueue* cq = nullptr;   ///< kXrc: where its receives complete, not null
  void* user_context = nullptr;    ///< any value; SharedReceiveQueue::user_context() returns it
};

/// A receive queue that several queue pairs draw from (IBTA 10.2.9). Any thread may call any function.
class SharedReceiveQueue {
 public:
  /// Calls close(). A queue that is still in use is leaked, with an error in the log.
  virtual ~SharedReceiveQueue() = default;
  /// Posts one receive. Receives are filled in the order in which they were posted. It never blocks.
  /// @param wr the receive
  /// @return 0 or an errno value:
  ///   - ENOMEM: the queue is full.
  ///   - EINVAL: the list has too many entries.
  virtual int post_recv(const RecvWr& wr) = 0;
  /// Changes attributes. The limit raises EventType::kSrqLimitReached once, when fewer receives than `limit` are left,
  /// and at once if that is already so.
  /// @param mask what to change: srq_attr bits
  /// @param max_wr receives, at most what the queue has, since it is not resized; only read with srq_attr::kMaxWr
  /// @param limit receives, at most what the queue has; 0 disarms the limit; only read with srq_attr::kLimit
  /// @return 0 or an errno value:
  ///   - EINVAL: another bit is set, or a value is too large.
  ///   - ENODEV: a parent process opened the device.
  virtual int modify(uint32_t mask, uint32_t max_wr, uint32_t limit) = 0;
  /// Returns the attributes. Each pointer may be null.
  /// @param max_wr receives that the queue holds
  /// @param max_sge entries of a receive's list
  /// @param limit the limit; 0: none, or it has been reached
  /// @return 0, or ENODEV: a parent process opened the device.
  virtual int query(uint32_t* max_wr, uint32_t* max_sge, uint32_t* limit) const = 0;
  /// @return The XRC shared receive queue number for SendWr::remote_srqn. It is valid on every transport.
  virtual uint32_t number() const = 0;
  /// @return The queue's number in this process.
  virtual uint32_t handle() const = 0;
  /// @return SrqOptions::user_context.
  virtual void* user_context() const = 0;
  /// Closes the queue and drops its receives.
  /// @return 0, or EBUSY: a queue pair uses it.
  virtual int close() = 0;
};

// ---- queue pairs ----------------------------------------------------------------------------------------------------

/// The options of Device::create_qp().
struct QpOptions {
  QpType type = QpType::kRc;           ///< transport service
  CompletionQueue* send_cq = nullptr;  ///< where sends complete, not null; kXrcRecv: not used
  CompletionQueue* recv_cq = nullptr;  ///< where receives complete, not null for kRc, kUc and kUd
  SharedReceiveQueue* srq = nullptr;   ///< null: the queue pair has its own receive queue; only kRc, kUc, kUd
  XrcDomain* xrcd = nullptr;           ///< kXrcRecv: the domain, not null
  QpCap cap{};                         ///< wanted sizes; query() returns what the queue pair has
  bool signal_all = false;             ///< every send is signalled
  bool hears_itself = true;            ///< kUd: as a member of a multicast group it receives its own datagrams
  void* user_context = nullptr;        ///< any value; QueuePair::user_context() returns it
};

/// A queue pair (IBTA 10.2.3). Any thread may call any function; posts of two threads are ordered one after the other.
///
/// Requests of one send queue begin in the order in which they were posted, and complete in that order (IBTA 10.8.5).
class QueuePair {
 public:
  /// Calls close(). A queue pair that is still in use is leaked, with an error in the log.
  virtual ~QueuePair() = default;

  /// @name Attributes and states
  /// @{

  /// @return The queue pair number, 24 bits, which the peer needs.
  virtual uint32_t number() const = 0;
  /// @return QpOptions::type.
  virtual QpType type() const = 0;
  /// Returns the transport that leads to the peer, as `nupa stat` prints it: "shm" or "roce".
  /// @return The name. Empty: the queue pair is not in RTR yet, or it is UD, where each destination may be reached by
  ///   another transport.
  virtual std::string_view transport() const { return {}; }
  /// @return The queue pair's number in this process.
  virtual uint32_t handle() const = 0;
  /// @return QpOptions::user_context.
  virtual void* user_context() const = 0;

  /// Changes the state or attributes (IBTA 11.2.4.2; table 91 has which attributes each transition needs and allows).
  /// RESET and ERR are allowed from any state, without other attributes. Work requests of a queue pair that goes to ERR
  /// complete with WcStatus::kWrFlushErr; RESET drops them and their completions. A transition to RTR chooses the
  /// transport, and may wait for the peer's process to answer.
  /// @param attr the values; only those that `mask` names are read
  /// @param mask qp_attr bits
  /// @return 0 or an errno value; after an error the queue pair is as before:
  ///   - EINVAL: the transition does not exist, an attribute is missing, superfluous or out of range, or
  ///     qp_attr::kCurState is given and wrong.
  ///   - EINVAL also: to RTR, the path MTU is larger than that of the way to the peer.
  ///   - EHOSTUNREACH: to RTR, the source GID is empty or not of the destination's family.
  ///   - ENOMEM, EMFILE: to RTR, a limit of the process.
  ///   - ENODEV: a parent process opened the device.
  ///   - Others: to RTR, errors of sockets, threads and of the kernel's routing tables.
  virtual int modify(const QpAttr& attr, uint32_t mask) = 0;
  /// Returns the attributes and the options.
  /// @param attr receives the attributes; may be null
  /// @param options receives the options, with the sizes that the queue pair has; may be null
  /// @return 0, or ENODEV: a parent process opened the device.
  virtual int query(QpAttr* attr, QpOptions* options) const = 0;
  /// @}

  /// @name Posting
  /// @{

  /// Opens a run of post() calls of this thread, which ends with post_end(). Other threads that post, and the library's
  /// own thread, wait or try again meanwhile: keep it short and call nothing else of this queue pair.
  virtual void post_begin() = 0;
  /// Posts one request. Call it between post_begin() and post_end(). Errors of the request itself, such as a wrong key,
  /// come as a completion's status. In SQE and ERR the request completes with WcStatus::kWrFlushErr.
  /// @param wr the request
  /// @return 0 or an errno value; after an error nothing was posted:
  ///   - EINVAL: the state is RESET, INIT or RTR; the type does not have the opcode; the list has too many entries; the
  ///     inline data is too long or the operation takes none; `ah`, `mw` or `bind.region` is missing; kFlush with a
  ///     list or with wrong flush_flag bits.
  ///   - ENOMEM: the send queue is full, or no memory for a request that has to wait.
  virtual int post(const SendWr& wr) = 0;
  /// Ends a run of post() calls. The transport may send the requests only now.
  virtual void post_end() = 0;
  /// Posts one request: post_begin(), post() and post_end().
  /// @param wr the request
  /// @return As post().
  virtual int post_send(const SendWr& wr) {
    post_begin();
    const int status = post(wr);
    post_end();
    return status;
  }
  /// Posts one receive. Receives are filled in the order in which they were posted. In ERR the receive completes with
  /// WcStatus::kWrFlushErr.
  /// @param wr the receive
  /// @return 0 or an errno value; after an error nothing was posted:
  ///   - EINVAL: the queue pair is in RESET or on its way there, it has no receive queue (it uses a shared one, or is
  ///     XRC), or the list has too many entries.
  ///   - ENOMEM: the receive queue is full.
  virtual int post_recv(const RecvWr& wr) = 0;
  /// @}

  /// Maps memory of the peer, so that this process can load from it and store to it. Only the shm transport can, for RC
  /// and UC. The key is checked once, in this call. The memory stays mapped as long as the pointer or a copy of it is
  /// held. After the peer has deregistered it, loads and stores have no defined effect on the peer.
  /// @param rkey key of the peer's region
  /// @param address first byte, as in SendWr::remote_addr
  /// @param length bytes, not 0
  /// @param rights access bits that the key must give
  /// @return The first byte, or an Error:
  ///   - ENOTCONN: the state is not RTS, or the peer is not connected yet.
  ///   - EACCES: the key does not open these bytes with these rights.
  ///   - ENOTSUP: the peer is reached by packets, or its memory cannot be mapped.
  virtual Result<std::shared_ptr<std::byte>> map_remote([[maybe_unused]] uint32_t rkey,
                                                        [[maybe_unused]] uint64_t address,
                                                        [[maybe_unused]] uint64_t length,
                                                        [[maybe_unused]] uint32_t rights) {
    return fail(ENOTSUP, "this queue pair maps nothing");
  }

  /// Joins a multicast group (IBTA 10.5). To join a group twice has no effect.
  /// @param gid address of the group
  /// @param lid not used
  /// @return 0 or an errno value:
  ///   - EINVAL: the queue pair is not UD, or `gid` is not a multicast address.
  ///   - ENOMEM: the process has 1024 memberships.
  ///   - EADDRNOTAVAIL: no interface of the device can receive for the group.
  ///   - ENODEV: a parent process opened the device.
  ///   - Others: errors of sockets.
  virtual int attach_multicast(const Gid& gid, uint16_t lid) = 0;
  /// Leaves a multicast group (IBTA 10.5).
  /// @param gid address of the group
  /// @param lid not used
  /// @return 0 or an errno value:
  ///   - EINVAL: the queue pair is not UD, `gid` is not a multicast address, or the queue pair is not a member.
  ///   - ENODEV: a parent process opened the device.
  virtual int detach_multicast(const Gid& gid, uint16_t lid) = 0;
  /// Closes the queue pair and drops its work requests without completions.
  /// @return 0, or EBUSY: it is a member of a multicast group, or another handle of Device::open_qp() is open.
  virtual int close() = 0;
};

}  // namespace nupa
