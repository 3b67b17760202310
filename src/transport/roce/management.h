#pragma once
/// Datagrams to and from queue pair 1, the port's management (IBTA 3.9.4, 13.4): 256 bytes each.
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "io/udp_socket.h"
#include "transport/roce/wire.h"

namespace nupa::roce {

class Burst;

constexpr uint32_t kManagementQpn = 1;
constexpr uint32_t kManagementQkey = 0x80010000;  ///< IBTA 10.2.5
constexpr uint32_t kManagementBytes = 256;

struct ManagementDatagram {
  std::array<std::byte, kManagementBytes> bytes;
  Gid local;  ///< the address of this end
  io::UdpAddress remote;
  bool of_nupa = false;  ///< its sender is NUPA, whose process has the port that it sends from for itself
};
using ManagementHandler = std::function<void(const ManagementDatagram&)>;

/// False: none, or one that nobody may send there.
bool read_management(const Packet& packet, const io::UdpSocket::Received& received, ManagementDatagram* datagram);
void send_management(Burst& burst, const ManagementDatagram& datagram);

/// A socket for nothing but these: where standard peers look, for a process whose own port is another one, or any port.
/// One thread.
class ManagementSocket {
 public:
  /// `port` 0: any. EADDRINUSE: another process has it; errors of sockets.
  static Result<ManagementSocket> open(uint16_t port = kUdpPort);
  ManagementSocket(ManagementSocket&&) noexcept;
  ~ManagementSocket();
  int fd() const;
  /// Reads what has come.
  void receive(const ManagementHandler& handler);
  void send(const ManagementDatagram& datagram);
  /// As io::UdpSocket's, without being told to.
  bool next_refusal(io::UdpAddress* where) const;

 private:
  explicit ManagementSocket(io::UdpSocket socket);
  std::unique_ptr<std::vector<io::UdpSocket>> socket_;  ///< one, in the form that a burst wants
  std::unique_ptr<std::byte[]> buffer_;
  std::unique_ptr<Burst> burst_;
};

}  // namespace nupa::roce
