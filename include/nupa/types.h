#pragma once
/// The vocabulary of the InfiniBand Architecture Specification, volume 1 (IBTA). Every enumerator has the value that
/// the verbs ABI gives it, and Sge and WorkCompletion have the ABI's layout, so that a verbs library is a cast away.

#include <array>
#include <cstddef>
#include <cstdint>

namespace nupa {

/// A port's 128-bit address, network byte order (IBTA 4.1.1).
struct Gid {
  std::array<uint8_t, 16> raw{};
  bool operator==(const Gid&) const = default;
};

/// Processes whose devices give the same one, and not zeros, map each other's memory.
using MemoryDomain = std::array<uint8_t, 16>;

enum class GidType : uint32_t { kIb = 0, kRoceV1 = 1, kRoceV2 = 2 };

struct GidEntry {
  Gid gid;
  uint32_t index = 0;
  uint32_t port_num = 1;
  GidType type = GidType::kRoceV2;
  uint32_t interface_index = 0;  ///< of the network device, 0 if none
};

/// IBTA 11.2.4: the transport services.
enum class QpType : uint32_t { kRc = 2, kUc = 3, kUd = 4, kXrcSend = 9, kXrcRecv = 10 };

/// IBTA 10.3.1: queue pair states.
enum class QpState : uint32_t { kReset = 0, kInit, kRtr, kRts, kSqd, kSqe, kErr };

/// What a queue pair's owner may set, one bit each (IBTA 11.2.4.2, Modify Queue Pair).
namespace qp_attr {
constexpr uint32_t kState = 1u << 0;
constexpr uint32_t kCurState = 1u << 1;
constexpr uint32_t kEnSqdAsyncNotify = 1u << 2;
constexpr uint32_t kAccessFlags = 1u << 3;
constexpr uint32_t kPkeyIndex = 1u << 4;
constexpr uint32_t kPort = 1u << 5;
constexpr uint32_t kQkey = 1u << 6;
constexpr uint32_t kAv = 1u << 7;
constexpr uint32_t kPathMtu = 1u << 8;
constexpr uint32_t kTimeout = 1u << 9;
constexpr uint32_t kRetryCnt = 1u << 10;
constexpr uint32_t kRnrRetry = 1u << 11;
constexpr uint32_t kRqPsn = 1u << 12;
constexpr uint32_t kMaxQpRdAtomic = 1u << 13;
constexpr uint32_t kAltPath = 1u << 14;
constexpr uint32_t kMinRnrTimer = 1u << 15;
constexpr uint32_t kSqPsn = 1u << 16;
constexpr uint32_t kMaxDestRdAtomic = 1u << 17;
constexpr uint32_t kPathMigState = 1u << 18;
constexpr uint32_t kCap = 1u << 19;
constexpr uint32_t kDestQpn = 1u << 20;
constexpr uint32_t kRateLimit = 1u << 25;
}  // namespace qp_attr

/// Access rights of regions, windows and queue pairs (IBTA 10.6.2).
namespace access {
constexpr uint32_t kLocalWrite = 1u << 0;
constexpr uint32_t kRemoteWrite = 1u << 1;
constexpr uint32_t kRemoteRead = 1u << 2;
constexpr uint32_t kRemoteAtomic = 1u << 3;
constexpr uint32_t kMwBind = 1u << 4;
constexpr uint32_t kZeroBased = 1u << 5;
constexpr uint32_t kOnDemand = 1u << 6;
constexpr uint32_t kHugeTlb = 1u << 7;
constexpr uint32_t kRelaxedOrdering = 1u << 20;
/// Bits 20 to 29 are optional: a device that does not know one ignores it.
constexpr uint32_t kOptionalMask = 0x3ff00000u;
}  // namespace access

/// Operations that a send queue takes (IBTA 11.4.1.1).
enum class Opcode : uint32_t {
  kRdmaWrite = 0,
  kRdmaWriteWithImm = 1,
  kSend = 2,
  kSendWithImm = 3,
  kRdmaRead = 4,
  kCompareSwap = 5,
  kFetchAdd = 6,
  kLocalInv = 7,
  kBindMw = 8,
  kSendWithInv = 9,
  kAtomicWrite = 15,
};

namespace send_flag {
constexpr uint32_t kFence = 1u << 0;
constexpr uint32_t kSignaled = 1u << 1;
constexpr uint32_t kSolicited = 1u << 2;
constexpr uint32_t kInline = 1u << 3;
/// With kInline, a list longer than the queue pair's limit: EINVAL unless post() itself executes the request.
constexpr uint32_t kAnyLength = 1u << 16;
}  // namespace send_flag

/// IBTA 11.6.2: completion statuses.
enum class WcStatus : uint32_t {
  kSuccess = 0,
  kLocLenErr = 1,
  kLocQpOpErr = 2,
  kLocProtErr = 4,
  kWrFlushErr = 5,
  kMwBindErr = 6,
  kBadRespErr = 7,
  kLocAccessErr = 8,
  kRemInvReqErr = 9,
  kRemAccessErr = 10,
  kRemOpErr = 11,
  kRetryExcErr = 12,
  kRnrRetryExcErr = 13,
  kRemAbortErr = 16,
  kFatalErr = 19,
  kGeneralErr = 21,
};

enum class WcOpcode : uint32_t {
  kSend = 0,
  kRdmaWrite = 1,
  kRdmaRead = 2,
  kCompareSwap = 3,
  kFetchAdd = 4,
  kBindMw = 5,
  kLocalInv = 6,
  kAtomicWrite = 9,
  kRecv = 1u << 7,
  kRecvRdmaWithImm = (1u << 7) + 1,
};

namespace wc_flag {
constexpr uint32_t kGrh = 1u << 0;
constexpr uint32_t kWithImm = 1u << 1;
constexpr uint32_t kWithInv = 1u << 3;
}  // namespace wc_flag

/// One piece of local memory: address in the owner's address space (or offset of a zero-based region), bytes, key.
struct Sge {
  uint64_t addr;
  uint32_t length;
  uint32_t lkey;
};

/// One completion. Layout of the verbs ABI's ibv_wc.
struct WorkCompletion {
  uint64_t wr_id;
  WcStatus status;
  WcOpcode opcode;
  uint32_t vendor_err;
  uint32_t byte_len;  ///< bytes received (with the 40 of the GRH for UD); bytes read for RDMA READ and atomics
  uint32_t imm_data;  ///< network byte order, or the invalidated rkey with wc_flag::kWithInv
  uint32_t qp_num;
  uint32_t src_qp;
  uint32_t wc_flags;
  uint16_t pkey_index;
  uint16_t slid;
  uint8_t sl;
  uint8_t dlid_path_bits;
};

/// A completion with what only an extended completion queue reports.
struct WorkCompletionEx {
  WorkCompletion wc;
  uint64_t timestamp;  ///< raw device clock ticks at completion; 0 if the queue was made without timestamps
};

/// The path to a destination (IBTA 11.2.2.1, address vector).
struct AddressVector {
  Gid dgid;
  uint32_t flow_label = 0;
  uint8_t sgid_index = 0;
  uint8_t hop_limit = 0;
  uint8_t traffic_class = 0;
  uint16_t dlid = 0;
  uint8_t sl = 0;
  uint8_t src_path_bits = 0;
  uint8_t static_rate = 0;
  bool is_global = false;
  uint8_t port_num = 1;
};

/// Sizes of a queue pair's queues. Work requests, scatter/gather entries, bytes.
struct QpCap {
  uint32_t max_send_wr = 0;
  uint32_t max_recv_wr = 0;
  uint32_t max_send_sge = 0;
  uint32_t max_recv_sge = 0;
  uint32_t max_inline_data = 0;
};

/// All that modify and query of a queue pair speak about. Timers are in the specification's codes:
/// timeout: 4.096 us x 2^n (0: none); min_rnr_timer: IBTA table 45; path_mtu: 1 to 5 for 256 to 4096 bytes.
struct QpAttr {
  QpState state = QpState::kReset;
  QpState cur_state = QpState::kReset;
  uint32_t path_mtu = 0;
  uint32_t path_mig_state = 0;
  uint32_t qkey = 0;
  uint32_t rq_psn = 0;
  uint32_t sq_psn = 0;
  uint32_t dest_qp_num = 0;
  uint32_t access_flags = 0;
  QpCap cap;
  AddressVector av;
  AddressVector alt_av;
  uint16_t pkey_index = 0;
  uint16_t alt_pkey_index = 0;
  uint8_t en_sqd_async_notify = 0;
  uint8_t sq_draining = 0;
  uint8_t max_rd_atomic = 0;
  uint8_t max_dest_rd_atomic = 0;
  uint8_t min_rnr_timer = 0;
  uint8_t port_num = 1;
  uint8_t timeout = 0;
  uint8_t retry_cnt = 0;
  uint8_t rnr_retry = 0;
  uint8_t alt_port_num = 0;
  uint8_t alt_timeout = 0;
  uint32_t rate_limit = 0;
};

/// IBTA 11.6.3: asynchronous events.
enum class EventType : uint32_t {
  kCqErr = 0,
  kQpFatal = 1,
  kQpReqErr = 2,
  kQpAccessErr = 3,
  kCommEst = 4,
  kSqDrained = 5,
  kPathMig = 6,
  kPathMigErr = 7,
  kDeviceFatal = 8,
  kPortActive = 9,
  kPortErr = 10,
  kLidChange = 11,
  kPkeyChange = 12,
  kSmChange = 13,
  kSrqErr = 14,
  kSrqLimitReached = 15,
  kQpLastWqeReached = 16,
  kClientReregister = 17,
  kGidChange = 18,
};

/// What the device can do (IBTA 11.2.1.2, Query HCA). Counts and bytes.
struct DeviceAttr {
  char fw_ver[64] = {};
  uint64_t node_guid = 0;       ///< network byte order
  uint64_t sys_image_guid = 0;  ///< network byte order
  uint64_t max_mr_size = 0;
  uint64_t page_size_cap = 0;
  uint32_t vendor_id = 0;
  uint32_t vendor_part_id = 0;
  uint32_t hw_ver = 0;
  int max_qp = 0;
  int max_qp_wr = 0;
  uint32_t device_cap_flags = 0;  ///< bits of the verbs ABI's ibv_device_cap_flags
  int max_sge = 0;
  int max_sge_rd = 0;
  int max_cq = 0;
  int max_cqe = 0;
  int max_mr = 0;
  int max_pd = 0;
  int max_qp_rd_atom = 0;
  int max_res_rd_atom = 0;
  int max_qp_init_rd_atom = 0;
  int atomic_cap = 0;  ///< 2: atomic with the processors too (IBV_ATOMIC_GLOB)
  int max_mw = 0;
  int max_mcast_grp = 0;
  int max_mcast_qp_attach = 0;
  int max_total_mcast_qp_attach = 0;
  int max_ah = 0;
  int max_srq = 0;
  int max_srq_wr = 0;
  int max_srq_sge = 0;
  uint16_t max_pkeys = 0;
  uint8_t local_ca_ack_delay = 0;
  uint8_t phys_port_cnt = 0;
  uint32_t max_inline_data = 0;
  uint64_t max_dm_size = 0;
  uint64_t completion_timestamp_mask = 0;
  uint64_t core_clock_khz = 0;
  uint32_t odp_caps_rc = 0;  ///< bits of ibv_odp_transport_cap_bits
  uint32_t odp_caps_uc = 0;
  uint32_t odp_caps_ud = 0;
  uint32_t odp_caps_xrc = 0;
  uint64_t odp_general_caps = 0;
  uint16_t max_cq_count = 0;   ///< completion moderation: entries
  uint16_t max_cq_period = 0;  ///< completion moderation: microseconds
};

/// IBTA 11.2.1.4, Query HCA port attributes.
struct PortAttr {
  uint32_t state = 0;  ///< 4: active
  uint32_t max_mtu = 0;
  uint32_t active_mtu = 0;
  int gid_tbl_len = 0;
  uint32_t port_cap_flags = 0;
  uint32_t max_msg_sz = 0;
  uint32_t bad_pkey_cntr = 0;
  uint32_t qkey_viol_cntr = 0;
  uint16_t pkey_tbl_len = 0;
  uint16_t lid = 0;
  uint16_t sm_lid = 0;
  uint8_t active_width = 0;
  uint8_t active_speed = 0;
  uint8_t phys_state = 0;
  uint8_t link_layer = 0;  ///< 2: Ethernet
};

}  // namespace nupa
