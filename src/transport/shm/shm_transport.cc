#include "transport/shm/shm_transport.h"

#include <cerrno>

#include "base/gid_text.h"
#include "transport/shm/connected.h"
#include "transport/shm/datagram.h"

namespace nupa::shm_transport {

Result<void> ShmTransport::open(core::ProcessContext& process) {
  process_ = &process;
  return {};
}

Result<std::unique_ptr<core::Endpoint>> ShmTransport::connect(const core::DeviceEntry&, core::QpContext& context,
                                                              const QpAttr& attr, bool) {
  // Waiting does not help where this process has no addresses left for the other one's tables.
  const auto peer = find_peer(attr.dest_qp_num, attr.av, kAnswerLimit);
  if (!peer && peer.error().code() == ENOMEM) return tl::unexpected(peer.error());
  return std::make_unique<Connected>(*this, context, attr.av, attr.dest_qp_num, std::chrono::milliseconds(0));
}

Result<std::unique_ptr<core::DatagramSender>> ShmTransport::datagrams(const core::DeviceEntry&,
                                                                      core::QpContext& context, host::DueEvent& due) {
  return std::make_unique<Datagram>(*this, context, due);
}

bool ShmTransport::reaches(const AddressVector& vector, uint32_t remote_qpn) {
  const auto peer = find_peer(remote_qpn, vector, kAnswerLimit);
  // One that is there and does not answer is met later; one that this process cannot map is an error of connect().
  return peer || peer.error().code() == ETIMEDOUT || peer.error().code() == ENOMEM;
}

bool ShmTransport::has_gid(const Gid& gid) const {
  return shm::has_gid(*process_->node().segment().tables().header, gid);
}

Result<Found> ShmTransport::find_peer(uint32_t qpn, const AddressVector& vector, std::chrono::milliseconds wait) {
  const uint32_t slot = shm::slot_of(qpn);
  if (slot < shm::kMinSlot || slot > shm::kMaxSlot) return fail(EHOSTUNREACH, "no process has queue pair ", qpn);
  auto peer = process_->node().connect(slot, wait);
  if (peer && (*peer)->tables().header->shares_memory == 0)
    return fail(EHOSTUNREACH, "the process of queue pair ", qpn, " does without shared memory");
  if (peer && vector.is_global && !shm::has_gid(*(*peer)->tables().header, vector.dgid))
    return fail(EHOSTUNREACH, "the process of queue pair ", qpn, " does not have GID ", base::gid_text(vector.dgid));
  if (!peer) return tl::unexpected(peer.error());
  const auto index = (*peer)->queue_pairs().index_of(qpn);
  if (!index) return fail(ENOMEM, "no address space for the tables of queue pair ", qpn, " of another process");
  return Found{std::move(*peer), *index};
}

}  // namespace nupa::shm_transport
