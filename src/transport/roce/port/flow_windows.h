// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "net/udp_socket.h"
#include "transport/roce/port/qp_receiver.h"
#include "transport/roce/port/holds.h"
#include "transport/roce/port/receive_budget.h"
#include "transport/roce/port/flow_window.h"

namespace nupa::roce {

/// The flow windows of a port: one for each process that its queue pairs send to, one for the responses to this
/// process's READs, and the budget that its own socket grants to others. Queue pairs that find no room in a window wait
/// in its queue, and get their turns here. Any thread, except where stated.
class FlowWindows {
 public:
  /// `socket_bytes`: size of the port's receive buffer, as the kernel counts it.
  explicit FlowWindows(uint32_t socket_bytes);

  /// Returns the process at that address; all callers get the same object.
  std::shared_ptr<Peer> peer_at(const Gid& address, uint16_t port);
  const std::shared_ptr<FlowWindow>& for_responses() const { return for_responses_; }
  /// Bytes that all queue pairs of one other process may have in flight to this one.
  uint32_t receive_share() const { return room_.share(); }
  /// A queue pair waits for a flow window. An exchange, and not a store: a store does not show serve() what came before
  /// the value that it replaces.
  void note_waiter() { anyone_waits_.exchange(true); }
  bool anyone_waits() const { return anyone_waits_.load(std::memory_order_relaxed); }

  // The following are called under the poller's lock.
  /// Counts a look at the port's socket. `emptied`: the look ended because nothing was left.
  void count_look(bool emptied) { room_.count_look(emptied); }
  /// The queue pair received something.
  void count_sender(QpReceiver& queue_pair) {
    Peer* const peer = queue_pair.peer();
    room_.count_sender(peer == nullptr ? &queue_pair.turn_ : &peer->turn);
  }
  /// Adjusts the budget of the senders, if it is time.
  void choose_room(int64_t now) {
    if (room_.choose(now)) for_responses_->resize(room_.for_responses());
  }
  /// Lets waiting queue pairs send where there is room. Returns when to try one again that another thread holds;
  /// INT64_MAX: there is none.
  int64_t serve(Hold& hold, TransmitBatch& batch, int64_t now) {
    return anyone_waits_.load(std::memory_order_seq_cst) ? serve_all(hold, batch, now) : INT64_MAX;
  }

 private:
  int64_t serve_all(Hold& hold, TransmitBatch& batch, int64_t now);
  static int64_t serve_queue(FlowWindow& window, Hold& hold, TransmitBatch& batch, int64_t now);

  ReceiveBudget room_;
  std::shared_ptr<FlowWindow> for_responses_;
  std::mutex peers_mutex_;
  std::map<std::pair<decltype(Gid::raw), uint16_t>, std::weak_ptr<Peer>> peers_;
  std::vector<std::shared_ptr<Peer>> served_;  ///< kept here to save allocations; under the poller's lock
  std::atomic<bool> anyone_waits_{false};
};

}  // namespace nupa::roce
