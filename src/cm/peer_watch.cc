// SPDX-License-Identifier: Apache-2.0
#include "cm/peer_watch.h"

#include <set>

#include "base/log.h"

namespace nupa::cm {

void PeerWatch::lost(const RemoteProcess& process, const Gone& gone) {
  processes_.erase(process);
  NUPA_INFO("the process at UDP port %u of another host died or is unreachable", process.second);
  gone(Gid{process.first}, process.second);
}

int64_t PeerWatch::ask(const std::vector<Way>& ways, int64_t now, const Gone& gone) {
  if (ways.empty()) {
    processes_.clear();
    return INT64_MAX;
  }
  if (now < next_ns_) return next_ns_;
  next_ns_ = now + PeerPulse::kPauseNs;
  std::set<RemoteProcess> asked;
  std::vector<RemoteProcess> silent;
  for (const Way& way : ways) {
    const RemoteProcess process{way.remote.raw, way.port};
    asked.insert(process);
    PeerPulse& pulse = processes_[process];
    if (pulse.is_silent()) {
      silent.push_back(process);
      continue;
    }
    pulse.asked();
    core::MadDatagram datagram;
    datagram.bytes = write_probe({false, way.port, 0});
    datagram.local = way.local;
    datagram.remote = {way.remote, way.port};
    datagram.interface = way.interface;
    socket_->send(datagram);
  }
  std::erase_if(processes_, [&](const auto& entry) { return asked.count(entry.first) == 0; });
  for (const RemoteProcess& process : silent) lost(process, gone);
  return next_ns_;
}

void PeerWatch::receive(const Gone& gone, const Doubted& doubted) {
  std::set<RemoteProcess> ended;
  std::set<RemoteProcess> new_ones;
  while (const auto refused = socket_->next_refusal()) {
    const auto known = processes_.find({refused->address.raw, refused->port});
    if (known != processes_.end() && !known->second.refused()) ended.insert(known->first);
  }
  socket_->receive([&](const core::MadDatagram& datagram) {
    const std::optional<Probe> echo = read_probe(datagram.bytes);
    if (!echo || !echo->is_echo) return;
    const auto known = processes_.find({datagram.remote.address.raw, static_cast<uint16_t>(echo->port)});
    if (known == processes_.end()) return;
    if (known->second.heard(echo->instance)) new_ones.insert(known->first);
  });
  for (const auto& [remote, port] : new_ones) doubted(Gid{remote}, port);
  for (const RemoteProcess& process : ended) lost(process, gone);
}

}  // namespace nupa::cm
