#pragma once
#include <array>
#include <memory>
#include <vector>

#include "net/udp_socket.h"
#include "transport/roce/protocol/host.h"
#include "transport/roce/port/peer_socket.h"
#include "transport/roce/port/send_backlog.h"
#include "transport/roce/wire/icrc.h"

namespace nupa::roce {

/// Where the packets of one queue pair go on one path.
struct Destination {
  uint64_t place = 0;  ///< the same number only for what is the same in all that follows
  net::UdpAddress to;
  Gid from;
  uint32_t from_interface = 0;
  net::IpFields fields;
  uint32_t socket = 0;        ///< which one sends
  PeerSocket* own = nullptr;  ///< sends, if Burst::may_use()
  bool unchecked = false;     ///< both ends do without the CRC, which is sent as 0
};

/// What the engine sends at one go, on its way to a socket: packets are put together here, a payload copied while its
/// CRC is computed, so that the two fit however the program changes its memory meanwhile, and so that the kernel finds
/// all in one piece in a near cache. Payloads without CRC are left where they lie until flush(), which comes before the
/// queue pair is let go. An acknowledgement goes along with the small request that follows it, if there is one. One
/// thread.
class Burst final : public Output {
 public:
  /// `sockets`: one to kMaxPaths. `of_program`: of a thread that may have a socket for one peer to itself. `backlog`:
  /// of these sockets, for what they have no room for; null: it is lost.
  explicit Burst(const std::vector<net::UdpSocket>& sockets, bool of_program = true, SendBacklog* backlog = nullptr);
  ~Burst() override;
  Burst(const Burst&) = delete;
  Burst& operator=(const Burst&) = delete;

  /// Whether what is aimed next may go by the socket of one peer.
  bool may_use(PeerSocket* own);
  /// Packets go there from now on, after a flush(). `destinations`: one a path.
  void aim(const Destination* destinations) {
    destinations_ = destinations;
    held_up_ = false;
  }
  /// kNotNow: the socket has a backlog.
  Sent send(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments) override;
  void flush();
  /// Whether send() has answered kNotNow since the last aim().
  bool held_up() const { return held_up_; }
  /// And when to offer it again, as SendBacklog::turn().
  int64_t turn(int64_t now_ns) const { return backlog_->turn(now_ns); }
  /// From now on packets are taken although the socket has a backlog, and stand behind it: who sends them is not there
  /// later.
  void take_all(bool all) { takes_all_ = all; }
  /// Messages that did not leave and will not, since the beginning.
  uint64_t refused() const { return refused_; }

 private:
  /// Bytes that leave together at most: less than the second cache, and enough that the receiver is woken seldom.
  static constexpr uint32_t kBytes = 256 << 10;
  /// Of one packet at most.
  static constexpr uint32_t kRoom = kMaxPacketBytes + kCarriedBytes;
  /// What an acknowledgement may go along with.
  static constexpr uint32_t kSmallBytes = 256;

  /// False: the payload cannot be read; nothing was put.
  bool put(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments, const Packet* ack);
  /// Where it leaves has a backlog.
  bool must_wait(const Destination& destination) const {
    return backlog_ != nullptr && !takes_all_ && backlog_->is_full(backlog_of(destination));
  }
  /// What the socket of one peer refuses leaves later by the first, which looks the same.
  static uint32_t backlog_of(const Destination& destination) {
    return destination.own != nullptr ? 0 : destination.socket;
  }
  void send_waiting();
  void send_batches();

  const std::vector<net::UdpSocket>& sockets_;
  const bool of_program_;
  SendBacklog* const backlog_;
  bool held_up_ = false;
  bool takes_all_ = false;
  const Destination* destinations_ = nullptr;
  RouteStates routes_;
  uint32_t used_ = 0;  ///< bytes
  uint64_t refused_ = 0;
  int last_error_ = 0;
  Packet waiting_;  ///< an acknowledgement
  uint8_t waiting_path_ = 0;
  bool waits_ = false;
  std::unique_ptr<std::byte[]> bytes_;
  static constexpr uint32_t kOwn = kMaxPaths;
  std::shared_ptr<PeerSocket> own_;                                    ///< that this was let use
  std::array<std::unique_ptr<net::UdpBatch>, kMaxPaths + 1> batches_;  ///< one a socket
};

}  // namespace nupa::roce
