// SPDX-License-Identifier: Apache-2.0
#include "core/qp_state.h"

#include <cerrno>
#include <string>

#include "base/reason.h"
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
                                   access::kRemoteAtomic | access::kMwBind | access::kOnDemand | access::kFlushGlobal |
                                   access::kFlushPersistent;

const char* name_of(QpState state) {
  constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  const auto index = static_cast<uint32_t>(state);
  return index < std::size(kNames) ? kNames[index] : "an unknown state";
}

/// The names of ibv_qp_attr_mask's bits, for reasons.
std::string names_of(uint32_t mask) {
  struct Named {
    uint32_t bit;
    const char* name;
  };
  constexpr Named kNames[] = {{kState, "STATE"},
                              {kCurState, "CUR_STATE"},
                              {kEnSqdAsyncNotify, "EN_SQD_ASYNC_NOTIFY"},
                              {kAccessFlags, "ACCESS_FLAGS"},
                              {kPkeyIndex, "PKEY_INDEX"},
                              {kPort, "PORT"},
                              {kQkey, "QKEY"},
                              {kAv, "AV"},
                              {kPathMtu, "PATH_MTU"},
                              {kTimeout, "TIMEOUT"},
                              {kRetryCnt, "RETRY_CNT"},
                              {kRnrRetry, "RNR_RETRY"},
                              {kRqPsn, "RQ_PSN"},
                              {kMaxQpRdAtomic, "MAX_QP_RD_ATOMIC"},
                              {kAltPath, "ALT_PATH"},
                              {kMinRnrTimer, "MIN_RNR_TIMER"},
                              {kSqPsn, "SQ_PSN"},
                              {kMaxDestRdAtomic, "MAX_DEST_RD_ATOMIC"},
                              {kPathMigState, "PATH_MIG_STATE"},
                              {kDestQpn, "DEST_QPN"}};
  std::string names;
  for (const Named& one : kNames) {
    if ((mask & one.bit) == 0) continue;
    if (!names.empty()) names += ", ";
    names += "IBV_QP_";
    names += one.name;
    mask &= ~one.bit;
  }
  if (mask != 0) names += (names.empty() ? "" : ", ") + ("bits " + std::to_string(mask));
  return names;
}

int reject_attributes(QpState from, QpState to, const char* what, uint32_t mask) {
  if (!explains()) return EINVAL;
  return base::reject(EINVAL, name_of(from), " to ", name_of(to), ": ", what, names_of(mask));
}

/// Returns 0 or EINVAL.
int check_path(const AddressVector& vector) {
  // RoCE: every path has a global route (annex A17.4.1), except a path to this host by its local identifier.
  if (vector.port_num != 1) return base::reject(EINVAL, "ah_attr: port ", vector.port_num, " (the device has port 1)");
  if (!vector.is_global)
    return vector.dlid == kHostLid ? 0 : base::reject(EINVAL, "ah_attr: is_global is 0 (RoCE needs a GID)");
  const auto entries = static_cast<uint32_t>(port_attr().gid_tbl_len);
  if (vector.sgid_index < entries) return 0;
  return base::reject(EINVAL, "ah_attr: GID index ", vector.sgid_index, " (the table has ", entries, " entries)");
}

/// Returns EINVAL with the reason if a number is above its limit, and 0 otherwise.
int check_most(const char* name, uint32_t value, uint32_t most) {
  return value <= most ? 0 : base::reject(EINVAL, name, " ", value, " (at most ", most, ")");
}

/// Returns 0 or EINVAL.
int check_values(const QpAttr& attr, uint32_t mask) {
  const DeviceAttr& limits = device_attr();
  if ((mask & kPort) && attr.port_num != 1)
    return base::reject(EINVAL, "port_num ", attr.port_num, " (the device has port 1)");
  if ((mask & kPkeyIndex) && attr.pkey_index != 0)
    return base::reject(EINVAL, "pkey_index ", attr.pkey_index, " (the table has one P_Key, with index 0)");
  if (const uint32_t unknown = attr.access_flags & ~(kRemoteRights | access::kOptionalMask);
      (mask & kAccessFlags) && unknown != 0)
    return base::reject(EINVAL, "qp_access_flags has the unknown bits ", unknown);
  if ((mask & kPathMtu) && (attr.path_mtu < Mtu::k256 || attr.path_mtu > Mtu::k4096))
    return base::reject(EINVAL, "path_mtu ", static_cast<uint32_t>(attr.path_mtu),
                        " (from 1, IBV_MTU_256, to 5, IBV_MTU_4096)");
  if (mask & kAv)
    if (const int error = check_path(attr.av); error != 0) return error;
  int error = 0;
  if (mask & kDestQpn) error = check_most("dest_qp_num", attr.dest_qp_num, kMax24Bits);
  if (error == 0 && (mask & kTimeout)) error = check_most("timeout", attr.timeout, kMaxTimerCode);
  if (error == 0 && (mask & kMaxQpRdAtomic))
    error = check_most("max_rd_atomic", attr.max_rd_atomic, static_cast<uint32_t>(limits.max_qp_init_rd_atom));
  if (error == 0 && (mask & kMaxDestRdAtomic))
    error = check_most("max_dest_rd_atomic", attr.max_dest_rd_atomic, static_cast<uint32_t>(limits.max_qp_rd_atom));
  if (error != 0) return error;
  // Automatic path migration is not advertised: there is one path, in the state "migrated".
  if (mask & kAltPath) return base::reject(EINVAL, "IBV_QP_ALT_PATH (automatic path migration is not supported)");
  if ((mask & kPathMigState) == 0 || attr.path_mig_state == PathMigState::kMigrated) return 0;
  return base::reject(EINVAL, "path_mig_state ", static_cast<uint32_t>(attr.path_mig_state),
                      " (automatic path migration is not supported)");
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
  if ((mask & kCurState) != 0 && attr.cur_state != current)
    return base::reject(EINVAL, "cur_qp_state ", name_of(attr.cur_state), " (the queue pair is in ", name_of(current),
                        ")");
  const QpState to = (mask & kState) != 0 ? attr.state : current;
  if (static_cast<uint32_t>(to) > static_cast<uint32_t>(QpState::kErr))
    return base::reject(EINVAL, "qp_state ", static_cast<uint32_t>(to), " (there is no such state)");
  if (to == QpState::kReset || to == QpState::kErr) {
    // Allowed in every state, with no other attribute (IBTA 10.3.1).
    if ((mask & ~kState) != 0)
      return reject_attributes(current, to, "no attribute beside IBV_QP_STATE is allowed, given ", mask & ~kState);
  } else {
    const Service service = service_of(type);
    const Rule* table = table_of(current, to, service);
    if (table == nullptr)
      return base::reject(EINVAL, name_of(current), " to ", name_of(to), ": not a transition of this queue pair type");
    const Rule rule = table[service];
    const uint32_t given = mask & ~kState;
    if (const uint32_t missing = rule.required & ~given; missing != 0)
      return reject_attributes(current, to, "missing in the mask: ", missing);
    if (const uint32_t foreign = given & ~(rule.required | rule.optional); foreign != 0)
      return reject_attributes(current, to, "not allowed in the mask: ", foreign);
    if (const int error = check_values(attr, mask); error != 0) return error;
  }
  *next = to;
  return 0;
}

}  // namespace nupa::core
