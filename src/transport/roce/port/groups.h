#pragma once
#include <atomic>
#include <vector>

#include "base/unique_fd.h"
#include "net/udp_socket.h"

namespace nupa::roce {

/// The multicast groups that queue pairs of this process are attached to: a socket for each group and device, and one
/// for each interface where the group does not reach beyond its link, at the standard's port, beside the one that names
/// the process (docs/roce.md). All but fd() under one mutex of the caller's.
class Groups {
 public:
  struct Group {
    Gid gid;
    uint32_t device;  ///< whose interfaces it is joined by
    std::vector<net::UdpSocket> sockets;
    std::vector<uint32_t> members;  ///< queue pair numbers
  };

  /// Once a queue pair and group. Else what UdpSocket::open_group() says.
  int attach(uint32_t qp_num, const Gid& gid, uint32_t device, const std::vector<GidEntry>& interfaces);
  /// The last member of a group leaves it on all interfaces of the device.
  void detach(uint32_t qp_num, const Gid& gid);
  bool empty() const { return list_.empty(); }
  const std::vector<Group>& list() const { return list_; }
  /// Readable while a datagram of any group waits; -1: there was none yet. Any thread.
  int fd() const { return poll_fd_.load(std::memory_order_acquire); }
  void close();

 private:
  std::vector<Group> list_;
  base::UniqueFd poll_;
  std::atomic<int> poll_fd_{-1};
};

}  // namespace nupa::roce
