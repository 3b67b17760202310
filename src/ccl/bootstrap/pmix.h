// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "ccl/bootstrap/unique_id.h"

namespace nupa::ccl {

/// This process as a client of the PMIx server that started it. It uses libpmix.so.2, which is loaded when it is
/// needed, so that a build does not need it. Thread-safe. Specification: PMIx Standard 4.0, chapters 5 and 7.
class PmixJob {
 public:
  /// Returns the same client each time. It is finalized when the process exits, because a server treats an exit without
  /// that as a failure; not earlier, because MPI in the same process could not connect to the server again. ENOSYS: the
  /// library is missing, or is not PMIx; EIO: the server rejects a call; ENODEV: this is a forked child of the client.
  static Result<PmixJob*> enter();

  uint32_t rank() const;
  uint32_t ranks() const;
  /// Rank 0 starts a rendezvous server, which runs until rank 0 exits, and publishes its id. All ranks return this id,
  /// each time. ETIMEDOUT: rank 0 has not published it; errors of the server.
  Result<UniqueId> exchange_server_id(int64_t limit_ns);

 private:
  struct Client;
  explicit PmixJob(Client* client) : client_(client) {}
  Client* client_;
};

}  // namespace nupa::ccl
