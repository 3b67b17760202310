#pragma once
#include <array>
#include <memory>
#include <vector>

#include "io/udp_socket.h"
#include "transport/roce/host.h"
#include "transport/roce/icrc.h"

namespace nupa::roce {

/// Where the packets of one queue pair go on one path.
struct Destination {
  uint64_t place = 0;  ///< the same number only for what is the same in all that follows
  io::UdpAddress to;
  Gid from;
  uint32_t from_interface = 0;
  io::IpFields fields;
  uint32_t socket = 0;     ///< which one sends
  bool unchecked = false;  ///< both ends do without the CRC, which is sent as 0
};

/// What the engine sends at one go, on its way to a socket: headers and CRCs made here, payloads left where they lie
/// until flush(), which comes before the queue pair is let go. An acknowledgement goes along with the small request
/// that follows it, if there is one. One thread.
class Burst final : public Output {
 public:
  /// `sockets`: one to kMaxPaths.
  explicit Burst(const std::vector<io::UdpSocket>& sockets);
  /// Packets go there from now on, after a flush(). `destinations`: one a path.
  void aim(const Destination* destinations) { destinations_ = destinations; }
  bool send(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments) override;
  void flush();
  /// Packets that the kernel refused, since the beginning.
  uint64_t refused() const { return refused_; }

 private:
  static constexpr uint32_t kPackets = 256;
  /// Payloads up to here are copied behind their headers.
  static constexpr uint32_t kSmallBytes = 256;
  static constexpr uint32_t kTrailerBytes = 3 + kCarriedBytes + kIcrcBytes;

  void put(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments, const Packet* ack);
  void send_waiting();
  void send_batches();

  const std::vector<io::UdpSocket>& sockets_;
  const Destination* destinations_ = nullptr;
  uint32_t count_ = 0;
  uint64_t refused_ = 0;
  int last_error_ = 0;
  Packet waiting_;  ///< an acknowledgement
  uint8_t waiting_path_ = 0;
  bool waits_ = false;
  std::array<std::array<std::byte, kMaxHeaderBytes + kSmallBytes + kTrailerBytes>, kPackets> headers_;
  std::array<std::unique_ptr<io::UdpBatch>, kMaxPaths> batches_;  ///< one a socket
};

}  // namespace nupa::roce
