// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/multicast_groups.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "transport/roce/wire/wire.h"

namespace nupa::roce {
namespace {

/// Receive buffer for datagrams of one group, bytes.
constexpr uint32_t kGroupBytes = 1 << 20;

/// Returns the interfaces that each socket joins the group by: all of them, or one each if the group differs by
/// interface.
std::vector<std::vector<GidEntry>> zones_of(const Gid& group, const std::vector<GidEntry>& interfaces) {
  if (!net::is_of_one_link(group)) return {interfaces};
  std::map<uint32_t, std::vector<GidEntry>> zones;
  for (const GidEntry& entry : interfaces) zones[entry.interface_index].push_back(entry);
  std::vector<std::vector<GidEntry>> list;
  for (auto& [interface, entries] : zones) list.push_back(std::move(entries));
  return list;
}

}  // namespace

int MulticastGroups::attach(uint32_t qp_num, const Gid& gid, uint32_t device, const std::vector<GidEntry>& interfaces,
                            progress::ReceiveRight& right) {
  auto group = std::find_if(list_.begin(), list_.end(),
                            [&](const Group& each) { return each.gid == gid && each.device == device; });
  if (group != list_.end()) {
    group->members.push_back(qp_num);
    return 0;
  }
  std::vector<net::UdpSocket> sockets;
  int error = EADDRNOTAVAIL;
  for (const std::vector<GidEntry>& zone : zones_of(gid, interfaces)) {
    auto socket = net::UdpSocket::open_group(gid, kUdpPort, zone, kGroupBytes);
    if (!socket) {
      error = socket.error().code();
      continue;
    }
    if (const auto added = right.add(socket->fd()); !added) return added.error().code();
    sockets.push_back(std::move(*socket));
  }
  if (sockets.empty()) return error;
  list_.push_back({gid, device, std::move(sockets), {qp_num}});
  return 0;
}

void MulticastGroups::detach(uint32_t qp_num, const Gid& gid) {
  const auto group = std::find_if(list_.begin(), list_.end(), [&](const Group& each) {
    return each.gid == gid && std::find(each.members.begin(), each.members.end(), qp_num) != each.members.end();
  });
  if (group == list_.end()) return;
  std::erase(group->members, qp_num);
  // A closed socket leaves its group and wakes no thread.
  if (group->members.empty()) list_.erase(group);
}

}  // namespace nupa::roce
