// SPDX-License-Identifier: Apache-2.0
#include "ccl/bootstrap/rendezvous_members.h"

#include <cerrno>
#include <utility>

namespace nupa::ccl {
namespace {

/// Most missing ranks that an error text names.
constexpr size_t kMostNamed = 8;

}  // namespace

Result<void> RendezvousMembers::join(uint32_t rank, uint32_t world, PeerInfoBytes peer_info) {
  if (world != peer_infos_.size())
    return fail(EINVAL, "rank " + std::to_string(rank) + " joined with " + std::to_string(world) +
                            " ranks, other ranks with " + std::to_string(peer_infos_.size()));
  if (present_[rank]) return fail(EEXIST, "another process has joined as rank " + std::to_string(rank));
  present_[rank] = true;
  peer_infos_[rank] = std::move(peer_info);
  ++came_;
  return {};
}

void RendezvousMembers::leave(uint32_t rank) {
  if (!present_[rank]) return;
  present_[rank] = false;
  --came_;
}

std::string RendezvousMembers::table() const {
  std::string table;
  for (const PeerInfoBytes& peer_info : peer_infos_) {
    const auto length = static_cast<uint32_t>(peer_info.size());
    table.append(reinterpret_cast<const char*>(&length), sizeof length);
    table.append(reinterpret_cast<const char*>(peer_info.data()), peer_info.size());
  }
  return table;
}

std::string RendezvousMembers::missing() const {
  std::string text = "missing: rank";
  size_t named = 0;
  for (size_t rank = 0; rank < present_.size(); ++rank) {
    if (present_[rank]) continue;
    if (named++ == kMostNamed) {
      text += " and ";
      text += std::to_string(present_.size() - came_ - kMostNamed);
      text += " more";
      break;
    }
    text += named == 1 ? " " : ", ";
    text += std::to_string(rank);
  }
  return text;
}

}  // namespace nupa::ccl
