// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

/// Checks a value of NUPA_CCL_ROOT. EINVAL: it is neither a unique id nor the address of a rendezvous.
Result<void> check_root(const std::string& root);

/// The kind of launcher that started this process as a rank of a job and helps it to find the others.
enum class Launcher : uint8_t {
  kNone,
  kRoot,   ///< NUPA_CCL_ROOT, set by `nupa launch` or by hand
  kPmix,   ///< a PMIx server of Open MPI, PRRTE or Slurm
  kTorch,  ///< MASTER_ADDR and MASTER_PORT, as PyTorch needs them
};
/// Finds the launcher in the environment of this process.
Launcher find_launcher();

struct LaunchedRendezvous {
  uint32_t rank = 0;
  RendezvousResult result;
};
/// Takes part in the job's next rendezvous. ENOENT: this process is not a rank of a job, or the environment names no
/// place for the rendezvous (the text lists what was looked for). EINVAL: the environment holds values that are not
/// valid. ENOTSUP: torchrun's own store uses the port. ENOSYS: libpmix.so.2 is missing. EIO: the PMIx server rejects a
/// call. Other errors: as join_rendezvous() and join_rendezvous_at().
Result<LaunchedRendezvous> join_launched_rendezvous(const PeerInfoBytes& peer_info, int64_t limit_ns);

}  // namespace nupa::ccl
