#pragma once
#include <cstdint>

#include "ccl/bootstrap/unique_id.h"

namespace nupa::ccl {

/// This process as a client of the PMIx server that started it. By libpmix.so.2, which is loaded when it is needed:
/// nothing of it is needed to build. Any thread. Specification: PMIx Standard 4.0, chapters 5 and 7.
class PmixJob {
 public:
  /// The same one each time, until the process exits: a server takes a process that goes without a word for one that
  /// has failed, and MPI in the same process could not come back to a server that this has left. ENOSYS: the library is
  /// missing, or is none; EIO: the server refuses.
  static Result<PmixJob*> enter();

  uint32_t rank() const;
  uint32_t ranks() const;
  /// Rank 0 opens a root, for as long as it lives, and the others get to know it. The same one each time. ETIMEDOUT:
  /// rank 0 does not come; errors of roots.
  Result<UniqueId> exchange_root(int64_t limit_ns);

 private:
  struct Client;
  explicit PmixJob(Client* client) : client_(client) {}
  Client* client_;
};

}  // namespace nupa::ccl
