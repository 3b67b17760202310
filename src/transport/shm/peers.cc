// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/peers.h"

#include <cerrno>

#include "base/gid_text.h"

namespace nupa::shm_transport {

bool Peers::has_gid(const Gid& gid) const { return shm::has_gid(*process_.node().segment().tables().header, gid); }

Result<Found> Peers::find(uint32_t qpn, const AddressVector& vector, std::chrono::milliseconds wait) {
  const uint32_t slot = shm::slot_of(qpn);
  if (slot < shm::kMinSlot || slot > shm::kMaxSlot) return fail(EHOSTUNREACH, "no process has queue pair ", qpn);
  auto peer = process_.node().connect(slot, wait);
  if (peer && (*peer)->tables().header->shares_memory == 0)
    return fail(EHOSTUNREACH, "the process of queue pair ", qpn,
                " does not use shared memory (see its NUPA_TRANSPORT)");
  if (peer && vector.is_global && !shm::has_gid(*(*peer)->tables().header, vector.dgid))
    return fail(EHOSTUNREACH, "the process of queue pair ", qpn, " does not have GID ", base::gid_text(vector.dgid));
  if (!peer) return tl::unexpected(peer.error());
  const auto index = (*peer)->queue_pairs().index_of(qpn);
  if (!index)
    return fail(ENOMEM, "no address space for the tables of queue pair ", qpn, " of another process (raise ulimit -v)");
  return Found{std::move(*peer), *index};
}

}  // namespace nupa::shm_transport
