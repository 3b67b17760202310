// SPDX-License-Identifier: Apache-2.0
#include "ccl/channel/rdma_channel.h"

#include <netinet/in.h>

namespace nupa::ccl {
namespace {

uint32_t immediate_of(const ImmediateData& note) { return htonl(note.packed()); }

}  // namespace

void RdmaChannel::post(SendWr& wr) {
  wr.opcode = Opcode::kRdmaWriteWithImm;
  wr.flags = send_flag::kSignaled;
  wr.wr_id = static_cast<uint64_t>(kind_) + 1;
  wr.rkey = there_.rkey;
  // The result is ignored: a queue pair that rejects a request has failed, and the thread that polls gets its error
  // completion.
  qp_.post_send(wr);
  ++posted_;
}

void RdmaChannel::send_from(const void* data, size_t bytes, uint32_t lkey) {
  const Sge sge{reinterpret_cast<uint64_t>(data), static_cast<uint32_t>(bytes), lkey};
  SendWr wr{.sg_list = &sge, .num_sge = bytes == 0 ? 0u : 1u};
  wr.imm_or_rkey = immediate_of({kind_, false, static_cast<uint32_t>(bytes)});
  wr.remote_addr = there_.channel + layout_.in_slot(sent_);
  post(wr);
  ++sent_;
}

void RdmaChannel::pop() {
  ++received_;
  if (++unreported_ < layout_.reported_after()) return;
  SendWr wr{};
  wr.imm_or_rkey = immediate_of({kind_, true, unreported_});
  wr.remote_addr = there_.channel;
  post(wr);
  unreported_ = 0;
}

bool RdmaChannel::note_break() {
  if (!parted_.load(std::memory_order_acquire)) return true;
  // This is more than can be outstanding, so a thread that waits for the last completion continues.
  completed_.fetch_add(layout_.rdma_requests(), std::memory_order_release);
  return false;
}

void RdmaChannel::note(const ImmediateData& note) {
  if (note.is_taken) {
    taken_.store(taken_.load(std::memory_order_relaxed) + note.value, std::memory_order_release);
    return;
  }
  const uint32_t fragment = arrived_.load(std::memory_order_relaxed);
  lengths_[fragment % layout_.fragments()] = note.value;
  arrived_.store(fragment + 1, std::memory_order_release);
}

}  // namespace nupa::ccl
