// SPDX-License-Identifier: Apache-2.0
/// The extended completion queue: completions are polled one by one and read field by field.
#include <ctime>

#include "verbs/wrappers.h"

namespace nupa::verbs {
namespace {

int take(VCq* cq) {
  const int taken = cq->core->poll_ex(&cq->current, 1);
  if (taken <= 0) return taken == 0 ? ENOENT : -taken;
  cq->ex.status = static_cast<ibv_wc_status>(cq->current.wc.status);
  cq->ex.wr_id = cq->current.wc.wr_id;
  return 0;
}

/// After success the queue belongs to this thread until end_poll, and the program reads the current completion field by
/// field. After any other result end_poll is not called.
int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attr) {
  if (attr != nullptr && attr->comp_mask != 0) return EINVAL;
  of(cq)->polling.lock();
  const int error = take(of(cq));
  if (error != 0) of(cq)->polling.unlock();
  return error;
}
int next_poll(ibv_cq_ex* cq) { return take(of(cq)); }
void end_poll(ibv_cq_ex* cq) { of(cq)->polling.unlock(); }

// The same functions for a queue that only one thread polls.
int start_poll_alone(ibv_cq_ex* cq, ibv_poll_cq_attr* attr) {
  return attr != nullptr && attr->comp_mask != 0 ? EINVAL : take(of(cq));
}
void end_poll_alone(ibv_cq_ex*) {}

const WorkCompletion& wc_of(ibv_cq_ex* cq) { return of(cq)->current.wc; }
ibv_wc_opcode read_opcode(ibv_cq_ex* cq) { return static_cast<ibv_wc_opcode>(wc_of(cq).opcode); }
uint32_t read_vendor_err(ibv_cq_ex* cq) { return wc_of(cq).vendor_err; }
uint32_t read_byte_len(ibv_cq_ex* cq) { return wc_of(cq).byte_len; }
__be32 read_imm_data(ibv_cq_ex* cq) { return wc_of(cq).imm_data; }
uint32_t read_qp_num(ibv_cq_ex* cq) { return wc_of(cq).qp_num; }
uint32_t read_src_qp(ibv_cq_ex* cq) { return wc_of(cq).src_qp; }
unsigned int read_wc_flags(ibv_cq_ex* cq) { return wc_of(cq).wc_flags; }
uint32_t read_slid(ibv_cq_ex* cq) { return wc_of(cq).slid; }
uint8_t read_sl(ibv_cq_ex* cq) { return wc_of(cq).sl; }
uint8_t read_dlid_path_bits(ibv_cq_ex* cq) { return wc_of(cq).dlid_path_bits; }
uint64_t read_completion_ts(ibv_cq_ex* cq) { return of(cq)->current.timestamp; }

/// The timestamp is in raw ticks: subtract its age from the current time.
uint64_t read_completion_wallclock_ns(ibv_cq_ex* cq) {
  const auto age_ticks = static_cast<int64_t>(core_of(cq->context).clock() - of(cq)->current.timestamp);
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const uint64_t now_ns =
      static_cast<uint64_t>(now.tv_sec) * nupa::base::kNsPerSecond + static_cast<uint64_t>(now.tv_nsec);
  return now_ns - static_cast<uint64_t>(static_cast<__int128>(age_ticks) * 1'000'000 / of(cq)->clock_khz);
}

}  // namespace

void set_readers(VCq* made, uint64_t wc_flags) {
  ibv_cq_ex& cq = made->ex;
  made->clock_khz = core_of(cq.context).clock_khz();
  cq.start_poll = made->single_threaded ? start_poll_alone : start_poll;
  cq.next_poll = next_poll;
  cq.end_poll = made->single_threaded ? end_poll_alone : end_poll;
  cq.read_opcode = read_opcode;
  cq.read_vendor_err = read_vendor_err;
  cq.read_wc_flags = read_wc_flags;
  if (wc_flags & IBV_WC_EX_WITH_BYTE_LEN) cq.read_byte_len = read_byte_len;
  if (wc_flags & IBV_WC_EX_WITH_IMM) cq.read_imm_data = read_imm_data;
  if (wc_flags & IBV_WC_EX_WITH_QP_NUM) cq.read_qp_num = read_qp_num;
  if (wc_flags & IBV_WC_EX_WITH_SRC_QP) cq.read_src_qp = read_src_qp;
  if (wc_flags & IBV_WC_EX_WITH_SLID) cq.read_slid = read_slid;
  if (wc_flags & IBV_WC_EX_WITH_SL) cq.read_sl = read_sl;
  if (wc_flags & IBV_WC_EX_WITH_DLID_PATH_BITS) cq.read_dlid_path_bits = read_dlid_path_bits;
  if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) cq.read_completion_ts = read_completion_ts;
  if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
    cq.read_completion_wallclock_ns = read_completion_wallclock_ns;
}

}  // namespace nupa::verbs
