// SPDX-License-Identifier: Apache-2.0
/// The receive side of a queue pair: posting, flushing, and recovering the receives that a dead peer held.
#include <cerrno>

#include "base/reason.h"
#include "base/probe.h"
#include "core/qp.h"

namespace nupa::core {

int Qp::post_recv(const RecvWr& wr) {
  if (queue_ == nullptr) return base::reject(EINVAL, "the queue pair has no receive queue: it uses an SRQ, or is XRC");
  const QpState now = state();
  if (__builtin_expect(now == QpState::kReset, 0))
    return base::reject(EINVAL, "the queue pair is in RESET (receives are posted from INIT on)");
  NUPA_PROBE(post_recv, qp_num_, wr.wr_id);
  const int error = queue_->post(wr);
  if (__builtin_expect(error != 0, 0)) return error;
  if (__builtin_expect(shared_->sender_waits.load(std::memory_order_relaxed) != 0, 0)) wake_sender();
  // A receive posted in the error state is flushed at once (IBTA 10.3.1.7).
  if (__builtin_expect(now == QpState::kErr, 0)) {
    std::unique_lock send(send_lock_, std::try_to_lock);
    if (!send.owns_lock() || !flush_receives())
      host::call_attention(process_.node().self(), shm::attention::kQp, index_);
  }
  return 0;
}

void Qp::wake_sender() {
  if (shared_->sender_waits.exchange(0) == 0) return;
  const uint32_t slot = shared_->remote_slot.load();
  const host::PeerRef peer = process_.node().find(slot);
  if (peer == nullptr) return;
  const auto index = peer->queue_pairs().index_of(shared_->remote_qpn.load());
  if (!index) return;  // a reset removed it meanwhile
  peer->queue_pairs().qp(*index)->wake.store(1);
  host::call_attention(*peer, shm::attention::kQp, *index);
}

std::function<bool(uint32_t)> Qp::death_test() {
  return [this](uint32_t tag) {
    if (tag == process_.tag()) return false;
    const host::PeerRef peer = process_.node().find(tag & 0xfff);
    return peer == nullptr || shm::owner_tag(peer->slot(), peer->instance()) != tag;
  };
}

std::function<bool(const shm::RecvSlot&)> Qp::completion_test() {
  return [this](const shm::RecvSlot& slot) {
    const uint64_t completion = slot.completion.load(std::memory_order_acquire);
    return completion != 0 && recv_cq_->completed(completion);
  };
}

void Qp::push_flush(const shm::RecvSlot& slot) {
  shm::CqEntry entry;
  entry.wr_id = slot.wr_id;
  entry.qp_num = qp_num_;
  entry.status = static_cast<uint8_t>(WcStatus::kWrFlushErr);
  entry.opcode = static_cast<uint8_t>(WcOpcode::kRecv);
  recv_port_.push(process_.tag(), nullptr, true, entry);
}

bool Qp::flush_receives() {
  if (endpoint_ != nullptr) endpoint_->stop();
  context_.forget_calls();
  if (queue_ == nullptr) {
    // IBTA 11.6.3.1: after this event no more receives of a shared queue are taken for this queue pair.
    if (srq_ != nullptr && !last_wqe_reported_.exchange(true))
      device_.events().push({EventType::kQpLastWqeReached, nullptr, this, nullptr, 1});
    return true;
  }
  return queue_->drain([this](const shm::RecvSlot& slot) { push_flush(slot); }, 0, death_test(), completion_test());
}

void Qp::drop_receives() {
  if (queue_ == nullptr) return;
  constexpr int64_t kFillWaitNs = 2'000'000'000;
  queue_->drain(nullptr, kFillWaitNs, death_test(), completion_test());
}

void Qp::recover(uint32_t dead_tag) {
  // The queue pair may continue to receive, for example datagrams of other peers. Posted receives stay posted until it
  // is in the error state.
  if (queue_ != nullptr) queue_->recover(dead_tag, completion_test());
}

}  // namespace nupa::core
