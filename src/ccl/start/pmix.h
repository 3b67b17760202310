#pragma once
#include <cstdint>
#include <memory>

#include "ccl/start/unique_id.h"

namespace nupa::ccl {

/// This process as a client of the PMIx server that started it, as long as this lives. By libpmix.so.2, which is loaded
/// when it is needed: nothing of it is needed to build. Specification: PMIx Standard 4.0, chapters 5 and 7.
class PmixJob {
 public:
  /// ENOSYS: the library is missing, or is none; EIO: the server refuses.
  static Outcome<std::unique_ptr<PmixJob>> enter();
  /// A server takes a process that goes without having left for one that has failed.
  ~PmixJob();
  PmixJob(const PmixJob&) = delete;
  PmixJob& operator=(const PmixJob&) = delete;

  uint32_t rank() const;
  uint32_t ranks() const;
  /// Rank 0 opens a root, for as long as it lives, and the others get to know it. The same one each time. ETIMEDOUT:
  /// rank 0 does not come; errors of roots.
  Outcome<UniqueId> exchange_root(int64_t limit_ns);

 private:
  struct Client;
  explicit PmixJob(std::unique_ptr<Client> client);
  std::unique_ptr<Client> client_;
};

}  // namespace nupa::ccl
