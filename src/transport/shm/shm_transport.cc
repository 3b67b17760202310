// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_transport.h"

#include <cerrno>

#include "transport/shm/connected.h"
#include "transport/shm/copying_endpoint.h"
#include "transport/shm/datagram.h"

namespace nupa::shm_transport {

Result<std::unique_ptr<core::Transport>> ShmTransport::create() {
  const auto choice = copy::chosen_engine();
  if (!choice) return tl::unexpected(choice.error());
  return std::make_unique<ShmTransport>(*choice);
}

Result<void> ShmTransport::open(core::ProcessContext& process) {
  peers_.emplace(process);
  auto engine = copy::make_engine(
      choice_, {.ended = [&process] { process.try_waiting_requests(); },
                .moves = &process.memory_moves(),
                .started_threads = [&process](int threads) { process.count_copying_threads(threads); },
                .writes_unguarded = [&process] { process.count_copying_threads(-1); }});
  if (!engine) return tl::unexpected(engine.error());
  engine_ = std::move(*engine);
  return {};
}

Result<std::unique_ptr<core::Endpoint>> ShmTransport::connect(const core::DeviceEntry&, core::QpContext& context,
                                                              const QpAttr& attr, bool) {
  // Waiting does not help if this process has no address space left for the peer's tables, or if one of the two has no
  // room for another peer.
  const auto peer = peers_->find(attr.dest_qp_num, attr.av, kAnswerLimit);
  if (!peer && (peer.error().code() == ENOMEM || peer.error().code() == EMFILE)) return tl::unexpected(peer.error());
  if (engine_ != nullptr)
    return std::make_unique<CopyingEndpoint>(*engine_, choice_.least_bytes, *peers_, context, attr.av, attr.dest_qp_num,
                                             std::chrono::milliseconds(0));
  return std::make_unique<Connected>(*peers_, context, attr.av, attr.dest_qp_num, std::chrono::milliseconds(0));
}

Result<std::unique_ptr<core::DatagramSender>> ShmTransport::datagrams(const core::DeviceEntry&,
                                                                      core::QpContext& context, host::DueEvent& due) {
  return std::make_unique<Datagram>(*peers_, context, due);
}

bool ShmTransport::reaches(const AddressVector& vector, uint32_t remote_qpn) {
  const auto peer = peers_->find(remote_qpn, vector, kAnswerLimit);
  // A peer that this process cannot map is an error of connect().
  if (peer || peer.error().code() == ENOMEM) return true;
  // A process of this host that does not answer is connected later. A process of another host may have the same slot,
  // so the address decides.
  return peer.error().code() == ETIMEDOUT && (!vector.is_global || peers_->has_gid(vector.dgid));
}

}  // namespace nupa::shm_transport
