// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The vocabulary of the InfiniBand Architecture Specification, volume 1 (IBTA): addresses, states, masks, completions
/// and limits. Every enumerator has the value that the verbs ABI gives it, and Sge and WorkCompletion have the ABI's
/// layout, so a verbs library only has to cast.

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
  kAtomicWrite = 15,      ///< writes 8 bytes to the peer's memory at once; RC, XRC
};

/// Flags of a send request, one bit each (IBTA 11.4.1.1).
namespace send_flag {
constexpr uint32_t kFence = 1u << 0;      ///< the request waits for earlier READs and atomics
constexpr uint32_t kSignaled = 1u << 1;   ///< success writes a completion, too
constexpr uint32_t kSolicited = 1u << 2;  ///< the receiver's completion is a solicited one
constexpr uint32_t kInline = 1u << 3;     ///< post() copies the data, and local keys are not read
/// With kInline, the data may be longer than the queue pair's max_inline_data. EINVAL if post() does not execute the
/// request itself, which depends on the transport.
constexpr uint32_t kAnyLength = 1u << 16;
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
  uint32_t path_mtu = 0;                ///< 1 to 5 for payloads of 256, 512, 1024, 2048 and 4096 bytes
  uint32_t path_mig_state = 0;          ///< 0, migrated: there is one path
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
  uint8_t en_sqd_async_notify = 0;      ///< not 0: EventType::kSqDrained is raised when the send queue has drained
  uint8_t sq_draining = 0;              ///< query: 1 while the send queue drains in SQD
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
  uint32_t device_cap_flags = 0;           ///< bits of the verbs ABI's ibv_device_cap_flags
  int max_sge = 0;                         ///< entries of a scatter or gather list
  int max_sge_rd = 0;                      ///< entries of an RDMA READ's list
  int max_cq = 0;                          ///< completion queues
  int max_cqe = 0;                         ///< entries of a completion queue
  int max_mr = 0;                          ///< memory regions; their keys are shared with windows
  int max_pd = 0;                          ///< protection domains
  int max_qp_rd_atom = 0;                  ///< outstanding READs and atomics of a queue pair as a target
  int max_res_rd_atom = 0;                 ///< outstanding READs and atomics of all queue pairs as targets
  int max_qp_init_rd_atom = 0;             ///< outstanding READs and atomics of a queue pair as an initiator
  int atomic_cap = 0;                      ///< 2: atomic with the processors too (IBV_ATOMIC_GLOB)
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
  uint64_t max_dm_size = 0;                ///< bytes of an allocation of device memory
  uint64_t completion_timestamp_mask = 0;  ///< bits of a time stamp that count
  uint32_t odp_caps_rc = 0;                ///< on-demand paging of RC: bits of ibv_odp_transport_cap_bits
  uint32_t odp_caps_uc = 0;                ///< on-demand paging of UC, the same bits
  uint32_t odp_caps_ud = 0;                ///< on-demand paging of UD, the same bits
  uint32_t odp_caps_xrc = 0;               ///< on-demand paging of XRC, the same bits
  uint64_t odp_general_caps = 0;           ///< bits of ibv_odp_general_caps
  uint16_t max_cq_count = 0;               ///< completion moderation: entries
  uint16_t max_cq_period = 0;              ///< completion moderation: microseconds
};

/// The attributes of a port (IBTA 11.2.1.4, Query HCA port attributes).
struct PortAttr {
  uint32_t state = 0;           ///< 4: active
  uint32_t max_mtu = 0;         ///< code of the largest payload (QpAttr::path_mtu)
  uint32_t active_mtu = 0;      ///< code of the payload in use
  int gid_tbl_len = 0;          ///< entries of the GID table, empty ones included
  uint32_t port_cap_flags = 0;  ///< bits of the verbs ABI's port_cap_flags
  uint32_t max_msg_sz = 0;      ///< bytes of the longest message
  uint32_t bad_pkey_cntr = 0;   ///< 0: not counted
  uint32_t qkey_viol_cntr = 0;  ///< 0: not counted
  uint16_t pkey_tbl_len = 0;    ///< entries of the P_Key table
  uint16_t lid = 0;             ///< local identifier, which names this host
  uint16_t sm_lid = 0;          ///< 0: there is no subnet manager
  uint8_t active_width = 0;     ///< 2: four lanes
  uint8_t active_speed = 0;     ///< 64: 50 Gb/s a lane
  uint8_t phys_state = 0;       ///< 5: link up
  uint8_t link_layer = 0;       ///< 2: Ethernet
};

}  // namespace nupa
