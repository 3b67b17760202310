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

Result<std::unique_ptr<RdmaPort>> RdmaPort::open(Device& device, uint32_t requests, OnBreak on_break) {
  auto channel = device.create_channel();
  if (!channel) return tl::unexpected(channel.error());
  fcntl((*channel)->fd(), F_SETFL, fcntl((*channel)->fd(), F_GETFL) | O_NONBLOCK);
  auto cq = device.create_cq({.entries = 2 * requests, .channel = channel->get()});
  if (!cq) return tl::unexpected(cq.error());
  return std::unique_ptr<RdmaPort>(new RdmaPort(std::move(*channel), std::move(*cq), requests, std::move(on_break)));
}

int RdmaPort::grow() {
  std::lock_guard lock(mutex_);
  entries_ += sends() + receives();
  return entries_ <= cq_->entries() ? 0 : cq_->resize(2 * entries_);
}

int RdmaPort::add(QueuePair& qp, uint32_t rank, RdmaChannel* const* channels) {
  std::lock_guard lock(mutex_);
  Connection connection{&qp, rank, {}};
  for (uint32_t i = 0; i < kChannelKinds; ++i) connection.channels[i] = channels[i];
  connections_[qp.number()] = connection;
  int error = 0;
  for (uint32_t i = 0; i < requests_ && error == 0; ++i) error = qp.post_recv({});
  return error;
}

void RdmaPort::drop(const QueuePair& qp) {
  std::lock_guard lock(mutex_);
  connections_.erase(qp.number());
}

uint32_t RdmaPort::take(const WorkCompletion& completion) {
  const auto found = connections_.find(completion.qp_num);
  if (found == connections_.end()) return kNoRank;
  Connection& connection = found->second;
  if (completion.status != WcStatus::kSuccess)
    return connection.channels[static_cast<uint32_t>(ChannelKind::kCollective)]->note_break() ? connection.rank
                                                                                              : kNoRank;
  if (completion.opcode != WcOpcode::kRecvRdmaWithImm) {
    if (completion.wr_id > 0 && completion.wr_id <= kChannelKinds)
      connection.channels[completion.wr_id - 1]->note_arrived();
    return kNoRank;
  }
  const ImmediateData note = ImmediateData::unpacked(ntohl(completion.imm_data));
  // The receive comes first: the peer may send as soon as it has an answer to this message.
  if (connection.qp->post_recv({}) != 0) return connection.rank;
  if (!note.is_taken && note.value > connection.channels[0]->fragment_bytes()) return connection.rank;
  connection.channels[static_cast<uint32_t>(note.channel)]->note(note);
  return kNoRank;
}

void RdmaPort::poll() {
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

void RdmaPort::sleep(int64_t limit_ns) {
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
