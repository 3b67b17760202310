// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <vector>

#include "net/udp_socket.h"
#include "transport/roce/wire/wire.h"

namespace nupa::roce {

/// Packets that a port's sockets had no room for (a full send buffer, a full queue of an interface), until they have
/// room. No thread waits for room: a transmit batch leaves here what the kernel rejects, and takes no packet for a
/// socket with a backlog. The protocol offers that packet again at its turn(). So a backlog holds at most one batch of
/// each thread, and a full socket delays only its own packets. Any thread.
class SendBacklog {
 public:
  /// `expect`: schedules a call of retry() at the given time.
  SendBacklog(const std::vector<net::UdpSocket>& sockets, std::function<void(int64_t at_ns)> expect)
      : sockets_(sockets), expect_(std::move(expect)) {}

  bool is_full(uint32_t socket) const { return !waiting_[socket].empty(); }
  /// The backlog of a socket. Call note() after adding to it.
  net::UdpBacklog& of(uint32_t socket) { return waiting_[socket]; }
  void note(int64_t now_ns);
  /// Returns when a queue pair whose packet was not taken offers it again. That is not before the next retry(), and
  /// after all queue pairs that were delayed before, since an earlier one may fill the socket again. Call it once for
  /// each delay.
  int64_t turn(int64_t now_ns);
  /// Sends what there is room for. Returns when to call again; INT64_MAX: nothing waits. One thread at a time.
  int64_t retry(int64_t now_ns);
  /// Messages that were lost after they had been kept, since the construction.
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  const std::vector<net::UdpSocket>& sockets_;
  const std::function<void(int64_t)> expect_;
  std::array<net::UdpBacklog, kMaxPaths> waiting_;
  std::atomic<int64_t> retry_ns_{INT64_MAX};  ///< time of the next retry()
  std::atomic<int64_t> last_turn_ns_{0};
  std::atomic<uint64_t> lost_{0};
  int64_t pause_ns_ = 0;
};

}  // namespace nupa::roce
