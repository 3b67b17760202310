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
#include "transport/roce/port/channel.h"
#include "transport/roce/port/holds.h"
#include "transport/roce/port/receive_room.h"
#include "transport/roce/port/shared_window.h"

namespace nupa::roce {

/// The flow windows of a port: one for each process that its queue pairs send to, one for the responses to this
/// process's READs, and how much its own socket grants to others. Channels that find no room in a window stand in its
/// line, and have their turns here. Any thread, except where said.
class FlowWindows {
 public:
  /// `socket_bytes`: of the port's receive buffer, as the kernel counts them.
  explicit FlowWindows(uint32_t socket_bytes);

  /// The process at that address; the same for all who ask.
  std::shared_ptr<Peer> peer_at(const Gid& address, uint16_t port);
  const std::shared_ptr<SharedWindow>& for_responses() const { return for_responses_; }
  /// Bytes that all queue pairs of one other process may have under way.
  uint32_t receive_share() const { return room_.share(); }
  /// A channel waits in the line of a window.
  void note_waiter() { anyone_waits_.store(true); }
  bool anyone_waits() const { return anyone_waits_.load(std::memory_order_relaxed); }

  // Under the lock of the port's turns.
  /// A look at the port's socket ended as nothing was left, or before.
  void count_look(bool emptied) { room_.count_look(emptied); }
  /// Something came for the channel.
  void count_sender(Channel& channel) {
    Peer* const peer = channel.peer();
    room_.count_sender(peer == nullptr ? &channel.turn_ : &peer->turn);
  }
  /// Chooses anew how much others may send, if it is time.
  void choose_room(int64_t now) {
    if (room_.choose(now)) for_responses_->resize(room_.for_responses());
  }
  /// Turns for those that wait where there is room. Returns when one that another thread holds is tried again;
  /// INT64_MAX: there is none.
  int64_t serve(Hold& hold, Burst& burst, int64_t now) {
    return anyone_waits_.load(std::memory_order_seq_cst) ? serve_all(hold, burst, now) : INT64_MAX;
  }

 private:
  int64_t serve_all(Hold& hold, Burst& burst, int64_t now);
  static int64_t serve_line(SharedWindow& window, Hold& hold, Burst& burst, int64_t now);

  ReceiveRoom room_;
  std::shared_ptr<SharedWindow> for_responses_;
  std::mutex peers_mutex_;
  std::map<std::pair<decltype(Gid::raw), uint16_t>, std::weak_ptr<Peer>> peers_;
  std::vector<std::shared_ptr<Peer>> served_;  ///< under that lock
  std::atomic<bool> anyone_waits_{false};
};

}  // namespace nupa::roce
