// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <vector>

#include "net/udp_socket.h"
#include "transport/roce/wire/wire.h"

namespace nupa::roce {

/// What a port's sockets had no room for (a full send buffer, a full queue of an interface), until they have. Nobody
/// waits for room: a burst leaves here what the kernel refuses, and takes no packet for a socket with a backlog; the
/// engine offers that again at its turn(). So a backlog holds no more than what each thread has put together at one go,
/// and a full socket holds up what leaves by it and nothing else. Any thread.
class SendBacklog {
 public:
  /// `expect`: has retry() called at the time that it gets.
  SendBacklog(const std::vector<net::UdpSocket>& sockets, std::function<void(int64_t at_ns)> expect)
      : sockets_(sockets), expect_(std::move(expect)) {}

  bool is_full(uint32_t socket) const { return !waiting_[socket].empty(); }
  /// What leaves by the socket and finds no room; call note() after it was filled.
  net::UdpBacklog& of(uint32_t socket) { return waiting_[socket]; }
  void note(int64_t now_ns);
  /// When one whose packet was not taken offers it again: not before room is looked for, and after all who were held up
  /// before, since a queue pair that comes first may fill the socket again. Once each time that it is held up.
  int64_t turn(int64_t now_ns);
  /// Sends what there is room for. Returns when to call again; INT64_MAX: nothing waits. One thread at a time.
  int64_t retry(int64_t now_ns);
  /// Messages that were lost although they had been kept, since the beginning.
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  const std::vector<net::UdpSocket>& sockets_;
  const std::function<void(int64_t)> expect_;
  std::array<net::UdpBacklog, kMaxPaths> waiting_;
  std::atomic<int64_t> retry_ns_{INT64_MAX};  ///< when room is looked for next
  std::atomic<int64_t> last_turn_ns_{0};
  std::atomic<uint64_t> lost_{0};
  int64_t pause_ns_ = 0;
};

}  // namespace nupa::roce
