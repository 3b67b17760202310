// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "net/udp_socket.h"
#include "progress/receive_right.h"

namespace nupa::roce {

/// The multicast groups that queue pairs of this process are attached to. Each group and device has a socket at the
/// standard's port, besides the one that identifies the process (docs/design/roce.md). A group that is limited to a
/// link has a socket for each interface. Under one mutex of the caller.
class MulticastGroups {
 public:
  struct Group {
    Gid gid;
    uint32_t device;  ///< the device whose interfaces join the group
    std::vector<net::UdpSocket> sockets;
    std::vector<uint32_t> members;  ///< queue pair numbers
  };

  /// Called once for each queue pair and group. The group's datagrams wake the same threads as other packets. Errors:
  /// those of UdpSocket::open_group() and ReceiveRight::add().
  int attach(uint32_t qp_num, const Gid& gid, uint32_t device, const std::vector<GidEntry>& interfaces,
             progress::ReceiveRight& right);
  /// When the last member of a group detaches, the group is left on all interfaces of the device.
  void detach(uint32_t qp_num, const Gid& gid);
  bool empty() const { return list_.empty(); }
  const std::vector<Group>& list() const { return list_; }
  void close() { list_.clear(); }

 private:
  std::vector<Group> list_;
};

}  // namespace nupa::roce
