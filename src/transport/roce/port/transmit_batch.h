// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "net/udp_socket.h"
#include "shm/port_counts.h"
#include "transport/roce/protocol/host.h"
#include "transport/roce/port/peer_socket.h"
#include "transport/roce/port/send_backlog.h"
#include "transport/roce/wire/icrc.h"

namespace nupa::roce {

/// The addresses for the packets of one queue pair on one path.
struct Destination {
  uint64_t place = 0;  ///< equal only if all other fields are equal
  uint32_t qp = 0;     ///< the queue pair that sends, for captures
  net::UdpAddress to;
  Gid from;
  uint32_t from_interface = 0;
  net::IpFields fields;
  uint32_t socket = 0;        ///< index of the socket that sends
  PeerSocket* own = nullptr;  ///< sends instead, if TransmitBatch::may_use() returned true
  bool unchecked = false;     ///< both sides omit the CRC, which is sent as 0
};

/// A transmit batch: packets that leave by one system call. A payload is copied while its CRC is computed, so that the
/// two match even if the program changes its memory meanwhile, and so that the kernel finds all in one near cache.
/// Payloads without CRC stay in the program's memory until flush(), which comes before the queue pair is released. An
/// acknowledgement is carried by the small request that follows it, if there is one. One thread.
class TransmitBatch final : public Output {
 public:
  /// `sockets`: 1 to kMaxPaths. `of_program`: true for a thread of the program, which may use a peer's socket.
  /// `backlog`: keeps what these sockets have no room for; null: it is lost.
  explicit TransmitBatch(const std::vector<net::UdpSocket>& sockets, bool of_program = true,
                         SendBacklog* backlog = nullptr);
  ~TransmitBatch() override;
  TransmitBatch(const TransmitBatch&) = delete;
  TransmitBatch& operator=(const TransmitBatch&) = delete;

  /// Claims the peer's socket for the packets of the next aim(). Returns false if they may not leave by it.
  bool may_use(PeerSocket* own);
  /// Sets the addresses of the next packets, after a flush(). `destinations`: one for each path. `counts`: of the queue
  /// pair that sends them; null: it has none.
  void aim(const Destination* destinations, shm::PortCountsShared* counts = nullptr) {
    destinations_ = destinations;
    counts_ = counts;
    held_up_ = false;
  }
  /// Returns kNotNow if the socket has a backlog.
  Sent send(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments) override;
  void flush();
  /// True if send() has returned kNotNow since the last aim().
  bool held_up() const { return held_up_; }
  /// When to offer the packet again, as in SendBacklog::turn().
  int64_t turn(int64_t now_ns) const { return backlog_->turn(now_ns); }
  /// From now on takes packets although the socket has a backlog, and queues them behind it: at the end of the process
  /// the sender cannot offer them again.
  void take_all(bool all) { takes_all_ = all; }
  /// Messages that were not sent and will not be, since the construction.
  uint64_t refused() const { return refused_; }

 private:
  /// Bytes that leave together at most: less than the second-level cache, and enough to wake the receiver seldom.
  static constexpr uint32_t kBytes = 256 << 10;
  /// The most bytes of one packet.
  static constexpr uint32_t kRoom = kMaxPacketBytes + kCarriedBytes;
  /// The largest payload of a packet that may carry an acknowledgement.
  static constexpr uint32_t kSmallBytes = 256;

  /// Appends the packet. Returns false, and appends nothing, if the payload cannot be read.
  bool put(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments, const Packet* ack);
  void count(const Packet& packet) {
    if (counts_ != nullptr) counts_->sent_packet(packet.payload_length);
  }
  /// True if the destination's socket has a backlog that has to leave first.
  bool must_wait(const Destination& destination) const {
    return backlog_ != nullptr && !takes_all_ && backlog_->is_full(backlog_of(destination));
  }
  /// Packets that the peer's socket has no room for leave later by the first socket, which has the same source address.
  static uint32_t backlog_of(const Destination& destination) {
    return destination.own != nullptr ? 0 : destination.socket;
  }
  void send_waiting();
  void send_batches();
  /// For a capture. Without `fragments` the whole packet lies at `header`.
  [[gnu::noinline, gnu::cold]] static void record_put(const Destination& destination, const Route& route,
                                                      uint16_t identification, std::byte* header,
                                                      uint32_t header_length, const Fragment* payload,
                                                      uint32_t fragments, std::byte* trailer, const std::byte* end);

  const std::vector<net::UdpSocket>& sockets_;
  const bool of_program_;
  SendBacklog* const backlog_;
  bool held_up_ = false;
  bool takes_all_ = false;
  const Destination* destinations_ = nullptr;
  shm::PortCountsShared* counts_ = nullptr;
  RouteStates routes_;
  uint32_t used_ = 0;  ///< bytes
  uint64_t refused_ = 0;
  int last_error_ = 0;
  Packet waiting_;  ///< an acknowledgement that may be carried by the next packet
  uint8_t waiting_path_ = 0;
  bool waits_ = false;
  std::unique_ptr<std::byte[]> bytes_;
  static constexpr uint32_t kOwn = kMaxPaths;
  std::shared_ptr<PeerSocket> own_;                                    ///< the peer's socket that may_use() granted
  std::array<std::unique_ptr<net::UdpBatch>, kMaxPaths + 1> batches_;  ///< one for each socket
};

}  // namespace nupa::roce
