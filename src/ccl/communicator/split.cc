// SPDX-License-Identifier: Apache-2.0
/// How ranks of a communicator make another one: by choice (split), or because some of them have died (shrink).
#include <algorithm>
#include <cerrno>

#include "ccl/communicator/communicator.h"
#include "ccl/communicator/derived_id.h"

namespace nupa::ccl {
namespace {

/// In the id of a communicator, marks a shrink. It is not the number of any split.
constexpr uint64_t kShrinking = UINT64_MAX;

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::split(int64_t color, int64_t key, Purpose purpose) {
  struct Wish {
    int64_t color;
    int64_t key;
  };
  const uint64_t number = ++splits_;
  const Wish mine{color, key};
  std::vector<Wish> all(ranks());
  Call call;
  call.operation = Operation::kAllGather;
  call.in = &mine;
  call.out = all.data();
  call.elements = sizeof mine;
  call.purpose = purpose;
  if (const int error = run(call); error != 0) return fail(error, text_of(ended()));
  if (color == kNoColor) return nullptr;
  std::vector<uint32_t> members;
  for (uint32_t rank = 0; rank < ranks(); ++rank)
    if (all[rank].color == color) members.push_back(rank);
  std::stable_sort(members.begin(), members.end(), [&](uint32_t a, uint32_t b) { return all[a].key < all[b].key; });
  std::vector<PeerInfo> peer_infos;
  uint32_t own = 0;
  for (const uint32_t member : members) {
    if (member == rank()) own = static_cast<uint32_t>(peer_infos.size());
    peer_infos.push_back(peer_infos_[member]);
  }
  return make(endpoint_, derive(id_, number, static_cast<uint64_t>(color)), own, std::move(peer_infos), options_);
}

std::vector<bool> Communicator::dead() const {
  std::vector<bool> all;
  {
    std::lock_guard lock(dead_mutex_);
    all = dead_;
  }
  all.resize(ranks());
  for (uint32_t other = 0; other < ranks(); ++other)
    if (other != rank() && peer_infos_[rank()].sees_end_of(peer_infos_[other])) all[other] = true;
  const Cause cause = ended();
  if ((cause.error == ECONNRESET || cause.error == ETIMEDOUT) && cause.rank < ranks()) all[cause.rank] = true;
  return all;
}

Result<std::unique_ptr<Communicator>> Communicator::shrink() {
  if (is_inherited_) return fail(ended().error, text_of(ended()));
  const CommunicatorId id = derive(id_, kShrinking, ++shrinks_);
  auto agreement = std::make_shared<ShrinkAgreement>(*endpoint_, id, rank(), peer_infos_);
  if (const int error = agreement->open(); error != 0)
    return fail(error, "nupa_ccl_comm_shrink() is already running on this communicator");
  const auto known_now = [this] {
    // No other thread may be polling the queue pairs any more; without a poll, one that breaks would not be noticed.
    look();
    return dead();
  };
  const auto is_dead = agreement->agree(known_now, options_.limit_ns);
  if (!is_dead) return tl::unexpected(is_dead.error());
  std::vector<PeerInfo> peer_infos;
  uint32_t own = 0;
  Cause late;
  const std::vector<bool> known = dead();
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    if ((*is_dead)[rank]) continue;
    if (rank == this->rank())
      own = static_cast<uint32_t>(peer_infos.size());
    else if (known[rank])
      late = {ECONNRESET, static_cast<uint32_t>(peer_infos.size())};
    peer_infos.push_back(peer_infos_[rank]);
  }
  auto made = make(endpoint_, derive(id, 0, 0), own, std::move(peer_infos), options_);
  if (!made) return made;
  (*made)->agreement_ = std::move(agreement);
  // A rank that died after it was counted as alive ends the new communicator, as if it had died a moment later.
  if (late) (*made)->end(late);
  // No rank may destroy the old communicator while others still check there which ranks are alive.
  Call barrier;
  (*made)->run(barrier);
  return made;
}

}  // namespace nupa::ccl
