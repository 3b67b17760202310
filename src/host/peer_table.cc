// SPDX-License-Identifier: Apache-2.0
#include "host/peer_table.h"

#include "base/log.h"

namespace nupa::host {

PeerRef PeerTable::adopt(Handshake handshake) {
  if (PeerRef known = find(handshake.hello)) return known;
  const bool cma = try_cma(handshake.credentials.pid, handshake.hello.probe, handshake.hello.instance);
  NUPA_INFO("connected to slot %u (process %d); CMA %s", handshake.hello.slot, handshake.credentials.pid,
            cma ? "works" : "does not work: the service thread of the peer copies");
  peers_.push_back(make(std::move(handshake), cma));
  return peers_.back();
}

PeerRef PeerTable::find(uint32_t slot) const {
  for (auto peer = peers_.rbegin(); peer != peers_.rend(); ++peer)
    if ((*peer)->slot() == slot && (*peer)->alive()) return *peer;
  // Searched second: few processes have a further slot, and this search reads the memory of each.
  for (auto peer = peers_.rbegin(); peer != peers_.rend(); ++peer)
    if ((*peer)->alive() && (*peer)->queue_pairs().has_slot(slot)) return *peer;
  return nullptr;
}

PeerRef PeerTable::find(const Message& hello) const {
  for (auto& peer : peers_)
    if (peer->slot() == hello.slot && peer->instance() == hello.instance && peer->alive()) return peer;
  return nullptr;
}

std::vector<PeerRef> PeerTable::alive() const {
  std::vector<PeerRef> alive;
  for (auto& peer : peers_)
    if (peer->alive()) alive.push_back(peer);
  return alive;
}

void PeerTable::forget(const Peer& peer) {
  std::erase_if(peers_, [&](const PeerRef& known) { return known.get() == &peer; });
}

PeerRef PeerTable::make(Handshake handshake, bool cma) {
  auto peer = std::make_shared<Peer>();
  peer->slot_ = handshake.hello.slot;
  peer->instance_ = handshake.hello.instance;
  peer->pid_ = handshake.credentials.pid;
  peer->cma_works_ = cma;
  peer->file_ = std::move(handshake.file);
  peer->tables_ = handshake.tables;
  peer->queue_pairs_.open(peer->file_.get(), peer->tables_, peer->slot_);
  peer->region_fd_ = std::move(handshake.region);
  peer->wakeup_fd_ = std::move(handshake.wakeup_fd);
  return peer;
}

}  // namespace nupa::host
