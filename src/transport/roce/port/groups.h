#pragma once
#include <vector>

#include "net/udp_socket.h"
#include "progress/receive_right.h"

namespace nupa::roce {

/// The multicast groups that queue pairs of this process are attached to: a socket for each group and device, and one
/// for each interface where the group does not reach beyond its link, at the standard's port, beside the one that names
/// the process (docs/roce.md). Under one mutex of the caller's.
class Groups {
 public:
  struct Group {
    Gid gid;
    uint32_t device;  ///< whose interfaces it is joined by
    std::vector<net::UdpSocket> sockets;
    std::vector<uint32_t> members;  ///< queue pair numbers
  };

  /// Once a queue pair and group. Its datagrams wake those that packets wake. Errors: those of UdpSocket::open_group()
  /// and ReceiveRight::add().
  int attach(uint32_t qp_num, const Gid& gid, uint32_t device, const std::vector<GidEntry>& interfaces,
             progress::ReceiveRight& right);
  /// The last member of a group leaves it on all interfaces of the device.
  void detach(uint32_t qp_num, const Gid& gid);
  bool empty() const { return list_.empty(); }
  const std::vector<Group>& list() const { return list_; }
  void close() { list_.clear(); }

 private:
  std::vector<Group> list_;
};

}  // namespace nupa::roce
