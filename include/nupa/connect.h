// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Connects an RC or UC queue pair whose peer's address is known, with usual values. Any thread may call any function;
/// two threads do not connect one queue pair at the same time.
#include <nupa/queue_pair.h>

namespace nupa {

/// The peer of a connected queue pair, and what the peer may do.
struct ConnectOptions {
  Gid dgid;                    ///< address of the peer's port
  uint32_t dest_qp_num = 0;    ///< QueuePair::number() of the peer, 24 bits
  uint32_t access_flags = 0;   ///< what the peer may do here: access bits
  uint8_t sgid_index = 1;      ///< index of this port's own address, 0 to 31; 1 is the host's IPv4 address
  uint8_t min_rnr_timer = 12;  ///< how long the peer waits for a receive, 0 to 31: IBTA table 45; 12 is 0.64 ms
  uint8_t timeout = 14;        ///< acknowledgement timeout: 4.096 us times 2 to this power, 0 to 31; 0: none
  uint8_t retry_cnt = 7;       ///< retries without an answer, 0 to 7
  uint8_t rnr_retry = 7;       ///< retries after RNR, 0 to 6; 7: no limit
  uint8_t max_rd_atomic = 16;  ///< READs and atomics that may be outstanding in either direction, 0 to 16
  Mtu path_mtu = Mtu::k4096;   ///< largest payload of a packet; at most that of the way to the peer
  uint8_t hop_limit = 0;       ///< 0: the system's default
  uint8_t traffic_class = 0;   ///< traffic class of the packets
  uint32_t rq_psn = 0;         ///< number of the first packet that the peer sends, 24 bits
  uint32_t sq_psn = 0;         ///< number of the first packet that this side sends, 24 bits
};

/// Takes an RC or UC queue pair from RESET to INIT, where receives may be posted before anything can arrive.
/// @param qp a queue pair in RESET
/// @param access_flags what the peer may do here: access bits
/// @return 0 or an errno value of QueuePair::modify(). EINVAL: another state, another type, or a value out of range.
inline int initialise(QueuePair& qp, uint32_t access_flags) {
  using namespace qp_attr;
  QpAttr attr;
  attr.state = QpState::kInit;
  attr.access_flags = access_flags;
  return qp.modify(attr, kState | kPkeyIndex | kPort | kAccessFlags);
}

/// Takes a queue pair from INIT to RTS. The access flags stay as they are.
/// @param qp an RC or UC queue pair in INIT
/// @param options the peer; `access_flags` is not read
/// @return 0 or an errno value of QueuePair::modify(): see there for the transition to RTR.
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

/// Takes a queue pair from RESET to RTS: initialise() and connect_initialised(). The peer's queue pair need not exist
/// yet. The peer calls it with this side's address and number.
/// @param qp an RC or UC queue pair in RESET
/// @param options the peer
/// @return 0 or an errno value of QueuePair::modify().
inline int connect(QueuePair& qp, const ConnectOptions& options) {
  const int error = initialise(qp, options.access_flags);
  return error != 0 ? error : connect_initialised(qp, options);
}

}  // namespace nupa
