#pragma once
/// The states that a connected queue pair of the network device goes through. Its receives are posted between the two
/// calls.
#include <nupa/queue_pair.h>

#include <cstdint>

namespace nupa::netdev {

/// The peer's queue pair, and how to reach it.
struct PeerQueuePair {
  AddressVector vector;
  uint8_t mtu = 0;  ///< code of IBTA 11.2.1.5
  uint32_t qp_num = 0;
  uint32_t rq_psn = 0;
  uint32_t sq_psn = 0;
  uint8_t min_rnr_timer = 0;  ///< IBTA table 45
  uint8_t timeout = 0;        ///< 4.096 us times 2 to this power
};

/// From RESET to INIT. `access_flags`: what the peer may do to memory of this process. 0 or an errno.
inline int initialise(QueuePair& qp, uint32_t access_flags) {
  using namespace qp_attr;
  QpAttr attr;
  attr.state = QpState::kInit;
  attr.access_flags = access_flags;
  return qp.modify(attr, kState | kPkeyIndex | kPort | kAccessFlags);
}

/// From INIT to RTS, with one READ at a time and seven repetitions. 0 or an errno.
inline int connect_initialised(QueuePair& qp, const PeerQueuePair& peer) {
  using namespace qp_attr;
  QpAttr attr;
  attr.state = QpState::kRtr;
  attr.av = peer.vector;
  attr.path_mtu = peer.mtu;
  attr.dest_qp_num = peer.qp_num;
  attr.rq_psn = peer.rq_psn;
  attr.min_rnr_timer = peer.min_rnr_timer;
  attr.max_dest_rd_atomic = attr.max_rd_atomic = 1;
  const int error = qp.modify(attr, kState | kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer);
  if (error != 0) return error;
  attr.state = QpState::kRts;
  attr.sq_psn = peer.sq_psn;
  attr.timeout = peer.timeout;
  attr.retry_cnt = attr.rnr_retry = 7;
  return qp.modify(attr, kState | kSqPsn | kTimeout | kRetryCnt | kRnrRetry | kMaxQpRdAtomic);
}

}  // namespace nupa::netdev
