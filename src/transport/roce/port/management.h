// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Datagrams to and from queue pair 1, the port's management (IBTA 3.9.4, 13.4): 256 bytes each.
#include <memory>
#include <vector>

#include "core/seam/mad_carrier.h"
#include "net/udp_socket.h"
#include "progress/lifecycle.h"
#include "transport/roce/wire/wire.h"

namespace nupa::roce {

class TransmitBatch;

constexpr uint32_t kManagementQpn = 1;
constexpr uint32_t kManagementQkey = 0x80010000;  ///< IBTA 10.2.5

using core::MadDatagram;
using core::MadHandler;

/// Converts a packet to a management datagram. A NUPA process receives at the port that it sends from, other peers at
/// kUdpPort. Returns false if it is not such a datagram, or is not allowed.
bool read_management(const Packet& packet, const net::UdpSocket::Received& received, MadDatagram* datagram);
/// `marked`: marks it as sent by NUPA.
void send_management(TransmitBatch& batch, const MadDatagram& datagram, bool marked);

/// A socket for management datagrams at the port that standard peers send to, for a process that has another port; or
/// at any port.
class ManagementSocket final : public core::MadSocket {
 public:
  /// `port` 0: any. `marked`: marks what it sends as sent by NUPA. EADDRINUSE: another process has the port; other
  /// errors of sockets.
  static Result<ManagementSocket> open(uint16_t port, bool marked = true);
  ManagementSocket(ManagementSocket&&) noexcept;
  ~ManagementSocket() override;
  int fd() const override;
  void receive(const MadHandler& handler) override;
  void send(const MadDatagram& datagram) override;
  std::optional<core::MadPeer> next_refusal() override;

 private:
  ManagementSocket(net::UdpSocket socket, bool marked);
  bool marked_;
  std::unique_ptr<std::vector<net::UdpSocket>> socket_;  ///< one socket, in the form that TransmitBatch takes
  std::unique_ptr<std::byte[]> buffer_;
  std::unique_ptr<TransmitBatch> batch_;
  std::unique_ptr<progress::ParentOnly> parent_only_;
};

}  // namespace nupa::roce
