// SPDX-License-Identifier: Apache-2.0
#include "core/qp_state.h"

#include <cerrno>

#include "core/device_attr.h"

namespace nupa::core {
namespace {

using namespace qp_attr;  // NOLINT: the tables below are unreadable otherwise

/// The attributes of one transition for one transport service.
struct Rule {
  uint32_t required;
  uint32_t optional;
};

enum Service : int { kConnected, kUnreliableConnected, kDatagram, kXrcInitiator, kXrcTarget };

Service service_of(QpType type) {
  switch (type) {
    case QpType::kRc:
      return kConnected;
    case QpType::kUc:
      return kUnreliableConnected;
    case QpType::kUd:
      return kDatagram;
    case QpType::kXrcSend:
      return kXrcInitiator;
    case QpType::kXrcRecv:
      break;
  }
  return kXrcTarget;
}

constexpr uint32_t kPath = kAv | kPathMtu | kDestQpn | kRqPsn;

constexpr Rule kResetToInit[] = {{kPkeyIndex | kPort | kAccessFlags, 0},
                                 {kPkeyIndex | kPort | kAccessFlags, 0},
                                 {kPkeyIndex | kPort | kQkey, 0},
                                 {kPkeyIndex | kPort | kAccessFlags, 0},
                                 {kPkeyIndex | kPort | kAccessFlags, 0}};
constexpr Rule kInitToInit[] = {{0, kPkeyIndex | kPort | kAccessFlags},
                                {0, kPkeyIndex | kPort | kAccessFlags},
                                {0, kPkeyIndex | kPort | kQkey},
                                {0, kPkeyIndex | kPort | kAccessFlags},
                                {0, kPkeyIndex | kPort | kAccessFlags}};
// XRC: each side accepts the responder's attributes as well, because perftest sets them on both.
constexpr uint32_t kResponder = kMaxDestRdAtomic | kMinRnrTimer;
constexpr uint32_t kRequester = kTimeout | kRetryCnt | kRnrRetry | kMaxQpRdAtomic;
constexpr Rule kInitToRtr[] = {{kPath | kResponder, kAltPath | kAccessFlags | kPkeyIndex},
                               {kPath, kAltPath | kAccessFlags | kPkeyIndex},
                               {0, kPkeyIndex | kQkey},
                               {kPath, kAltPath | kAccessFlags | kPkeyIndex | kResponder},
                               {kPath | kResponder, kAltPath | kAccessFlags | kPkeyIndex}};
constexpr uint32_t kLiveOptions = kCurState | kAltPath | kAccessFlags | kPathMigState;
constexpr Rule kRtrToRts[] = {{kTimeout | kRetryCnt | kRnrRetry | kSqPsn | kMaxQpRdAtomic, kLiveOptions | kMinRnrTimer},
                              {kSqPsn, kLiveOptions},
                              {kSqPsn, kCurState | kQkey},
                              {kTimeout | kRetryCnt | kRnrRetry | kSqPsn | kMaxQpRdAtomic, kLiveOptions},
                              {kTimeout | kSqPsn, kLiveOptions | kMinRnrTimer | kRequester}};
constexpr Rule kRtsToRts[] = {{0, kLiveOptions | kMinRnrTimer},
                              {0, kLiveOptions},
                              {0, kCurState | kQkey},
                              {0, kLiveOptions},
                              {0, kLiveOptions | kMinRnrTimer}};
constexpr Rule kRtsToSqd[] = {{0, kEnSqdAsyncNotify},
                              {0, kEnSqdAsyncNotify},
                              {0, kEnSqdAsyncNotify},
                              {0, kEnSqdAsyncNotify},
                              {0, kEnSqdAsyncNotify}};
constexpr Rule kSqdToRts[] = {{0, kLiveOptions | kMinRnrTimer},
                              {0, kLiveOptions},
                              {0, kCurState | kQkey},
                              {0, kLiveOptions},
                              {0, kLiveOptions | kMinRnrTimer}};
constexpr uint32_t kDrainedPath = kAv | kPkeyIndex | kAltPath | kAccessFlags | kPathMigState;
constexpr Rule kSqdToSqd[] = {{0, kPort | kDrainedPath | kRequester | kResponder},
                              {0, kDrainedPath},
                              {0, kPkeyIndex | kQkey},
                              {0, kPort | kDrainedPath | kRequester},
                              {0, kPort | kDrainedPath | kTimeout | kResponder}};
constexpr Rule kSqeToRts[] = {{0, 0}, {0, kCurState | kAccessFlags}, {0, kCurState | kQkey}, {0, 0}, {0, 0}};

const Rule* table_of(QpState from, QpState to, Service service) {
  if (from == QpState::kReset && to == QpState::kInit) return kResetToInit;
  if (from == QpState::kInit && to == QpState::kInit) return kInitToInit;
  if (from == QpState::kInit && to == QpState::kRtr) return kInitToRtr;
  if (from == QpState::kRtr && to == QpState::kRts) return kRtrToRts;
  if (from == QpState::kRts && to == QpState::kRts) return kRtsToRts;
  if (from == QpState::kRts && to == QpState::kSqd) return kRtsToSqd;
  if (from == QpState::kSqd && to == QpState::kRts) return kSqdToRts;
  if (from == QpState::kSqd && to == QpState::kSqd) return kSqdToSqd;
  // Only services whose errors stop just the send queue can leave SQE.
  if (from == QpState::kSqe && to == QpState::kRts && (service == kUnreliableConnected || service == kDatagram))
    return kSqeToRts;
  return nullptr;
}

constexpr uint32_t kMax24Bits = 0xffffff;  // queue pair numbers and packet sequence numbers (IBTA 9.2)
// The fields of the wire format: five bits for timers, three for retry counts.
constexpr uint8_t kMaxTimerCode = 31;
constexpr uint8_t kMaxRetries = 7;
constexpr uint32_t kRemoteRights = access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead |
                                   access::kRemoteAtomic | access::kMwBind | access::kOnDemand;

bool valid_path(const AddressVector& vector) {
  // RoCE: every path has a global route (annex A17.4.1), except a path to this host by its local identifier.
  if (vector.port_num != 1) return false;
  if (!vector.is_global) return vector.dlid == kHostLid;
  return vector.sgid_index < static_cast<uint32_t>(port_attr().gid_tbl_len);
}

bool valid_values(const QpAttr& attr, uint32_t mask) {
  const DeviceAttr& limits = device_attr();
  if ((mask & kPort) && attr.port_num != 1) return false;
  if ((mask & kPkeyIndex) && attr.pkey_index != 0) return false;
  if ((mask & kAccessFlags) && (attr.access_flags & ~(kRemoteRights | access::kOptionalMask)) != 0) return false;
  if ((mask & kPathMtu) && (attr.path_mtu < Mtu::k256 || attr.path_mtu > Mtu::k4096)) return false;
  if ((mask & kAv) && !valid_path(attr.av)) return false;
  if ((mask & kDestQpn) && attr.dest_qp_num > kMax24Bits) return false;
  if ((mask & kTimeout) && attr.timeout > kMaxTimerCode) return false;
  if ((mask & kMaxQpRdAtomic) && attr.max_rd_atomic > limits.max_qp_init_rd_atom) return false;
  if ((mask & kMaxDestRdAtomic) && attr.max_dest_rd_atomic > limits.max_qp_rd_atom) return false;
  // Automatic path migration is not advertised: there is one path, in the state "migrated".
  if (mask & kAltPath) return false;
  return (mask & kPathMigState) == 0 || attr.path_mig_state == PathMigState::kMigrated;
}

}  // namespace

void cut_to_fields(QpAttr& attr) {
  attr.rq_psn &= kMax24Bits;
  attr.sq_psn &= kMax24Bits;
  attr.min_rnr_timer &= kMaxTimerCode;
  attr.retry_cnt &= kMaxRetries;
  attr.rnr_retry &= kMaxRetries;
}

int check_modify(QpType type, QpState current, const QpAttr& attr, uint32_t mask, QpState* next) {
  // A given current state must be correct: programs use it to distinguish a live queue pair from one that has just
  // stopped.
  if ((mask & kCurState) != 0 && attr.cur_state != current) return EINVAL;
  const QpState to = (mask & kState) != 0 ? attr.state : current;
  if (static_cast<uint32_t>(to) > static_cast<uint32_t>(QpState::kErr)) return EINVAL;
  if (to == QpState::kReset || to == QpState::kErr) {
    // Allowed in every state, with no other attribute (IBTA 10.3.1).
    if ((mask & ~kState) != 0) return EINVAL;
  } else {
    const Service service = service_of(type);
    const Rule* table = table_of(current, to, service);
    if (table == nullptr) return EINVAL;
    const Rule rule = table[service];
    const uint32_t given = mask & ~kState;
    if ((given & rule.required) != rule.required) return EINVAL;
    if ((given & ~(rule.required | rule.optional)) != 0) return EINVAL;
    if (!valid_values(attr, mask)) return EINVAL;
  }
  *next = to;
  return 0;
}

}  // namespace nupa::core
