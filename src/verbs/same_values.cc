// SPDX-License-Identifier: Apache-2.0
/// The enumerators and masks of include/nupa have the values of the verbs ABI, so that the other files cast them. Only
/// assertions are here.
#include "verbs/wrappers.h"

namespace nupa::verbs {
namespace {

/// Returns whether an enumerator or bit of include/nupa has the value of one of the ABI.
template <class Ours, class Abi>
constexpr bool same(Ours ours, Abi abi) {
  return static_cast<uint64_t>(ours) == static_cast<uint64_t>(abi);
}

static_assert(same(GidType::kIb, IBV_GID_TYPE_IB) && same(GidType::kRoceV1, IBV_GID_TYPE_ROCE_V1) &&
              same(GidType::kRoceV2, IBV_GID_TYPE_ROCE_V2));

// Ports.
static_assert(same(Mtu::k256, IBV_MTU_256) && same(Mtu::k512, IBV_MTU_512) && same(Mtu::k1024, IBV_MTU_1024) &&
              same(Mtu::k2048, IBV_MTU_2048) && same(Mtu::k4096, IBV_MTU_4096));
static_assert(same(PortState::kNop, IBV_PORT_NOP) && same(PortState::kDown, IBV_PORT_DOWN) &&
              same(PortState::kInit, IBV_PORT_INIT) && same(PortState::kArmed, IBV_PORT_ARMED) &&
              same(PortState::kActive, IBV_PORT_ACTIVE) && same(PortState::kActiveDefer, IBV_PORT_ACTIVE_DEFER));
static_assert(same(LinkLayer::kUnspecified, IBV_LINK_LAYER_UNSPECIFIED) &&
              same(LinkLayer::kInfiniband, IBV_LINK_LAYER_INFINIBAND) &&
              same(LinkLayer::kEthernet, IBV_LINK_LAYER_ETHERNET));
static_assert(same(port_cap::kCm, IBV_PORT_CM_SUP) && same(port_cap::kIpBasedGids, IBV_PORT_IP_BASED_GIDS));

// Devices.
static_assert(same(AtomicCap::kNone, IBV_ATOMIC_NONE) && same(AtomicCap::kHca, IBV_ATOMIC_HCA) &&
              same(AtomicCap::kGlob, IBV_ATOMIC_GLOB));
static_assert(same(device_cap::kCurrQpStateMod, IBV_DEVICE_CURR_QP_STATE_MOD) &&
              same(device_cap::kSysImageGuid, IBV_DEVICE_SYS_IMAGE_GUID) &&
              same(device_cap::kRcRnrNakGen, IBV_DEVICE_RC_RNR_NAK_GEN) &&
              same(device_cap::kMemWindow, IBV_DEVICE_MEM_WINDOW) && same(device_cap::kXrc, IBV_DEVICE_XRC) &&
              same(device_cap::kMemMgtExtensions, IBV_DEVICE_MEM_MGT_EXTENSIONS) &&
              same(device_cap::kMemWindowType2b, IBV_DEVICE_MEM_WINDOW_TYPE_2B));
static_assert(same(odp_general_cap::kSupport, IBV_ODP_SUPPORT) && same(odp_cap::kSend, IBV_ODP_SUPPORT_SEND) &&
              same(odp_cap::kRecv, IBV_ODP_SUPPORT_RECV) && same(odp_cap::kWrite, IBV_ODP_SUPPORT_WRITE) &&
              same(odp_cap::kRead, IBV_ODP_SUPPORT_READ) && same(odp_cap::kAtomic, IBV_ODP_SUPPORT_ATOMIC) &&
              same(odp_cap::kSrqRecv, IBV_ODP_SUPPORT_SRQ_RECV));
static_assert(same(EventType::kCqErr, IBV_EVENT_CQ_ERR) && same(EventType::kQpFatal, IBV_EVENT_QP_FATAL) &&
              same(EventType::kQpReqErr, IBV_EVENT_QP_REQ_ERR) &&
              same(EventType::kQpAccessErr, IBV_EVENT_QP_ACCESS_ERR) && same(EventType::kCommEst, IBV_EVENT_COMM_EST) &&
              same(EventType::kSqDrained, IBV_EVENT_SQ_DRAINED) && same(EventType::kPathMig, IBV_EVENT_PATH_MIG) &&
              same(EventType::kPathMigErr, IBV_EVENT_PATH_MIG_ERR) &&
              same(EventType::kDeviceFatal, IBV_EVENT_DEVICE_FATAL) &&
              same(EventType::kPortActive, IBV_EVENT_PORT_ACTIVE) && same(EventType::kPortErr, IBV_EVENT_PORT_ERR) &&
              same(EventType::kLidChange, IBV_EVENT_LID_CHANGE) &&
              same(EventType::kPkeyChange, IBV_EVENT_PKEY_CHANGE) && same(EventType::kSmChange, IBV_EVENT_SM_CHANGE) &&
              same(EventType::kSrqErr, IBV_EVENT_SRQ_ERR) &&
              same(EventType::kSrqLimitReached, IBV_EVENT_SRQ_LIMIT_REACHED) &&
              same(EventType::kQpLastWqeReached, IBV_EVENT_QP_LAST_WQE_REACHED) &&
              same(EventType::kClientReregister, IBV_EVENT_CLIENT_REREGISTER) &&
              same(EventType::kGidChange, IBV_EVENT_GID_CHANGE));

// Memory.
static_assert(same(access::kLocalWrite, IBV_ACCESS_LOCAL_WRITE) &&
              same(access::kRemoteWrite, IBV_ACCESS_REMOTE_WRITE) &&
              same(access::kRemoteRead, IBV_ACCESS_REMOTE_READ) &&
              same(access::kRemoteAtomic, IBV_ACCESS_REMOTE_ATOMIC) && same(access::kMwBind, IBV_ACCESS_MW_BIND) &&
              same(access::kZeroBased, IBV_ACCESS_ZERO_BASED) && same(access::kOnDemand, IBV_ACCESS_ON_DEMAND) &&
              same(access::kHugeTlb, IBV_ACCESS_HUGETLB) && same(access::kFlushGlobal, kAccessFlushGlobal) &&
              same(access::kFlushPersistent, kAccessFlushPersistent) &&
              same(access::kRelaxedOrdering, IBV_ACCESS_RELAXED_ORDERING) &&
              same(access::kOptionalMask, IBV_ACCESS_OPTIONAL_RANGE));
static_assert(same(mr_attr::kTranslation, IBV_REREG_MR_CHANGE_TRANSLATION) &&
              same(mr_attr::kPd, IBV_REREG_MR_CHANGE_PD) && same(mr_attr::kAccess, IBV_REREG_MR_CHANGE_ACCESS));
static_assert(same(MrAdvice::kPrefetch, IBV_ADVISE_MR_ADVICE_PREFETCH) &&
              same(MrAdvice::kPrefetchWrite, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE) &&
              same(MrAdvice::kPrefetchNoFault, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) &&
              same(advise_flag::kFlush, IBV_ADVISE_MR_FLAG_FLUSH));
static_assert(same(MwType::kType1, IBV_MW_TYPE_1) && same(MwType::kType2, IBV_MW_TYPE_2));

// Queues.
static_assert(same(SrqType::kBasic, IBV_SRQT_BASIC) && same(SrqType::kXrc, IBV_SRQT_XRC) &&
              same(srq_attr::kMaxWr, IBV_SRQ_MAX_WR) && same(srq_attr::kLimit, IBV_SRQ_LIMIT));
static_assert(same(QpType::kRc, IBV_QPT_RC) && same(QpType::kUc, IBV_QPT_UC) && same(QpType::kUd, IBV_QPT_UD) &&
              same(QpType::kXrcSend, IBV_QPT_XRC_SEND) && same(QpType::kXrcRecv, IBV_QPT_XRC_RECV));
static_assert(same(QpState::kReset, IBV_QPS_RESET) && same(QpState::kInit, IBV_QPS_INIT) &&
              same(QpState::kRtr, IBV_QPS_RTR) && same(QpState::kRts, IBV_QPS_RTS) &&
              same(QpState::kSqd, IBV_QPS_SQD) && same(QpState::kSqe, IBV_QPS_SQE) && same(QpState::kErr, IBV_QPS_ERR));
static_assert(same(PathMigState::kMigrated, IBV_MIG_MIGRATED) && same(PathMigState::kRearm, IBV_MIG_REARM) &&
              same(PathMigState::kArmed, IBV_MIG_ARMED));
static_assert(same(qp_attr::kState, IBV_QP_STATE) && same(qp_attr::kCurState, IBV_QP_CUR_STATE) &&
              same(qp_attr::kEnSqdAsyncNotify, IBV_QP_EN_SQD_ASYNC_NOTIFY) &&
              same(qp_attr::kAccessFlags, IBV_QP_ACCESS_FLAGS) && same(qp_attr::kPkeyIndex, IBV_QP_PKEY_INDEX) &&
              same(qp_attr::kPort, IBV_QP_PORT) && same(qp_attr::kQkey, IBV_QP_QKEY) && same(qp_attr::kAv, IBV_QP_AV) &&
              same(qp_attr::kPathMtu, IBV_QP_PATH_MTU) && same(qp_attr::kTimeout, IBV_QP_TIMEOUT) &&
              same(qp_attr::kRetryCnt, IBV_QP_RETRY_CNT) && same(qp_attr::kRnrRetry, IBV_QP_RNR_RETRY) &&
              same(qp_attr::kRqPsn, IBV_QP_RQ_PSN) && same(qp_attr::kMaxQpRdAtomic, IBV_QP_MAX_QP_RD_ATOMIC) &&
              same(qp_attr::kAltPath, IBV_QP_ALT_PATH) && same(qp_attr::kMinRnrTimer, IBV_QP_MIN_RNR_TIMER) &&
              same(qp_attr::kSqPsn, IBV_QP_SQ_PSN) && same(qp_attr::kMaxDestRdAtomic, IBV_QP_MAX_DEST_RD_ATOMIC) &&
              same(qp_attr::kPathMigState, IBV_QP_PATH_MIG_STATE) && same(qp_attr::kCap, IBV_QP_CAP) &&
              same(qp_attr::kDestQpn, IBV_QP_DEST_QPN) && same(qp_attr::kRateLimit, IBV_QP_RATE_LIMIT));

// Requests and completions.
static_assert(same(Opcode::kRdmaWrite, IBV_WR_RDMA_WRITE) &&
              same(Opcode::kRdmaWriteWithImm, IBV_WR_RDMA_WRITE_WITH_IMM) && same(Opcode::kSend, IBV_WR_SEND) &&
              same(Opcode::kSendWithImm, IBV_WR_SEND_WITH_IMM) && same(Opcode::kRdmaRead, IBV_WR_RDMA_READ) &&
              same(Opcode::kCompareSwap, IBV_WR_ATOMIC_CMP_AND_SWP) &&
              same(Opcode::kFetchAdd, IBV_WR_ATOMIC_FETCH_AND_ADD) && same(Opcode::kLocalInv, IBV_WR_LOCAL_INV) &&
              same(Opcode::kBindMw, IBV_WR_BIND_MW) && same(Opcode::kSendWithInv, IBV_WR_SEND_WITH_INV) &&
              same(Opcode::kAtomicWrite, IBV_WR_ATOMIC_WRITE) && same(Opcode::kFlush, kWrFlush));
static_assert(same(flush_flag::kGlobal, kFlushGlobal) && same(flush_flag::kPersistent, kFlushPersistent));
static_assert(same(send_flag::kFence, IBV_SEND_FENCE) && same(send_flag::kSignaled, IBV_SEND_SIGNALED) &&
              same(send_flag::kSolicited, IBV_SEND_SOLICITED) && same(send_flag::kInline, IBV_SEND_INLINE));
static_assert(same(WcStatus::kSuccess, IBV_WC_SUCCESS) && same(WcStatus::kLocLenErr, IBV_WC_LOC_LEN_ERR) &&
              same(WcStatus::kLocQpOpErr, IBV_WC_LOC_QP_OP_ERR) && same(WcStatus::kLocProtErr, IBV_WC_LOC_PROT_ERR) &&
              same(WcStatus::kWrFlushErr, IBV_WC_WR_FLUSH_ERR) && same(WcStatus::kMwBindErr, IBV_WC_MW_BIND_ERR) &&
              same(WcStatus::kBadRespErr, IBV_WC_BAD_RESP_ERR) &&
              same(WcStatus::kLocAccessErr, IBV_WC_LOC_ACCESS_ERR) &&
              same(WcStatus::kRemInvReqErr, IBV_WC_REM_INV_REQ_ERR) &&
              same(WcStatus::kRemAccessErr, IBV_WC_REM_ACCESS_ERR) && same(WcStatus::kRemOpErr, IBV_WC_REM_OP_ERR) &&
              same(WcStatus::kRetryExcErr, IBV_WC_RETRY_EXC_ERR) &&
              same(WcStatus::kRnrRetryExcErr, IBV_WC_RNR_RETRY_EXC_ERR) &&
              same(WcStatus::kRemAbortErr, IBV_WC_REM_ABORT_ERR) && same(WcStatus::kFatalErr, IBV_WC_FATAL_ERR) &&
              same(WcStatus::kGeneralErr, IBV_WC_GENERAL_ERR));
static_assert(same(WcOpcode::kSend, IBV_WC_SEND) && same(WcOpcode::kRdmaWrite, IBV_WC_RDMA_WRITE) &&
              same(WcOpcode::kRdmaRead, IBV_WC_RDMA_READ) && same(WcOpcode::kCompareSwap, IBV_WC_COMP_SWAP) &&
              same(WcOpcode::kFetchAdd, IBV_WC_FETCH_ADD) && same(WcOpcode::kBindMw, IBV_WC_BIND_MW) &&
              same(WcOpcode::kLocalInv, IBV_WC_LOCAL_INV) && same(WcOpcode::kAtomicWrite, IBV_WC_ATOMIC_WRITE) &&
              same(WcOpcode::kFlush, kWcFlush) && same(WcOpcode::kRecv, IBV_WC_RECV) &&
              same(WcOpcode::kRecvRdmaWithImm, IBV_WC_RECV_RDMA_WITH_IMM));
static_assert(same(wc_flag::kGrh, IBV_WC_GRH) && same(wc_flag::kWithImm, IBV_WC_WITH_IMM) &&
              same(wc_flag::kWithInv, IBV_WC_WITH_INV));

}  // namespace
}  // namespace nupa::verbs
