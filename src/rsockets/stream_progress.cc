// SPDX-License-Identifier: Apache-2.0
/// Completions of a stream and their effects; control messages.
#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>

#include "rsockets/limits.h"
#include "rsockets/listener.h"
#include "rsockets/stream.h"

namespace nupa::rsockets {
namespace {

constexpr uint64_t kReceiveId = UINT64_C(1) << 62;
constexpr int kPollTogether = 16;
constexpr uint32_t kMostRepostedTogether = 32;
/// Checks without a result before connection events are checked, which costs a system call.
constexpr uint32_t kQuietLooks = 1024;

int error_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return ECONNRESET;
    default:
      return EIO;
  }
}

/// A chain of receives without memory, since messages are in the immediate data. All receives are equal, so all streams
/// use one chain.
class ReceiveChain {
 public:
  ReceiveChain() {
    for (size_t i = 0; i < chain_.size(); ++i) {
      chain_[i].wr_id = kReceiveId;
      chain_[i].next = i + 1 < chain_.size() ? &chain_[i + 1] : nullptr;
    }
  }
  /// Returns the last `count` receives of the chain.
  ibv_recv_wr* last(size_t count) { return &chain_[chain_.size() - count]; }

 private:
  std::array<ibv_recv_wr, kMostRepostedTogether> chain_{};
};

ReceiveChain receive_chain;

}  // namespace

void Stream::progress() {
  std::lock_guard lock(completions_);
  progress_locked();
}

void Stream::progress_locked() {
  if (!source_.is_open()) return;
  ibv_wc completions[kPollTogether];
  bool changed = false;
  int count;
  while ((count = ibv_poll_cq(source_.cq(), kPollTogether, completions)) > 0) {
    for (int i = 0; i < count; ++i) handle_completion(completions[i]);
    changed = true;
    if (count < kPollTogether) break;
  }
  if (broken_.load(std::memory_order_relaxed) != 0 && connected()) fail(broken_.load());
  if (changed) repost_receives(false);
  update_credits();
  const bool writable = can_send();
  if (writable && !was_writable_) write_edges_.fetch_add(1, std::memory_order_release);
  was_writable_ = writable;
  if (changed) {
    quiet_looks_ = 0;
    observers().notify();
  }
}

void Stream::handle_completion(const ibv_wc& completion) {
  const bool good = completion.status == IBV_WC_SUCCESS;
  if (completion.wr_id == kReceiveId) {
    if (good) {
      ++receives_to_post_;
      if (!handle_receive(be32toh(completion.imm_data))) broken_.store(EPROTO);
    }
  } else if ((completion.wr_id & SendWindow::kControlId) != 0) {
    ++controls_done_;
  } else if (good) {
    window_.completed(completion.wr_id);
  }
  // Data that arrived before the fault is handled first.
  if (!good && broken_.load() == 0) broken_.store(error_of(completion.status));
}

bool Stream::handle_receive(uint32_t message) {
  const uint32_t value = value_of(message);
  switch (op_of(message)) {
    case Op::kData:
      ++messages_;
      read_edges_.fetch_add(1, std::memory_order_release);
      return ring_.arrived(value);
    case Op::kMapping:
      ++messages_;
      return true;
    case Op::kCredits:
      window_.allow(static_cast<uint16_t>(value));
      return true;
    case Op::kControl:
      break;
    default:
      return false;
  }
  const auto control = static_cast<Control>(value);
  if (control != Control::kDisconnect && control != Control::kShutdown) return true;
  peer_shut_.store(true, std::memory_order_release);
  // If a shutdown of this side is in progress, its message is still to be sent.
  if (control == Control::kDisconnect || end_reported_) enter(Phase::kDisconnected);
  read_edges_.fetch_add(1);
  write_edges_.fetch_add(1);
  return true;
}

void Stream::repost_receives(bool all) {
  while (receives_to_post_ >= repost_together_ || (all && receives_to_post_ != 0)) {
    const uint32_t count = std::min(receives_to_post_, kMostRepostedTogether);
    ibv_recv_wr* bad;
    if (ibv_post_recv(qp_, receive_chain.last(count), &bad) != 0) return;
    receives_to_post_ -= count;
  }
}

void Stream::update_credits() {
  while (connected() && control_room()) {
    const bool target = ring_.publish_due();
    const auto since = static_cast<uint16_t>(messages_ - messages_credited_);
    if (!target && since < options_.receive_requests / 2) return;
    repost_receives(true);  // a credit stands for a posted receive
    messages_credited_ = messages_;
    const auto allowed = static_cast<uint16_t>(messages_ + options_.receive_requests);
    RemoteBuffer buffer{};
    if (target) {
      buffer = {reinterpret_cast<uintptr_t>(buffers_->receive()) + ring_.publish_offset(), buffers_->rkey(),
                ring_.half()};
      ring_.published();
    }
    const int rc = post_control(encode(Op::kCredits, allowed), target ? &buffer : nullptr);
    if (rc != 0) return fail(-rc);
  }
}

