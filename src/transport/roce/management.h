#pragma once
/// Datagrams to and from queue pair 1, the port's management (IBTA 3.9.4, 13.4): 256 bytes each.
#include <array>
#include <functional>
#include <memory>

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

/// Where standard peers look, for a process whose own port is another one.
class ManagementSocket {
 public:
  /// EADDRINUSE: another process has it.
  static Result<ManagementSocket> open();
  int fd() const { return socket_.fd(); }
  /// Reads what has come.
  void receive(const ManagementHandler& handler);

 private:
  explicit ManagementSocket(io::UdpSocket socket);
  io::UdpSocket socket_;
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace nupa::roce
