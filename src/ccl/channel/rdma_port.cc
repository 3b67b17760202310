// SPDX-License-Identifier: Apache-2.0
#include "ccl/channel/rdma_port.h"

#include <fcntl.h>
#include <netinet/in.h>

#include <algorithm>
#include <vector>

#include "progress/descriptors.h"

namespace nupa::ccl {
namespace {

constexpr int kAtOnce = 32;
/// Limits a sleep because one of two sleeping threads may consume the event of the other.
constexpr int64_t kLongestSleepNs = 2'000'000;

}  // namespace

Result<std::unique_ptr<WirePort>> WirePort::open(Device& device, uint32_t requests, OnBreak on_break) {
  auto channel = device.create_channel();
  if (!channel) return tl::unexpected(channel.error());
  fcntl((*channel)->fd(), F_SETFL, fcntl((*channel)->fd(), F_GETFL) | O_NONBLOCK);
  auto cq = device.create_cq({.entries = 2 * requests, .channel = channel->get()});
  if (!cq) return tl::unexpected(cq.error());
  return std::unique_ptr<WirePort>(new WirePort(std::move(*channel), std::move(*cq), requests, std::move(on_break)));
}

int WirePort::grow() {
  std::lock_guard lock(mutex_);
  entries_ += sends() + receives();
  return entries_ <= cq_->entries() ? 0 : cq_->resize(2 * entries_);
}

int WirePort::add(QueuePair& qp, uint32_t rank, WireLane* const* lanes) {
  std::lock_guard lock(mutex_);
  Wire wire{&qp, rank, {}};
  for (uint32_t i = 0; i < kLanes; ++i) wire.lanes[i] = lanes[i];
  wires_[qp.number()] = wire;
  int error = 0;
  for (uint32_t i = 0; i < requests_ && error == 0; ++i) error = qp.post_recv({});
  return error;
}

void WirePort::drop(const QueuePair& qp) {
  std::lock_guard lock(mutex_);
  wires_.erase(qp.number());
}

uint32_t WirePort::take(const WorkCompletion& completion) {
  const auto found = wires_.find(completion.qp_num);
  if (found == wires_.end()) return kNoRank;
  Wire& wire = found->second;
  if (completion.status != WcStatus::kSuccess)
    return wire.lanes[static_cast<uint32_t>(LaneKind::kCollective)]->note_break() ? wire.rank : kNoRank;
  if (completion.opcode != WcOpcode::kRecvRdmaWithImm) {
    if (completion.wr_id > 0 && completion.wr_id <= kLanes) wire.lanes[completion.wr_id - 1]->note_arrived();
    return kNoRank;
  }
  const WireNote note = WireNote::unpacked(ntohl(completion.imm_data));
  // The receive comes first: the peer may send as soon as it has an answer to this message.
  if (wire.qp->post_recv({}) != 0) return wire.rank;
  if (!note.is_taken && note.value > wire.lanes[0]->piece_bytes()) return wire.rank;
  wire.lanes[static_cast<uint32_t>(note.lane)]->note(note);
  return kNoRank;
}

void WirePort::poll() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  WorkCompletion completions[kAtOnce];
  std::vector<uint32_t> broken;
  int count = 0;
  do {
    count = cq_->poll(completions, kAtOnce);
    for (int i = 0; i < count; ++i) {
      const uint32_t rank = take(completions[i]);
      if (rank != kNoRank && std::find(broken.begin(), broken.end(), rank) == broken.end()) broken.push_back(rank);
    }
  } while (count == kAtOnce);
  lock.unlock();
  for (const uint32_t rank : broken) on_break_(rank);
}

void WirePort::sleep(int64_t limit_ns) {
  cq_->arm(false);
  // A completion that came before the queue was armed raises no event. If there is one, the caller looks again at once.
  WorkCompletion completion;
  uint32_t broken = kNoRank;
  {
    std::lock_guard lock(mutex_);
    if (cq_->poll(&completion, 1) == 1) {
      broken = take(completion);
      limit_ns = 0;
    }
  }
  if (broken != kNoRank) on_break_(broken);
  if (limit_ns == 0) return;
  const auto deadline = progress::Deadline::in_ns(std::min(limit_ns, kLongestSleepNs));
  (void)progress::wait_readable(channel_->signal_fd(), deadline);  // the result is ignored: the caller polls either way
  while (channel_->wait()) {
  }
}

}  // namespace nupa::ccl
