#include "cm/peer_table.h"

#include "base/log.h"

namespace nupa::cm {

Peer* PeerTable::adopt(Introduced introduced) {
  for (auto& peer : peers_)
    if (peer->slot() == introduced.hello.slot && peer->instance() == introduced.hello.instance && peer->alive())
      return peer.get();
  const bool cma = try_cma(introduced.credentials.pid, introduced.hello.probe, introduced.hello.instance);
  NUPA_INFO("met slot %u (pid %d); cross-memory copies %s", introduced.hello.slot, introduced.credentials.pid,
            cma ? "work" : "do not work: its service thread will copy");
  peers_.push_back(make(std::move(introduced), cma));
  return peers_.back().get();
}

Peer* PeerTable::find(uint32_t slot) const {
  for (auto peer = peers_.rbegin(); peer != peers_.rend(); ++peer)
    if ((*peer)->slot() == slot && (*peer)->alive()) return peer->get();
  return nullptr;
}

std::vector<Peer*> PeerTable::alive() const {
  std::vector<Peer*> alive;
  for (auto& peer : peers_)
    if (peer->alive()) alive.push_back(peer.get());
  return alive;
}

std::unique_ptr<Peer> PeerTable::make(Introduced introduced, bool cma) {
  auto peer = std::make_unique<Peer>();
  peer->slot_ = introduced.hello.slot;
  peer->instance_ = introduced.hello.instance;
  peer->pid_ = introduced.credentials.pid;
  peer->cma_works_ = cma;
  peer->file_ = std::move(introduced.file);
  peer->tables_ = introduced.tables;
  peer->region_fd_ = std::move(introduced.region);
  peer->doorbell_ = std::move(introduced.doorbell);
  return peer;
}

}  // namespace nupa::cm
