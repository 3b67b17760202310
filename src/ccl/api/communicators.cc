// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstring>
#include <functional>

#include "ccl/api/handles.h"
#include "ccl/bootstrap/launcher.h"
#include "ccl/bootstrap/rendezvous_address.h"
#include "ccl/bootstrap/kept_servers.h"
#include "ccl/diagnostics/trace.h"

namespace nupa::ccl {
namespace {

/// Makes a communicator of the ranks that `join_rendezvous` finds. `join_rendezvous` also returns which rank this
/// process is.
Result<std::unique_ptr<Communicator>> join(
    const std::function<Result<LaunchedRendezvous>(const PeerInfoBytes& peer_info, int64_t limit_ns)>&
        join_rendezvous) {
  const auto options = CommunicatorOptions::from_environment();
  if (!options) return tl::unexpected(options.error());
  auto endpoint = Endpoint::acquire();
  if (!endpoint) return tl::unexpected(endpoint.error());
  const auto launched = join_rendezvous((*endpoint)->peer_info().encode(), options->limit_ns);
  if (!launched) return tl::unexpected(launched.error());
  std::vector<PeerInfo> peer_infos;
  for (const PeerInfoBytes& one : launched->result.peer_infos) {
    auto peer_info = PeerInfo::decode(one);
    if (!peer_info) return tl::unexpected(peer_info.error());
    peer_infos.push_back(std::move(*peer_info));
  }
  return Communicator::make(std::move(*endpoint), launched->result.name, launched->rank, std::move(peer_infos),
                            *options);
}

Result<LaunchedRendezvous> as(uint32_t rank, Result<RendezvousResult> joined) {
  if (!joined) return tl::unexpected(joined.error());
  return LaunchedRendezvous{rank, std::move(*joined)};
}

int give(Result<std::unique_ptr<Communicator>> made, nupa_ccl_comm** comm) {
  if (!made) return report(made.error());
  *comm = *made == nullptr ? nullptr : new nupa_ccl_comm{std::move(*made)};
  return 0;
}

}  // namespace
}  // namespace nupa::ccl

using namespace nupa::ccl;

extern "C" {

NUPA_EXPORT int nupa_ccl_get_unique_id(nupa_ccl_unique_id* id) {
  if (id == nullptr) return report(EINVAL, "id is null");
  const auto server_id = start_server_here();
  if (!server_id) return report(server_id.error());
  const auto bytes = server_id->encode();
  static_assert(sizeof bytes == sizeof id->bytes);
  std::memcpy(id->bytes, bytes.data(), sizeof bytes);
  return 0;
}

NUPA_EXPORT int nupa_ccl_comm_init_rank(nupa_ccl_comm** comm, uint32_t ranks, const nupa_ccl_unique_id* id,
                                        uint32_t rank) {
  if (comm == nullptr || id == nullptr) return report(EINVAL, "comm or id is null");
  if (rank >= ranks) return report(EINVAL, "rank is out of range: it must be less than ranks");
  const auto known = UniqueId::decode(reinterpret_cast<const std::byte*>(id->bytes), sizeof id->bytes);
  if (!known) return report(known.error());
  return give(join([&](const PeerInfoBytes& peer_info, int64_t limit_ns) {
                return as(rank, join_next_rendezvous(*known, rank, ranks, peer_info, limit_ns));
              }),
              comm);
}

NUPA_EXPORT int nupa_ccl_comm_init_from(nupa_ccl_comm** comm, uint32_t ranks, const char* where, uint32_t rank) {
  if (comm == nullptr || where == nullptr) return report(EINVAL, "comm or where is null");
  if (rank >= ranks) return report(EINVAL, "rank is out of range: it must be less than ranks");
  const auto place = RendezvousAddress::parse(where);
  if (!place) return report(place.error());
  return give(join([&](const PeerInfoBytes& peer_info, int64_t limit_ns) {
                return as(rank, join_rendezvous_at(*place, rank, ranks, peer_info, limit_ns));
              }),
              comm);
}

NUPA_EXPORT int nupa_ccl_comm_init(nupa_ccl_comm** comm) {
  if (comm == nullptr) return report(EINVAL, "comm is null");
  return give(join(join_launched_rendezvous), comm);
}

NUPA_EXPORT int nupa_ccl_comm_split(nupa_ccl_comm* comm, int64_t color, int64_t key, nupa_ccl_comm** made) {
  if (comm == nullptr || made == nullptr) return report(EINVAL, "comm or made is null");
  return give(comm->communicator->split(color < 0 ? Communicator::kNoColor : color, key), made);
}

NUPA_EXPORT int nupa_ccl_comm_dup(nupa_ccl_comm* comm, nupa_ccl_comm** made) {
  if (comm == nullptr || made == nullptr) return report(EINVAL, "comm or made is null");
  return give(comm->communicator->split(0, 0, Purpose::kDup), made);
}

NUPA_EXPORT int nupa_ccl_comm_shrink(nupa_ccl_comm* comm, nupa_ccl_comm** made) {
  if (comm == nullptr || made == nullptr) return report(EINVAL, "comm or made is null");
  return give(comm->communicator->shrink(), made);
}

NUPA_EXPORT int nupa_ccl_comm_destroy(nupa_ccl_comm* comm) {
  if (comm == nullptr) return 0;
  const std::unique_ptr<nupa_ccl_comm> owned(comm);
  if (!comm->communicator->is_here()) {
    [[maybe_unused]] const auto* parents = comm->communicator.release();
    return 0;
  }
  const int error = comm->communicator->ended() ? 0 : comm->communicator->finish();
  if (Trace* const trace = Trace::get()) trace->flush();
  return report(*comm->communicator, error);
}

NUPA_EXPORT int nupa_ccl_comm_abort(nupa_ccl_comm* comm) {
  if (comm == nullptr) return report(EINVAL, "comm is null");
  if (!comm->communicator->is_here()) return 0;  // forked child: it has ended here; the parent's goes on
  comm->communicator->end({ECANCELED, comm->communicator->rank()});
  if (Trace* const trace = Trace::get()) trace->flush();
  return 0;
}

NUPA_EXPORT int nupa_ccl_comm_rank(const nupa_ccl_comm* comm, uint32_t* rank) {
  if (comm == nullptr || rank == nullptr) return report(EINVAL, "comm or rank is null");
  *rank = comm->communicator->rank();
  return 0;
}

NUPA_EXPORT int nupa_ccl_comm_size(const nupa_ccl_comm* comm, uint32_t* ranks) {
  if (comm == nullptr || ranks == nullptr) return report(EINVAL, "comm or ranks is null");
  *ranks = comm->communicator->ranks();
  return 0;
}

NUPA_EXPORT int nupa_ccl_comm_error(const nupa_ccl_comm* comm, int* error, uint32_t* rank) {
  if (comm == nullptr) return report(EINVAL, "comm is null");
  const Cause cause = comm->communicator->ended();
  if (error != nullptr) *error = cause.error;
  if (rank != nullptr) *rank = cause.rank;
  return 0;
}

}  // extern "C"