int Stream::post_control(uint32_t message, const RemoteBuffer* target) {
  ibv_send_wr wr{};
  ibv_sge sge{};
  RemoteBuffer buffer{};
  wr.wr_id = SendWindow::kControlId | message;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.imm_data = htobe32(message);
  if (target != nullptr) {
    buffer = swap_tables_ ? swapped(*target) : *target;
    if (inline_bytes_ >= sizeof buffer) {
      sge.addr = reinterpret_cast<uintptr_t>(&buffer);
      wr.send_flags |= IBV_SEND_INLINE;
    } else {
      std::byte* slot = buffers_->control(controls_posted_);
      __builtin_memcpy(slot, &buffer, sizeof buffer);
      sge.addr = reinterpret_cast<uintptr_t>(slot);
      sge.lkey = buffers_->lkey();
    }
    sge.length = sizeof buffer;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.wr.rdma.remote_addr = peer_targets_.addr + peer_next_target_ * sizeof(RemoteBuffer);
    wr.wr.rdma.rkey = peer_targets_.key;
    peer_next_target_ = (peer_next_target_ + 1) % peer_targets_.length;
  }
  ibv_send_wr* bad;
  const int rc = ibv_post_send(qp_, &wr, &bad);
  if (rc == 0) ++controls_posted_;
  return rc == 0 ? 0 : -rc;
}

short Stream::revents(short events) const {
  const Phase now = phase();
  const bool over = now == Phase::kDisconnected || now == Phase::kFailed;
  short result = 0;
  if (ring_.available() != 0 || at_end()) result |= POLLIN | POLLRDNORM;
  if (over || write_shut_.load() || (now == Phase::kConnected && can_send())) result |= POLLOUT | POLLWRNORM;
  if (over || peer_shut_.load() || read_shut_.load()) result |= POLLRDHUP;
  result &= events;
  // A reader gets POLLHUP only after it has read all data: programs treat a hang-up as an error, even with data left.
  const bool reads_first = (result & (POLLIN | POLLRDNORM)) != 0 && ring_.available() != 0;
  const bool ended = over || (write_shut_.load() && (peer_shut_.load() || read_shut_.load()));
  if (ended && !reads_first) result |= POLLHUP;
  if (error_.load() != 0) result |= POLLERR;
  return result;
}

short Stream::ready(short events) {
  switch (phase()) {
    case Phase::kIdle:
      return static_cast<short>(POLLHUP | (events & (POLLOUT | POLLWRNORM)));
    case Phase::kListening:
      // A listener that was shut down or closed reports a hang-up, as TCP does, so a thread that waits for connections
      // returns.
      if (read_shut_.load()) return static_cast<short>(POLLHUP | (events & (POLLIN | POLLRDNORM | POLLRDHUP)));
      return static_cast<short>(listener_->readable() ? events & (POLLIN | POLLRDNORM) : 0);
    case Phase::kAddress:
    case Phase::kRoute:
    case Phase::kConnecting:
      handle_connection_events();
      if (connecting()) return 0;
      break;
    case Phase::kConnected:
    case Phase::kDisconnected: {
      bool look;
      {
        std::lock_guard lock(completions_);
        progress_locked();
        look = ++quiet_looks_ >= kQuietLooks;
        if (look) quiet_looks_ = 0;
      }
      if (look) handle_connection_events();
      break;
    }
    default:
      break;
  }
  return revents(events);
}

void Stream::arm(std::vector<pollfd>* fds) {
  if (listener_) {
    fds->push_back({listener_->fd(), POLLIN, 0});
    return;
  }
  if (phase() == Phase::kFailed || phase() == Phase::kIdle) return;
  fds->push_back({channel_.fd(), POLLIN, 0});
  if (connecting()) return;
  std::lock_guard lock(completions_);
  source_.arm();
  fds->push_back({source_.fd(), POLLIN, 0});
}

void Stream::wake(int descriptor) {
  if (listener_) return;
  if (descriptor == channel_.fd()) {
    handle_connection_events();
    return;
  }
  if (!connected() && phase() != Phase::kDisconnected) return;
  std::lock_guard lock(completions_);
  source_.take_event();
  progress_locked();
  observers().notify();  // other sleepers rely on the event that was taken
}

void Stream::send_keepalive() {
  std::lock_guard lock(completions_);
  if (!connected() || !control_room()) return;
  ibv_send_wr wr{};
  wr.wr_id = SendWindow::kControlId | encode(Control::kKeepalive);
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad;
  if (ibv_post_send(qp_, &wr, &bad) == 0) ++controls_posted_;
  progress_locked();
}

}  // namespace nupa::rsockets
