#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "ccl/api/handles.h"
#include "ccl/start/roots.h"
#include "ccl/trace/trace.h"

namespace nupa::ccl {
namespace {

Outcome<std::unique_ptr<Communicator>> join(const UniqueId& id, uint32_t rank, uint32_t ranks) {
  const auto options = CommunicatorOptions::from_environment();
  if (!options) return tl::unexpected(options.error());
  auto endpoint = Endpoint::acquire();
  if (!endpoint) return tl::unexpected(endpoint.error());
  uint64_t meeting = 0;
  const auto met = meet_next(id, rank, ranks, (*endpoint)->card().encode(), options->limit_ns, &meeting);
  if (!met) return tl::unexpected(met.error());
  std::vector<RankCard> cards;
  for (const Card& one : *met) {
    auto card = RankCard::decode(one);
    if (!card) return tl::unexpected(card.error());
    cards.push_back(std::move(*card));
  }
  CommunicatorId name{};
  static_assert(sizeof name == UniqueId::kSecretBytes);
  std::memcpy(name.data(), id.secret.data(), sizeof name);
  return Communicator::make(std::move(*endpoint), derive(name, meeting, ranks), rank, std::move(cards), *options);
}

int give(Outcome<std::unique_ptr<Communicator>> made, nupa_ccl_comm** comm) {
  if (!made) return say(made.error());
  *comm = *made == nullptr ? nullptr : new nupa_ccl_comm{std::move(*made)};
  return 0;
}

/// A whole number of the launcher's environment.
std::optional<uint32_t> number_of(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == 0) return {};
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  if (*end != 0 || value >= kMaxRanks) return {};
  return static_cast<uint32_t>(value);
}

std::optional<UniqueId> id_of(const char* text) {
  std::byte bytes[UniqueId::kBytes];
  if (std::strlen(text) != 2 * sizeof bytes) return {};
  for (size_t i = 0; i < sizeof bytes; ++i) {
    const char digits[3] = {text[2 * i], text[2 * i + 1], 0};
    char* end = nullptr;
    bytes[i] = static_cast<std::byte>(std::strtoul(digits, &end, 16));
    if (*end != 0) return {};
  }
  auto id = UniqueId::decode(bytes, sizeof bytes);
  if (!id) return {};
  return *id;
}

}  // namespace
}  // namespace nupa::ccl

using namespace nupa::ccl;

extern "C" {

NUPA_EXPORT int nupa_ccl_get_unique_id(nupa_ccl_unique_id* id) {
  if (id == nullptr) return say(EINVAL, "no place for the id");
  const auto root = root_here();
  if (!root) return say(root.error());
  const auto bytes = root->encode();
  static_assert(sizeof bytes == sizeof id->bytes);
  std::memcpy(id->bytes, bytes.data(), sizeof bytes);
  return 0;
}

NUPA_EXPORT int nupa_ccl_comm_init_rank(nupa_ccl_comm** comm, uint32_t ranks, const nupa_ccl_unique_id* id,
                                        uint32_t rank) {
  if (comm == nullptr || id == nullptr) return say(EINVAL, "no place for the communicator, or no id");
  if (rank >= ranks) return say(EINVAL, "there is no such rank");
  const auto known = UniqueId::decode(reinterpret_cast<const std::byte*>(id->bytes), sizeof id->bytes);
  if (!known) return say(known.error());
  return give(join(*known, rank, ranks), comm);
}

NUPA_EXPORT int nupa_ccl_comm_init(nupa_ccl_comm** comm) {
  if (comm == nullptr) return say(EINVAL, "no place for the communicator");
  const auto rank = number_of("NUPA_RANK");
  const auto ranks = number_of("NUPA_WORLD_SIZE");
  const char* const root = std::getenv("NUPA_CCL_ROOT");
  if (!rank || !ranks || root == nullptr || *rank >= *ranks)
    return say(ENOENT, "this process is not a rank of a job: start it by `nupa launch`");
  const auto id = id_of(root);
  if (!id) return say(EINVAL, "NUPA_CCL_ROOT is not a unique id");
  return give(join(*id, *rank, *ranks), comm);
}

NUPA_EXPORT int nupa_ccl_comm_split(nupa_ccl_comm* comm, int64_t color, int64_t key, nupa_ccl_comm** made) {
  if (comm == nullptr || made == nullptr) return say(EINVAL, "no communicator, or no place for another");
  return give(comm->communicator->split(color < 0 ? Communicator::kNoColor : color, key), made);
}

NUPA_EXPORT int nupa_ccl_comm_dup(nupa_ccl_comm* comm, nupa_ccl_comm** made) {
  if (comm == nullptr || made == nullptr) return say(EINVAL, "no communicator, or no place for another");
  return give(comm->communicator->split(0, 0, Purpose::kDup), made);
}

NUPA_EXPORT int nupa_ccl_comm_destroy(nupa_ccl_comm* comm) {
  if (comm == nullptr) return 0;
  const std::unique_ptr<nupa_ccl_comm> owned(comm);
  const int error = comm->communicator->ended() ? 0 : comm->communicator->finish();
  if (Trace* const trace = Trace::get()) trace->flush();
  return say(*comm->communicator, error);
}

NUPA_EXPORT int nupa_ccl_comm_abort(nupa_ccl_comm* comm) {
  if (comm == nullptr) return say(EINVAL, "no communicator");
  comm->communicator->end({ECANCELED, comm->communicator->rank()});
  if (Trace* const trace = Trace::get()) trace->flush();
  return 0;
}

NUPA_EXPORT int nupa_ccl_comm_rank(const nupa_ccl_comm* comm, uint32_t* rank) {
  if (comm == nullptr || rank == nullptr) return say(EINVAL, "no communicator, or no place for the answer");
  *rank = comm->communicator->rank();
  return 0;
}

NUPA_EXPORT int nupa_ccl_comm_size(const nupa_ccl_comm* comm, uint32_t* ranks) {
  if (comm == nullptr || ranks == nullptr) return say(EINVAL, "no communicator, or no place for the answer");
  *ranks = comm->communicator->ranks();
  return 0;
}

NUPA_EXPORT int nupa_ccl_comm_error(const nupa_ccl_comm* comm, int* error, uint32_t* rank) {
  if (comm == nullptr) return say(EINVAL, "no communicator");
  const Cause cause = comm->communicator->ended();
  if (error != nullptr) *error = cause.error;
  if (rank != nullptr) *rank = cause.rank;
  return 0;
}

}  // extern "C"
