#pragma once
#include <nupa/completion.h>
#include <nupa/memory.h>
#include <nupa/types.h>

#include <cerrno>
#include <string_view>

namespace nupa {

/// One request for a send queue. Fields that the opcode does not name are not read. `sg_list` is read during the
/// call only; the memory it names is, unless send_flag::kInline, the device's until the completion.
struct SendWr {
  uint64_t wr_id = 0;
  const Sge* sg_list = nullptr;
  uint32_t num_sge = 0;
  Opcode opcode = Opcode::kSend;
  uint32_t flags = 0;                 ///< send_flag bits
  uint32_t imm_or_rkey = 0;           ///< *_WITH_IMM: immediate, network byte order; *_INV: the rkey to invalidate
  uint32_t rkey = 0;                  ///< RDMA and atomics; BIND_MW: the window's new rkey
  uint64_t remote_addr = 0;           ///< RDMA and atomics
  uint64_t compare_add = 0;           ///< atomics; kAtomicWrite: the 8 bytes, where `sg_list` is empty
  uint64_t swap = 0;                  ///< kCompareSwap
  uint32_t remote_qpn = 0;            ///< UD
  uint32_t remote_qkey = 0;           ///< UD; the high bit set: the queue pair's own Q_Key is used
  uint32_t remote_srqn = 0;           ///< XRC
  const AddressHandle* ah = nullptr;  ///< UD
  MemoryWindow* mw = nullptr;         ///< kBindMw
  MwBindInfo bind{};                  ///< kBindMw
};

struct RecvWr {
  uint64_t wr_id = 0;
  const Sge* sg_list = nullptr;
  uint32_t num_sge = 0;
};

enum class SrqType : uint32_t { kBasic = 0, kXrc = 1 };

struct SrqOptions {
  uint32_t max_wr = 1;
  uint32_t max_sge = 1;
  uint32_t limit = 0;
  SrqType type = SrqType::kBasic;
  XrcDomain* xrcd = nullptr;      ///< kXrc
  CompletionQueue* cq = nullptr;  ///< kXrc: where its receives complete
  void* user_context = nullptr;
};

/// A receive queue that several queue pairs draw from (IBTA 10.2.9). Any thread.
class SharedReceiveQueue {
 public:
  virtual ~SharedReceiveQueue() = default;
  /// 0; ENOMEM: full; EINVAL: too many entries in the list.
  virtual int post_recv(const RecvWr& wr) = 0;
  /// mask bits: 1 max_wr, 2 limit (the event SRQ_LIMIT_REACHED is raised once when fewer are left).
  virtual int modify(uint32_t mask, uint32_t max_wr, uint32_t limit) = 0;
  virtual int query(uint32_t* max_wr, uint32_t* max_sge, uint32_t* limit) const = 0;
  virtual uint32_t number() const = 0;  ///< the XRC shared receive queue number, valid on every transport
  virtual uint32_t handle() const = 0;
  virtual void* user_context() const = 0;
  virtual int close() = 0;
};

struct QpOptions {
  QpType type = QpType::kRc;
  CompletionQueue* send_cq = nullptr;
  CompletionQueue* recv_cq = nullptr;
  SharedReceiveQueue* srq = nullptr;
  XrcDomain* xrcd = nullptr;  ///< kXrcRecv
  QpCap cap{};                ///< replaced by what was given, in query()
  bool signal_all = false;    ///< every send is signalled
  bool hears_itself = true;   ///< kUd: as a member of a multicast group it gets what it sends there
  void* user_context = nullptr;
};

/// IBTA 10.2.3. Posting and modifying from any thread; two threads that post at once are ordered one after the other.
class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual uint32_t number() const = 0;
  virtual QpType type() const = 0;
  /// The transport that leads to the peer, as `nupa stat` names it: "shm", "roce". Empty: not in RTR yet, or UD, where
  /// each destination may be reached by another one.
  virtual std::string_view transport() const { return {}; }
  virtual uint32_t handle() const = 0;
  virtual void* user_context() const = 0;

  /// 0, or EINVAL: transition, attribute or value not allowed (IBTA table 91).
  virtual int modify(const QpAttr& attr, uint32_t mask) = 0;
  virtual int query(QpAttr* attr, QpOptions* options) const = 0;

  /// Opens a run of post() calls of this thread; ends with post_end(). Others wait in between: keep it short.
  virtual void post_begin() = 0;
  /// One request. 0; EINVAL: state, opcode or list not allowed; ENOMEM: the send queue is full.
  virtual int post(const SendWr& wr) = 0;
  virtual void post_end() = 0;
  /// One request on its own.
  virtual int post_send(const SendWr& wr) {
    post_begin();
    const int status = post(wr);
    post_end();
    return status;
  }
  /// 0; EINVAL: state RESET, a shared receive queue is used, or too many entries; ENOMEM: full.
  virtual int post_recv(const RecvWr& wr) = 0;

  /// The other end's memory as this process can load from and store to it, where the transport has it mapped: the bytes
  /// [address, address + length) that `rkey` opens with `rights` (access bits), checked once, here. It stays mapped as
  /// long as the pointer is held, but is nobody's memory any more once the other end has deregistered it. RC and UC.
  /// ENOTSUP: packets lead there, or it is memory that cannot be mapped; EACCES: the key does not open it so; ENOTCONN:
  /// not in RTS, or the other end is not there yet.
  virtual Result<std::shared_ptr<std::byte>> map_remote([[maybe_unused]] uint32_t rkey,
                                                        [[maybe_unused]] uint64_t address,
                                                        [[maybe_unused]] uint64_t length,
                                                        [[maybe_unused]] uint32_t rights) {
    return fail(ENOTSUP, "this queue pair maps nothing");
  }

  /// UD: joins or leaves a multicast group. EINVAL: not UD or not a multicast GID.
  virtual int attach_multicast(const Gid& gid, uint16_t lid) = 0;
  virtual int detach_multicast(const Gid& gid, uint16_t lid) = 0;
  /// 0, or EBUSY while attached to a multicast group.
  virtual int close() = 0;
};

}  // namespace nupa
