// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Found instead of src/host/peer.h by code that is checked in tests/model: a process that never dies.
#include <memory>

#include "shm/qp_banks.h"
#include "shm/segment.h"

namespace nupa::host {

class Peer : public ::std::enable_shared_from_this<Peer> {
 public:
  /// One bank, mapped from the start.
  struct QueuePairs {
    shm::Tables tables;
    shm::QpShared* qp(uint32_t index) const { return &tables.qp[index]; }
    shm::QpBank at(uint32_t) const {
      return {tables.qp, tables.statistics, tables.header->qp_attention, &tables.header->qp_high_water};
    }
  };

  explicit Peer(const shm::Tables& tables) : tables_(tables), queue_pairs_{tables} {}
  const shm::Tables& tables() const { return tables_; }
  QueuePairs& queue_pairs() { return queue_pairs_; }
  uint64_t instance() const { return 1; }
  bool alive() const { return true; }
  bool is_self() const { return true; }
  static int pid() { return 0; }

 private:
  shm::Tables tables_;
  QueuePairs queue_pairs_;
};

using PeerRef = ::std::shared_ptr<Peer>;

}  // namespace nupa::host
