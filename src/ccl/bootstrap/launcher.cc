// SPDX-License-Identifier: Apache-2.0
#include "ccl/bootstrap/launcher.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <system_error>

#include "base/settings.h"
#include "ccl/bootstrap/rendezvous_address.h"
#include "ccl/bootstrap/pmix.h"
#include "ccl/bootstrap/kept_servers.h"

namespace nupa::ccl {
namespace {

struct Numbers {
  uint32_t rank;
  uint32_t ranks;
};

/// The variables in which a launcher stores a rank and the number of ranks. One launcher often starts another; those
/// below are in the order in which they are read, the one that is nearest to the program first.
struct Names {
  base::Variable rank;
  base::Variable ranks;
};
constexpr Names kNupa{"NUPA_RANK", "NUPA_WORLD_SIZE"};
constexpr Names kTorchNames{"RANK", "WORLD_SIZE"};
constexpr Names kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"};
constexpr Names kPmi{"PMI_RANK", "PMI_SIZE"};  // MPICH, Intel MPI, Cray
constexpr Names kSlurm{"SLURM_PROCID", "SLURM_NTASKS"};

bool is_set(base::Variable variable) { return base::text_setting(variable) != nullptr; }

std::string value_of(base::Variable variable) {
  const char* const value = base::setting(variable);
  return value == nullptr ? "" : value;
}

/// Reads a variable that holds a whole number.
std::optional<uint32_t> number_of(base::Variable variable) {
  const std::string text = value_of(variable);
  uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || read != end) return {};
  return value;
}

Result<Numbers> numbers_of(const Names& names) {
  const auto rank = number_of(names.rank);
  const auto ranks = number_of(names.ranks);
  if (rank && ranks && *rank < *ranks && *ranks <= kMaxRanks) return Numbers{*rank, *ranks};
  return fail(EINVAL, std::string(names.rank.name()) + "='" + value_of(names.rank) + "', " + names.ranks.name() + "='" +
                          value_of(names.ranks) + "': invalid rank or number of ranks");
}

Result<LaunchedRendezvous> with(uint32_t rank, Result<RendezvousResult> joined) {
  if (!joined) return tl::unexpected(joined.error());
  return LaunchedRendezvous{rank, std::move(*joined)};
}

/// NUPA_CCL_ROOT holds a unique id or an address.
Result<LaunchedRendezvous> join_rendezvous_at_root(const PeerInfoBytes& peer_info, int64_t limit_ns) {
  for (const Names& names : {kNupa, kTorchNames, kOpenMpi, kPmi, kSlurm}) {
    if (!is_set(names.rank)) continue;
    const auto numbers = numbers_of(names);
    if (!numbers) return tl::unexpected(numbers.error());
    const std::string address = value_of("NUPA_CCL_ROOT");
    if (const auto checked = check_root(address); !checked) return tl::unexpected(checked.error());
    if (const auto id = UniqueId::from_text(address))
      return with(numbers->rank, join_next_rendezvous(*id, numbers->rank, numbers->ranks, peer_info, limit_ns));
    return with(numbers->rank, join_rendezvous_at(*RendezvousAddress::parse(address), numbers->rank, numbers->ranks,
                                                  peer_info, limit_ns));
  }
  return fail(ENOENT, "NUPA_CCL_ROOT is set, but no variable holds the rank: set NUPA_RANK and NUPA_WORLD_SIZE");
}

Result<LaunchedRendezvous> join_rendezvous_of_pmix(const PeerInfoBytes& peer_info, int64_t limit_ns) {
  auto job = PmixJob::enter();
  if (!job) return tl::unexpected(job.error());
  // One rendezvous server serves the whole job, because a PMIx server may keep the first value of a key.
  const auto id = (*job)->exchange_server_id(limit_ns);
  if (!id) return tl::unexpected(id.error());
  return with((*job)->rank(), join_next_rendezvous(*id, (*job)->rank(), (*job)->ranks(), peer_info, limit_ns));
}

Result<LaunchedRendezvous> join_rendezvous_of_torch(const PeerInfoBytes& peer_info, int64_t limit_ns) {
  const auto numbers = numbers_of(kTorchNames);
  if (!numbers) return tl::unexpected(numbers.error());
  if (value_of("TORCHELASTIC_USE_AGENT_STORE") == "True")
    return fail(ENOTSUP,
                "torchrun's own store uses MASTER_PORT, and its protocol depends on PyTorch's version: set "
                "NUPA_CCL_ROOT=tcp://HOST:PORT with another port of rank 0's host, or use the nupa backend of "
                "torch.distributed");
  const auto port = number_of("MASTER_PORT");
  if (!port || *port == 0 || *port > UINT16_MAX)
    return fail(EINVAL, "MASTER_PORT='" + value_of("MASTER_PORT") + "' is not a port number");
  const RendezvousAddress place{value_of("MASTER_ADDR"), static_cast<uint16_t>(*port), "", ""};
  return with(numbers->rank, join_rendezvous_at(place, numbers->rank, numbers->ranks, peer_info, limit_ns));
}

/// The error for a process without a launcher, or with one that only numbers the ranks.
tl::unexpected<Error> nobody() {
  for (const Names& names : {kOpenMpi, kPmi, kTorchNames, kSlurm})
    if (is_set(names.rank))
      return fail(ENOENT, std::string(names.rank.name()) +
                              " is set, but no rendezvous address: set NUPA_CCL_ROOT=tcp://HOST:PORT or "
                              "file:///PATH, or start the ranks with PMIx (srun --mpi=pmix)");
  return fail(ENOENT,
              "this process is not a rank of a job: start it with `nupa launch`, mpirun or srun --mpi=pmix, or set "
              "NUPA_CCL_ROOT (tcp://HOST:PORT or file:///PATH), NUPA_RANK and NUPA_WORLD_SIZE, or, as PyTorch does, "
              "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
}

}  // namespace

Result<void> check_root(const std::string& root) {
  if (UniqueId::from_text(root)) return {};
  if (const auto address = RendezvousAddress::parse(root); !address)
    return fail(EINVAL, "NUPA_CCL_ROOT=", root, ": ", address.error().what(), ", or a unique id");
  return {};
}

Launcher find_launcher() {
  if (is_set("NUPA_CCL_ROOT")) return Launcher::kRoot;
  if (is_set("PMIX_NAMESPACE") && is_set("PMIX_RANK")) return Launcher::kPmix;
  if (is_set("RANK") && is_set("WORLD_SIZE") && is_set("MASTER_ADDR") && is_set("MASTER_PORT")) return Launcher::kTorch;
  return Launcher::kNone;
}

Result<LaunchedRendezvous> join_launched_rendezvous(const PeerInfoBytes& peer_info, int64_t limit_ns) {
  switch (find_launcher()) {
    case Launcher::kRoot:
      return join_rendezvous_at_root(peer_info, limit_ns);
    case Launcher::kPmix:
      return join_rendezvous_of_pmix(peer_info, limit_ns);
    case Launcher::kTorch:
      return join_rendezvous_of_torch(peer_info, limit_ns);
    case Launcher::kNone:
      break;
  }
  return nobody();
}

}  // namespace nupa::ccl
