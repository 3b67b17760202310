#pragma once
#include <nupa/queue_pair.h>

namespace nupa {

/// The peer of a connected queue pair, and what may come from it.
struct ConnectOptions {
  Gid dgid;                    ///< of the peer's port
  uint32_t dest_qp_num = 0;    ///< of the peer
  uint32_t access_flags = 0;   ///< what the peer may do here: access bits
  uint8_t sgid_index = 1;      ///< index of this port's own address; 1 is the host's IPv4 address
  uint8_t min_rnr_timer = 12;  ///< how long the peer waits for a receive to be posted: IBTA table 45, 0.64 ms
  uint8_t timeout = 14;        ///< 4.096 us times 2 to this power
  uint8_t retry_cnt = 7;
  uint8_t rnr_retry = 7;       ///< 7: for ever
  uint8_t max_rd_atomic = 16;  ///< READs and atomics that may be outstanding, in either direction
  uint8_t path_mtu = 5;        ///< 4096 bytes (IBTA 14.2.5.6)
  uint8_t hop_limit = 0;       ///< 0: the system's own
  uint8_t traffic_class = 0;
  uint32_t rq_psn = 0;  ///< of the first packet that the peer sends
  uint32_t sq_psn = 0;  ///< of the first packet that this end sends
};

/// Takes an RC or UC queue pair from RESET to INIT, where receives may be posted before anything can arrive.
/// `access_flags`: what the peer may do here: access bits. 0; EINVAL: another state, another type, or a value out
/// of range.
inline int initialise(QueuePair& qp, uint32_t access_flags) {
  using namespace qp_attr;
  QpAttr attr;
  attr.state = QpState::kInit;
  attr.access_flags = access_flags;
  return qp.modify(attr, kState | kPkeyIndex | kPort | kAccessFlags);
}

/// From INIT to RTS; the access flags stay as they are. Returns what initialise() does.
inline int connect_initialised(QueuePair& qp, const ConnectOptions& options) {
  using namespace qp_attr;
  const bool reliable = qp.type() == QpType::kRc;
  QpAttr attr;
  attr.state = QpState::kRtr;
  attr.av.is_global = true;
  attr.av.dgid = options.dgid;
  attr.av.sgid_index = options.sgid_index;
  attr.av.hop_limit = options.hop_limit;
  attr.av.traffic_class = options.traffic_class;
  attr.path_mtu = options.path_mtu;
  attr.dest_qp_num = options.dest_qp_num;
  attr.rq_psn = options.rq_psn;
  attr.max_dest_rd_atomic = attr.max_rd_atomic = options.max_rd_atomic;
  attr.min_rnr_timer = options.min_rnr_timer;
  const uint32_t to_rtr = kState | kAv | kPathMtu | kDestQpn | kRqPsn;
  const int error = qp.modify(attr, reliable ? to_rtr | kMaxDestRdAtomic | kMinRnrTimer : to_rtr);
  if (error != 0) return error;
  attr.state = QpState::kRts;
  attr.sq_psn = options.sq_psn;
  attr.timeout = options.timeout;
  attr.retry_cnt = options.retry_cnt;
  attr.rnr_retry = options.rnr_retry;
  const uint32_t to_rts = kState | kSqPsn;
  return qp.modify(attr, reliable ? to_rts | kTimeout | kRetryCnt | kRnrRetry | kMaxQpRdAtomic : to_rts);
}

/// From RESET to RTS. The peer need not exist yet. Returns what initialise() does.
inline int connect(QueuePair& qp, const ConnectOptions& options) {
  const int error = initialise(qp, options.access_flags);
  return error != 0 ? error : connect_initialised(qp, options);
}

}  // namespace nupa
