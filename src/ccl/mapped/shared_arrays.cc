#include "ccl/mapped/shared_arrays.h"

#include <cerrno>
#include <cstring>

#include "ccl/mapped/parts.h"

namespace nupa::ccl::mapped {
namespace {

/// In a Place: others do not need this array.
constexpr uint64_t kNotNeeded = UINT64_MAX;

/// What a rank tells in its line.
struct Told {
  Place in;
  Place out;
  uint64_t in_address;  ///< 0: not to be read
};
static_assert(sizeof(Told) <= FlagLine::kPayload);

Place place_of(MappedGroup& group, const Shown& shown) {
  if (!shown.is_needed) return {.serial = kNotNeeded};
  return group.windows()->publish(shown.data, shown.bytes);
}

Told told_by(const MappedGroup& group, uint32_t rank, uint32_t turn) {
  Told told;
  std::memcpy(&told, group.line_of(rank, turn).payload, sizeof told);
  return told;
}

/// False: it cannot be mapped, though its owner has said so.
bool map(MappedGroup& group, uint32_t rank, const Place& place, const Shown& own, std::byte** mapped) {
  *mapped = nullptr;
  if (place.serial == kNotNeeded) return true;
  *mapped =
      rank == group.rank() ? static_cast<std::byte*>(const_cast<void*>(own.data)) : group.windows()->find(rank, place);
  return *mapped != nullptr;
}

}  // namespace

int SharedArrays::read(MappedGroup& group, uint32_t rank, void* to, size_t offset, size_t bytes) const {
  if (bytes == 0) return 0;
  if (!are_mapped) return group.reads()->read(rank, to, in_addresses[rank] + offset, bytes);
  std::memcpy(to, in[rank] + offset, bytes);
  return 0;
}

Steps show_arrays(MappedGroup& group, Shown in, Shown out, SharedArrays* arrays) {
  const uint32_t step = group.begin(1) + 1;
  const uint32_t turn = group.next_turn(step);
  const Told own{place_of(group, in), place_of(group, out), reinterpret_cast<uint64_t>(in.data)};
  if (!group.may_write(kSmallTurns))
    if (const int error = co_await until_all_left(group, kSmallTurns); error != 0) co_return error;
  group.write_line(turn, &own, sizeof own, step);
  bool are_mapped = true;
  bool are_readable = group.reads() != nullptr && !out.is_needed;
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (const int error = co_await group.wrote_line(rank, turn, step); error != 0) co_return error;
    const Told told = told_by(group, rank, turn);
    are_mapped = are_mapped && told.in.serial != 0 && told.out.serial != 0;
    are_readable =
        are_readable && told.out.serial == kNotNeeded && (told.in_address != 0 || told.in.serial == kNotNeeded);
  }
  group.all_met();
  if (!are_mapped) {
    for (uint32_t rank = 0; are_readable && rank < group.ranks(); ++rank)
      arrays->in_addresses.push_back(told_by(group, rank, turn).in_address);
    co_return 0;
  }
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    const Told told = told_by(group, rank, turn);
    std::byte* mapped_in;
    std::byte* mapped_out;
    if (!map(group, rank, told.in, in, &mapped_in) || !map(group, rank, told.out, out, &mapped_out)) co_return EFAULT;
    arrays->in.push_back(mapped_in);
    arrays->out.push_back(mapped_out);
  }
  arrays->are_mapped = true;
  co_return 0;
}

}  // namespace nupa::ccl::mapped
