// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

/// The server's state of one rendezvous: which ranks have joined, and their peer info.
class RendezvousMembers {
 public:
  /// `deadline` (CLOCK_MONOTONIC ns): when the ranks that have joined get the list of those that are missing.
  RendezvousMembers(uint32_t world, int64_t deadline) : deadline_(deadline), peer_infos_(world), present_(world) {}

  /// EINVAL: `world` differs from that of the other ranks; EEXIST: this rank has joined already.
  Result<void> join(uint32_t rank, uint32_t world, PeerInfoBytes peer_info);
  /// Removes a rank, which may then join again.
  void leave(uint32_t rank);
  bool is_empty() const { return came_ == 0; }
  bool is_complete() const { return came_ == peer_infos_.size(); }
  int64_t deadline() const { return deadline_; }
  void end_by(int64_t deadline) { deadline_ = std::min(deadline_, deadline); }
  /// The peer info of all ranks, in the format of rendezvous_wire.h.
  std::string table() const;
  /// The missing ranks for an error text: "missing: rank 1, 4".
  std::string missing() const;

 private:
  int64_t deadline_;
  std::vector<PeerInfoBytes> peer_infos_;
  std::vector<bool> present_;
  uint32_t came_ = 0;
};

}  // namespace nupa::ccl
