#pragma once
#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

/// Whoever started this process as a rank of a job, and can tell it of the others.
enum class Launcher : uint8_t {
  kNone,
  kRoot,   ///< NUPA_CCL_ROOT: `nupa launch`, or a person
  kPmix,   ///< a PMIx server: Open MPI's and PRRTE's, Slurm's
  kTorch,  ///< MASTER_ADDR and MASTER_PORT, as PyTorch wants them
};
/// As this process's environment says.
Launcher find_launcher();

struct LaunchedMeeting {
  uint32_t rank = 0;
  Met met;
};
/// Takes part in the job's next meeting. ENOENT: this process is a rank of none, or of one that does not say where
/// ranks meet (what was looked for is said); EINVAL: what the environment says cannot be; ENOTSUP: torchrun's own store
/// has the port; ENOSYS: libpmix.so.2 is missing; EIO: the PMIx server refuses; others: as meet() and meet_at().
Result<LaunchedMeeting> meet_launched(const Card& card, int64_t limit_ns);

}  // namespace nupa::ccl
