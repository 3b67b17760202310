// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The vocabulary of the InfiniBand Architecture Specification, volume 1 (IBTA): addresses, states, masks, completions
/// and limits. Every enumerator has the value that the verbs ABI gives it, and Sge and WorkCompletion have the ABI's
/// layout, so a verbs library only has to cast.
///
/// A value out of a list is an `enum class`. A mask is a number whose bits are the constants of a namespace (access,
/// qp_attr), so that `|` combines them. A structure that comes from the verbs ABI or from a peer may hold a value that
/// has no enumerator; the call that takes it returns an error.

#include <array>
#include <cstddef>
#include <cstdint>

/// NUPA's C++ API: devices, memory, queue pairs, completions and connections.
namespace nupa {

// ---- addresses ------------------------------------------------------------------------------------------------------

/// A port's 128-bit address (IBTA 4.1.1). An IPv4 address is held as an IPv4-mapped IPv6 address (RFC 4291).
struct Gid {
  std::array<uint8_t, 16> raw{};  ///< the 16 bytes in network byte order
  /// Compares all 16 bytes.
  /// @return True if the addresses are equal.
  bool operator==(const Gid&) const = default;
};

/// A group of processes that can map each other's memory. Two processes can if their devices return the same value and
/// it is not all zeros.
using MemoryDomain = std::array<uint8_t, 16>;

/// The protocol that a GID belongs to (IBTA annex A17).
enum class GidType : uint32_t {
  kIb = 0,      ///< InfiniBand
  kRoceV1 = 1,  ///< RoCE over Ethernet frames
  kRoceV2 = 2   ///< RoCE over UDP, the only type that NUPA's devices have
};

/// An entry of a port's GID table (IBTA annex A17).
struct GidEntry {
  Gid gid;                          ///< the address
  uint32_t index = 0;               ///< position in the table
  uint32_t port_num = 1;            ///< port that the table belongs to
  GidType type = GidType::kRoceV2;  ///< protocol of the address
  uint32_t interface_index = 0;     ///< index of the network interface, 0 if there is none
};

// ---- ports ----------------------------------------------------------------------------------------------------------

/// The payload bytes of the longest packets: a port's MTU, or the MTU of a path (IBTA 14.2.5.6). The values are the
/// codes of the messages of the communication manager and of path records, too.
enum class Mtu : uint32_t {
  k256 = 1,   ///< 256 bytes
  k512 = 2,   ///< 512 bytes
  k1024 = 3,  ///< 1,024 bytes
  k2048 = 4,  ///< 2,048 bytes
  k4096 = 5   ///< 4,096 bytes
};
/// Returns the payload of a packet.
/// @param mtu one of the enumerators
/// @return Bytes.
constexpr uint32_t bytes_of(Mtu mtu) { return 128u << static_cast<uint32_t>(mtu); }

/// The states of a port (IBTA 14.2.5.6, PortState). A port of NUPA is always active.
enum class PortState : uint32_t {
  kNop = 0,         ///< no state
  kDown = 1,        ///< no packets
  kInit = 2,        ///< only packets of subnet management
  kArmed = 3,       ///< ready to become active
  kActive = 4,      ///< packets are sent and received
  kActiveDefer = 5  ///< active, and the link is being repaired
};

/// The physical states of a port's link (IBTA 14.2.5.6, PortPhysicalState). A link of NUPA is always up.
enum class PhysState : uint8_t {
  kSleep = 1,              ///< sleep
  kPolling = 2,            ///< the port looks for a peer
  kDisabled = 3,           ///< disabled
  kTraining = 4,           ///< the two ports agree on width and speed
  kLinkUp = 5,             ///< the link is up
  kLinkErrorRecovery = 6,  ///< the link is being repaired
  kPhyTest = 7             ///< a test of the link
};

/// The protocols below the transport services.
enum class LinkLayer : uint8_t {
  kUnspecified = 0,  ///< InfiniBand, in programs older than the field
  kInfiniband = 1,   ///< InfiniBand
  kEthernet = 2      ///< Ethernet, the only link layer that NUPA's ports have
};

/// The lanes of a port's link (IBTA 14.2.5.6, LinkWidthActive).
enum class LinkWidth : uint8_t {
  k1x = 1,   ///< one lane
  k4x = 2,   ///< four lanes
  k8x = 4,   ///< eight lanes
  k12x = 8,  ///< twelve lanes
  k2x = 16   ///< two lanes
};

/// The bits a second of one lane (IBTA 14.2.5.6, LinkSpeedActive and LinkSpeedExtActive, as the verbs ABI joins them).
enum class LinkSpeed : uint8_t {
  kSdr = 1,    ///< 2.5 Gb/s
  kDdr = 2,    ///< 5 Gb/s
  kQdr = 4,    ///< 10 Gb/s
  kFdr10 = 8,  ///< 10 Gb/s in 64b/66b encoding
  kFdr = 16,   ///< 14 Gb/s
  kEdr = 32,   ///< 25 Gb/s
  kHdr = 64,   ///< 50 Gb/s
  kNdr = 128   ///< 100 Gb/s
};

/// The abilities of a port that NUPA's ports have, one bit each (IBTA 14.2.5.6, CapabilityMask).
namespace port_cap {
constexpr uint32_t kCm = 1u << 16;           ///< the port has a communication manager
constexpr uint32_t kIpBasedGids = 1u << 26;  ///< the port's GIDs are IP addresses (annex A17)
}  // namespace port_cap

// ---- queue pairs ----------------------------------------------------------------------------------------------------

/// The transport services (IBTA 11.2.4).
enum class QpType : uint32_t {
  kRc = 2,       ///< reliable connection
  kUc = 3,       ///< unreliable connection
  kUd = 4,       ///< unreliable datagram
  kXrcSend = 9,  ///< sending side of an extended reliable connection (IBTA annex A14)
  kXrcRecv = 10  ///< receiving side of an extended reliable connection
};

/// The states of a queue pair (IBTA 10.3.1).
enum class QpState : uint32_t {
  kReset = 0,  ///< new, or reset: posts are rejected
  kInit,       ///< receives may be posted, nothing is received
  kRtr,        ///< ready to receive
  kRts,        ///< ready to receive and to send
  kSqd,        ///< send queue drained: requests that have not begun wait
  kSqe,        ///< send queue error: UC and UD still receive
  kErr         ///< error: all work requests complete with WcStatus::kWrFlushErr
};

/// The states of path migration (IBTA 17.2.8). Devices have one path, which is in the state kMigrated.
enum class PathMigState : uint32_t {
  kMigrated = 0,  ///< the queue pair uses its path, and has no alternate path
  kRearm = 1,     ///< the peers agree on an alternate path; always rejected
  kArmed = 2      ///< the alternate path can be used; always rejected
};

/// The attributes that QueuePair::modify() may set, one bit each (IBTA 11.2.4.2, Modify Queue Pair). Each names fields
/// of QpAttr.
namespace qp_attr {
constexpr uint32_t kState = 1u << 0;             ///< QpAttr::state
constexpr uint32_t kCurState = 1u << 1;          ///< QpAttr::cur_state, which must be the present state
constexpr uint32_t kEnSqdAsyncNotify = 1u << 2;  ///< QpAttr::en_sqd_async_notify
constexpr uint32_t kAccessFlags = 1u << 3;       ///< QpAttr::access_flags
constexpr uint32_t kPkeyIndex = 1u << 4;         ///< QpAttr::pkey_index
constexpr uint32_t kPort = 1u << 5;              ///< QpAttr::port_num
constexpr uint32_t kQkey = 1u << 6;              ///< QpAttr::qkey
constexpr uint32_t kAv = 1u << 7;                ///< QpAttr::av
constexpr uint32_t kPathMtu = 1u << 8;           ///< QpAttr::path_mtu
constexpr uint32_t kTimeout = 1u << 9;           ///< QpAttr::timeout
constexpr uint32_t kRetryCnt = 1u << 10;         ///< QpAttr::retry_cnt
constexpr uint32_t kRnrRetry = 1u << 11;         ///< QpAttr::rnr_retry
constexpr uint32_t kRqPsn = 1u << 12;            ///< QpAttr::rq_psn
constexpr uint32_t kMaxQpRdAtomic = 1u << 13;    ///< QpAttr::max_rd_atomic
constexpr uint32_t kAltPath = 1u << 14;          ///< the alternate path; always rejected, devices have one path
constexpr uint32_t kMinRnrTimer = 1u << 15;      ///< QpAttr::min_rnr_timer
constexpr uint32_t kSqPsn = 1u << 16;            ///< QpAttr::sq_psn
constexpr uint32_t kMaxDestRdAtomic = 1u << 17;  ///< QpAttr::max_dest_rd_atomic
constexpr uint32_t kPathMigState = 1u << 18;     ///< QpAttr::path_mig_state
constexpr uint32_t kCap = 1u << 19;              ///< QpAttr::cap; always rejected, queues are not resized
constexpr uint32_t kDestQpn = 1u << 20;          ///< QpAttr::dest_qp_num
constexpr uint32_t kRateLimit = 1u << 25;        ///< QpAttr::rate_limit; always rejected
}  // namespace qp_attr

/// Access rights of regions, windows and queue pairs, one bit each (IBTA 10.6.2).
namespace access {
constexpr uint32_t kLocalWrite = 1u << 0;        ///< receives, READs and atomics of this process may write
constexpr uint32_t kRemoteWrite = 1u << 1;       ///< the peer may write; a region needs kLocalWrite as well
constexpr uint32_t kRemoteRead = 1u << 2;        ///< the peer may read
constexpr uint32_t kRemoteAtomic = 1u << 3;      ///< the peer may do atomics; a region needs kLocalWrite as well
constexpr uint32_t kMwBind = 1u << 4;            ///< memory windows may be bound to the region
constexpr uint32_t kZeroBased = 1u << 5;         ///< addresses of the key begin at 0
constexpr uint32_t kOnDemand = 1u << 6;          ///< memory is looked at when it is used (on-demand paging)
constexpr uint32_t kHugeTlb = 1u << 7;           ///< memory lies in huge pages
constexpr uint32_t kFlushGlobal = 1u << 8;       ///< the peer may FLUSH to global visibility
constexpr uint32_t kFlushPersistent = 1u << 9;   ///< the same to persistence; queue pairs only, no memory is persistent
constexpr uint32_t kRelaxedOrdering = 1u << 20;  ///< optional; has no effect
/// Bits 20 to 29 are optional: a device that does not know one ignores it.
constexpr uint32_t kOptionalMask = 0x3ff00000u;
}  // namespace access

// ---- requests -------------------------------------------------------------------------------------------------------

/// Operations of a send queue (IBTA 11.4.1.1; which type of queue pair has which: IBTA table 89).
enum class Opcode : uint32_t {
  kRdmaWrite = 0,         ///< writes to the peer's memory; RC, UC, XRC
  kRdmaWriteWithImm = 1,  ///< the same, and completes a receive with the immediate data; RC, UC, XRC
  kSend = 2,              ///< fills a receive of the peer; all types
  kSendWithImm = 3,       ///< the same with immediate data; all types
  kRdmaRead = 4,          ///< reads the peer's memory; RC, XRC
  kCompareSwap = 5,       ///< atomic compare and swap of 8 bytes; RC, XRC
  kFetchAdd = 6,          ///< atomic fetch and add of 8 bytes; RC, XRC
  kLocalInv = 7,          ///< invalidates the key of a memory window of this process; RC, UC, XRC
  kBindMw = 8,            ///< binds a memory window; RC, UC, XRC
  kSendWithInv = 9,       ///< a send that invalidates a key of the peer; RC, UC, XRC
  kFlush = 14,            ///< places earlier writes of the queue pair at the peer; RC, XRC
  kAtomicWrite = 15,      ///< writes 8 bytes to the peer's memory at once; RC, XRC
};

/// Options of a FLUSH, one bit each (IBTA A19, the fields of FETH). At least one placement is given.
namespace flush_flag {
constexpr uint32_t kGlobal = 1u << 0;      ///< placement: every reader of the memory sees the earlier writes
constexpr uint32_t kPersistent = 1u << 1;  ///< placement: the earlier writes survive a loss of power
constexpr uint32_t kRegion = 1u << 4;      ///< of the whole region or window; otherwise of the given range
}  // namespace flush_flag

/// Flags of a send request, one bit each (IBTA 11.4.1.1). Other bits must be 0.
namespace send_flag {
constexpr uint32_t kFence = 1u << 0;      ///< the request waits for earlier READs and atomics
constexpr uint32_t kSignaled = 1u << 1;   ///< success writes a completion, too
constexpr uint32_t kSolicited = 1u << 2;  ///< the receiver's completion is a solicited one
constexpr uint32_t kInline = 1u << 3;     ///< post() copies the data, and local keys are not read
}  // namespace send_flag

// ---- completions ----------------------------------------------------------------------------------------------------

/// How a work request ended (IBTA 11.6.2, completion statuses).
enum class WcStatus : uint32_t {
  kSuccess = 0,          ///< the request was executed
  kLocLenErr = 1,        ///< local length error: the message is too long, or a receive is too short
  kLocQpOpErr = 2,       ///< local queue pair operation error
  kLocProtErr = 4,       ///< local protection error: a local key does not open the memory
  kWrFlushErr = 5,       ///< flushed: the queue pair entered an error state before
  kMwBindErr = 6,        ///< memory window bind error
  kBadRespErr = 7,       ///< bad response from the peer
  kLocAccessErr = 8,     ///< local access error
  kRemInvReqErr = 9,     ///< the peer rejected the request as invalid
  kRemAccessErr = 10,    ///< the peer's key does not open the memory
  kRemOpErr = 11,        ///< the peer could not complete the operation
  kRetryExcErr = 12,     ///< the peer did not answer within the retry limits
  kRnrRetryExcErr = 13,  ///< the peer had no receive posted within the retry limits (RNR)
  kRemAbortErr = 16,     ///< the peer aborted the operation
  kFatalErr = 19,        ///< fatal error
  kGeneralErr = 21,      ///< general error
};

/// The operation that a completion belongs to.
enum class WcOpcode : uint32_t {
  kSend = 0,                         ///< Opcode::kSend, kSendWithImm, kSendWithInv
  kRdmaWrite = 1,                    ///< Opcode::kRdmaWrite, kRdmaWriteWithImm
  kRdmaRead = 2,                     ///< Opcode::kRdmaRead
  kCompareSwap = 3,                  ///< Opcode::kCompareSwap
  kFetchAdd = 4,                     ///< Opcode::kFetchAdd
  kBindMw = 5,                       ///< Opcode::kBindMw
  kLocalInv = 6,                     ///< Opcode::kLocalInv
  kFlush = 8,                        ///< Opcode::kFlush
  kAtomicWrite = 9,                  ///< Opcode::kAtomicWrite
  kRecv = 1u << 7,                   ///< a receive that a send filled
  kRecvRdmaWithImm = (1u << 7) + 1,  ///< a receive that an RDMA WRITE with immediate data consumed
};

/// Which optional parts a completion has, one bit each.
namespace wc_flag {
constexpr uint32_t kGrh = 1u << 0;      ///< UD: the first 40 bytes of the receive hold the global route header
constexpr uint32_t kWithImm = 1u << 1;  ///< WorkCompletion::imm_data holds immediate data
constexpr uint32_t kWithInv = 1u << 3;  ///< WorkCompletion::imm_data holds the key that was invalidated
}  // namespace wc_flag

/// One piece of local memory, an entry of a scatter or gather list.
struct Sge {
  uint64_t addr;    ///< address in the owner's address space, or offset in a zero-based region
  uint32_t length;  ///< bytes; 0 is allowed
  uint32_t lkey;    ///< MemoryRegion::lkey()
};

/// One completion. It has the layout of the verbs ABI's ibv_wc. If `status` is not kSuccess, only `wr_id`, `status`,
/// `qp_num` and `vendor_err` count.
struct WorkCompletion {
  uint64_t wr_id;          ///< SendWr::wr_id or RecvWr::wr_id
  WcStatus status;         ///< how the request ended
  WcOpcode opcode;         ///< the operation
  uint32_t vendor_err;     ///< detail of an error, for diagnosis
  uint32_t byte_len;       ///< bytes received (with the 40 of the GRH for UD); bytes read for RDMA READ and atomics
  uint32_t imm_data;       ///< network byte order, or the invalidated rkey with wc_flag::kWithInv
  uint32_t qp_num;         ///< queue pair of the request
  uint32_t src_qp;         ///< receives of UD: queue pair of the sender
  uint32_t wc_flags;       ///< wc_flag bits
  uint16_t pkey_index;     ///< always 0
  uint16_t slid;           ///< receives of UD: the sender's local identifier; 0 if the address was global
  uint8_t sl;              ///< service level
  uint8_t dlid_path_bits;  ///< path bits of the destination's local identifier
};

/// A completion of an extended completion queue.
struct WorkCompletionEx {
  WorkCompletion wc;   ///< what an ordinary completion queue reports
  uint64_t timestamp;  ///< raw device clock ticks at completion; 0 if the queue was made without timestamps
};

// ---- attributes -----------------------------------------------------------------------------------------------------

/// The path to a destination (IBTA 11.2.2.1, address vector).
struct AddressVector {
  Gid dgid;                   ///< address of the destination's port, or a multicast group
  uint32_t flow_label = 0;    ///< IPv6 flow label
  uint8_t sgid_index = 0;     ///< position of the source address in the port's GID table, 0 to 31
  uint8_t hop_limit = 0;      ///< hop limit of the packets; 0: the system's default
  uint8_t traffic_class = 0;  ///< traffic class (IPv4: type of service) of the packets
  uint16_t dlid = 0;          ///< local identifier of the destination; 1, this host, if `is_global` is false
  uint8_t sl = 0;             ///< service level
  uint8_t src_path_bits = 0;  ///< path bits of the source's local identifier
  uint8_t static_rate = 0;    ///< the specification's code of a rate limit
  bool is_global = false;     ///< `dgid` and the fields for it count; required except to this host (annex A17.4.1)
  uint8_t port_num = 1;       ///< port of this device: 1
};

/// Sizes of a queue pair's queues. DeviceAttr has the limits.
struct QpCap {
  uint32_t max_send_wr = 0;      ///< outstanding send requests
  uint32_t max_recv_wr = 0;      ///< outstanding receives
  uint32_t max_send_sge = 0;     ///< entries of a send request's list
  uint32_t max_recv_sge = 0;     ///< entries of a receive's list
  uint32_t max_inline_data = 0;  ///< bytes of a request with send_flag::kInline
};

/// The attributes of a queue pair (IBTA 11.2.4.2). Timers are in the specification's codes.
struct QpAttr {
  QpState state = QpState::kReset;      ///< modify: the new state; query: the present one
  QpState cur_state = QpState::kReset;  ///< modify: the state that the caller expects; query: the present one
  Mtu path_mtu{};                       ///< largest payload; query before RTR: 0
  PathMigState path_mig_state{};        ///< kMigrated: there is one path
  uint32_t qkey = 0;                    ///< UD: Q_Key that a datagram must have
  uint32_t rq_psn = 0;                  ///< number of the peer's first packet, 24 bits
  uint32_t sq_psn = 0;                  ///< number of this side's first packet, 24 bits
  uint32_t dest_qp_num = 0;             ///< the peer's queue pair, 24 bits
  uint32_t access_flags = 0;            ///< what the peer may do: access bits
  QpCap cap;                            ///< query: the queues' sizes
  AddressVector av;                     ///< path to the peer
  AddressVector alt_av;                 ///< not supported
  uint16_t pkey_index = 0;              ///< 0: the port has one P_Key
  uint16_t alt_pkey_index = 0;          ///< not supported
  bool en_sqd_async_notify = false;     ///< true: EventType::kSqDrained is raised when the send queue has drained
  bool sq_draining = false;             ///< query: the send queue drains in SQD
  uint8_t max_rd_atomic = 0;            ///< READs and atomics that this side may have outstanding, at most 16
  uint8_t max_dest_rd_atomic = 0;       ///< READs and atomics that the peer may have outstanding here, at most 16
  uint8_t min_rnr_timer = 0;            ///< 0 to 31: how long the peer waits for a receive (IBTA table 45)
  uint8_t port_num = 1;                 ///< 1
  uint8_t timeout = 0;                  ///< 0 to 31: acknowledgement timeout 4.096 us x 2^n; 0: none
  uint8_t retry_cnt = 0;                ///< 0 to 7 retries without an answer
  uint8_t rnr_retry = 0;                ///< 0 to 6 retries after RNR; 7: no limit
  uint8_t alt_port_num = 0;             ///< not supported
  uint8_t alt_timeout = 0;              ///< not supported
  uint32_t rate_limit = 0;              ///< not supported
};

// ---- events and limits ----------------------------------------------------------------------------------------------

/// Asynchronous events (IBTA 11.6.3). NUPA raises those that are described with a cause.
enum class EventType : uint32_t {
  kCqErr = 0,              ///< completion queue: an entry was lost because the queue was full
  kQpFatal = 1,            ///< queue pair: its completion could not be written
  kQpReqErr = 2,           ///< queue pair: the peer sent an invalid request
  kQpAccessErr = 3,        ///< queue pair: the peer's request violated access rights
  kCommEst = 4,            ///< queue pair: the first request came in RTR, before the program knew that it is connected
  kSqDrained = 5,          ///< queue pair: the send queue has drained in SQD
  kPathMig = 6,            ///< not raised
  kPathMigErr = 7,         ///< not raised
  kDeviceFatal = 8,        ///< not raised
  kPortActive = 9,         ///< not raised
  kPortErr = 10,           ///< not raised
  kLidChange = 11,         ///< not raised
  kPkeyChange = 12,        ///< not raised
  kSmChange = 13,          ///< not raised
  kSrqErr = 14,            ///< not raised
  kSrqLimitReached = 15,   ///< shared receive queue: fewer receives than its limit are left
  kQpLastWqeReached = 16,  ///< queue pair in the error state: it takes no more receives of its shared queue
  kClientReregister = 17,  ///< not raised
  kGidChange = 18,         ///< not raised
};

/// The accesses that an atomic operation excludes while it is done (IBTA 11.2.1.2).
enum class AtomicCap : uint32_t {
  kNone = 0,  ///< there are no atomic operations
  kHca = 1,   ///< atomic operations of the same device
  kGlob = 2   ///< atomic operations of all devices and of the processors; NUPA's devices have this
};

/// The abilities of a device that NUPA's devices have, one bit each (IBTA 11.2.1.2).
namespace device_cap {
constexpr uint32_t kCurrQpStateMod = 1u << 7;     ///< QueuePair::modify() takes qp_attr::kCurState
constexpr uint32_t kSysImageGuid = 1u << 11;      ///< DeviceAttr::sys_image_guid is set
constexpr uint32_t kRcRnrNakGen = 1u << 12;       ///< a receiver without a receive answers with a RNR NAK
constexpr uint32_t kMemWindow = 1u << 17;         ///< memory windows of type 1
constexpr uint32_t kXrc = 1u << 20;               ///< extended reliable connections
constexpr uint32_t kMemMgtExtensions = 1u << 21;  ///< Opcode::kLocalInv and Opcode::kSendWithInv
constexpr uint32_t kMemWindowType2b = 1u << 24;   ///< memory windows of type 2B
}  // namespace device_cap

/// The operations of a transport service that on-demand paging serves, one bit each.
namespace odp_cap {
constexpr uint32_t kSend = 1u << 0;     ///< sends
constexpr uint32_t kRecv = 1u << 1;     ///< receives
constexpr uint32_t kWrite = 1u << 2;    ///< RDMA WRITEs
constexpr uint32_t kRead = 1u << 3;     ///< RDMA READs
constexpr uint32_t kAtomic = 1u << 4;   ///< atomic operations
constexpr uint32_t kSrqRecv = 1u << 5;  ///< receives of shared receive queues
}  // namespace odp_cap

/// The kinds of on-demand paging that NUPA's devices have, one bit each.
namespace odp_general_cap {
constexpr uint64_t kSupport = 1u << 0;  ///< regions may have access::kOnDemand
}  // namespace odp_general_cap

/// The limits and abilities of a device (IBTA 11.2.1.2, Query HCA). Counts are for one process unless a field states
/// otherwise.
struct DeviceAttr {
  char fw_ver[64] = {};                    ///< version of the library, ends with 0
  uint64_t node_guid = 0;                  ///< network byte order
  uint64_t sys_image_guid = 0;             ///< network byte order; the same for all devices of a host
  uint64_t max_mr_size = 0;                ///< bytes of a memory region
  uint64_t page_size_cap = 0;              ///< page sizes, one bit each
  uint32_t vendor_id = 0;                  ///< a locally administered identifier: there is no vendor
  uint32_t vendor_part_id = 0;             ///< 0
  uint32_t hw_ver = 0;                     ///< 0
  int max_qp = 0;                          ///< queue pairs
  int max_qp_wr = 0;                       ///< outstanding requests of a queue
  uint32_t device_cap_flags = 0;           ///< device_cap bits
  int max_sge = 0;                         ///< entries of a scatter or gather list
  int max_sge_rd = 0;                      ///< entries of an RDMA READ's list
  int max_cq = 0;                          ///< completion queues
  int max_cqe = 0;                         ///< entries of a completion queue
  int max_mr = 0;                          ///< memory regions; their keys are shared with windows
  int max_pd = 0;                          ///< protection domains
  int max_qp_rd_atom = 0;                  ///< outstanding READs and atomics of a queue pair as a target
  int max_res_rd_atom = 0;                 ///< outstanding READs and atomics of all queue pairs as targets
  int max_qp_init_rd_atom = 0;             ///< outstanding READs and atomics of a queue pair as an initiator
  AtomicCap atomic_cap{};                  ///< kGlob
  int max_mw = 0;                          ///< memory windows; their keys are shared with regions
  int max_mcast_grp = 0;                   ///< multicast groups
  int max_mcast_qp_attach = 0;             ///< queue pairs in a multicast group
  int max_total_mcast_qp_attach = 0;       ///< memberships of all queue pairs
  int max_ah = 0;                          ///< address handles
  int max_srq = 0;                         ///< shared receive queues
  int max_srq_wr = 0;                      ///< receives of a shared receive queue
  int max_srq_sge = 0;                     ///< entries of a shared receive's list
  uint16_t max_pkeys = 0;                  ///< entries of the P_Key table
  uint8_t local_ca_ack_delay = 0;          ///< 0: a request has run when its post returns
  uint8_t phys_port_cnt = 0;               ///< ports
  uint32_t max_inline_data = 0;            ///< bytes of an inline request
  uint64_t max_dm_size = 0;                ///< bytes of an allocation of device memory, at present
  uint64_t completion_timestamp_mask = 0;  ///< bits of a time stamp that count
  uint32_t odp_caps_rc = 0;                ///< on-demand paging of RC: odp_cap bits
  uint32_t odp_caps_uc = 0;                ///< on-demand paging of UC: odp_cap bits
  uint32_t odp_caps_ud = 0;                ///< on-demand paging of UD: odp_cap bits
  uint32_t odp_caps_xrc = 0;               ///< on-demand paging of XRC: odp_cap bits
  uint64_t odp_general_caps = 0;           ///< odp_general_cap bits
  uint16_t max_cq_count = 0;               ///< completion moderation: entries
  uint16_t max_cq_period = 0;              ///< completion moderation: microseconds
};

/// The attributes of a port (IBTA 11.2.1.4, Query HCA port attributes).
struct PortAttr {
  PortState state{};            ///< kActive
  Mtu max_mtu{};                ///< the largest payload that a port can have
  Mtu active_mtu{};             ///< the payload that the device's interfaces permit
  int gid_tbl_len = 0;          ///< entries of the GID table, empty ones included
  uint32_t port_cap_flags = 0;  ///< port_cap bits
  uint32_t max_msg_sz = 0;      ///< bytes of the longest message
  uint32_t bad_pkey_cntr = 0;   ///< 0: not counted
  uint32_t qkey_viol_cntr = 0;  ///< 0: not counted
  uint16_t pkey_tbl_len = 0;    ///< entries of the P_Key table
  uint16_t lid = 0;             ///< local identifier, which names this host
  uint16_t sm_lid = 0;          ///< 0: there is no subnet manager
  LinkWidth active_width{};     ///< k4x; with active_speed a nominal rate, which limits nothing
  LinkSpeed active_speed{};     ///< kHdr
  PhysState phys_state{};       ///< kLinkUp
  LinkLayer link_layer{};       ///< kEthernet
};

}  // namespace nupa
