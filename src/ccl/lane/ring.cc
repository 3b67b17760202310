#include <cerrno>
#include <vector>

#include "ccl/lane/algorithms.h"
#include "ccl/lane/transfer.h"

namespace nupa::ccl::lanes {
namespace {

struct Ring {
  uint32_t rank;
  uint32_t ranks;
  explicit Ring(const LaneGroup& group) : rank(group.rank()), ranks(group.ranks()) {}
  uint32_t next() const { return (rank + 1) % ranks; }
  uint32_t previous() const { return (rank + ranks - 1) % ranks; }
  /// So many ranks before this one.
  uint32_t before(uint32_t distance) const { return (rank + 2 * ranks - distance) % ranks; }
};

/// Each block goes once around; each rank gets those of all others, from the one before it on.
Steps pass_around(LaneGroup& group, Loans& loans, const Ring& ring, void* out, const Blocks& blocks, uint32_t first) {
  for (uint32_t i = 0; i + 1 < ring.ranks; ++i) {
    const uint32_t sent = (first + 2 * ring.ranks - i) % ring.ranks;
    const uint32_t got = (first + 2 * ring.ranks - i - 1) % ring.ranks;
    const Flow step{ring.next(),
                    bytes_at(out, blocks.offset(sent)),
                    blocks.length(sent),
                    ring.previous(),
                    bytes_at(out, blocks.offset(got)),
                    blocks.length(got),
                    nullptr,
                    false,
                    &loans};
    if (const int error = co_await flow(group, step); error != 0) co_return error;
  }
  co_return co_await loans.settle();
}

/// Each block goes around and is combined with each rank's, until it comes to where it belongs.
Steps combine_around(LaneGroup& group, Loans& loans, const Ring& ring, void* sums, const Blocks& blocks,
                     const Reducer& reducer) {
  for (uint32_t i = 1; i < ring.ranks; ++i) {
    const uint32_t sent = ring.before(i);
    const uint32_t got = ring.before(i + 1);
    const Flow step{ring.next(),
                    bytes_at(sums, blocks.offset(sent)),
                    blocks.length(sent),
                    ring.previous(),
                    bytes_at(sums, blocks.offset(got)),
                    blocks.length(got),
                    &reducer,
                    true,
                    &loans};
    if (const int error = co_await flow(group, step); error != 0) co_return error;
  }
  co_return 0;
}

}  // namespace

Steps all_gather_ring(LaneGroup& group, GatherTask task) {
  const Ring ring(group);
  copy_unless_same(bytes_at(task.out, task.blocks.offset(ring.rank)), task.in, task.bytes);
  Loans loans(group, true, task.blocks.longest(ring.ranks));
  co_return co_await pass_around(group, loans, ring, task.out, task.blocks, ring.rank);
}

Steps reduce_scatter_ring(LaneGroup& group, ReduceTask task) {
  const Ring ring(group);
  const Reducer reducer = partial(task.reducer);
  const size_t size = task.reducer.element_bytes();
  size_t bytes = 0;
  for (uint32_t rank = 0; rank < ring.ranks; ++rank)
    bytes = std::max(bytes, task.blocks.offset(rank) + task.blocks.length(rank));
  std::vector<std::byte> sums(bytes);
  begin_with(task.reducer, sums.data(), task.in, bytes / size);
  Loans loans(group, false, 0);  // the sums go where an error ends all
  if (const int error = co_await combine_around(group, loans, ring, sums.data(), task.blocks, reducer); error != 0)
    co_return error;
  const size_t own = task.blocks.length(ring.rank);
  copy_array(task.out, sums.data() + task.blocks.offset(ring.rank), own);
  end_with(task.reducer, task.out, own / size);
  co_return 0;
}

Steps all_reduce_ring(LaneGroup& group, ReduceTask task) {
  const Ring ring(group);
  const Reducer reducer = partial(task.reducer);
  const size_t size = task.reducer.element_bytes();
  std::vector<size_t> lengths;
  std::vector<size_t> offsets;
  for (uint32_t rank = 0; rank < ring.ranks; ++rank) {
    const Slice slice = slice_of(rank, ring.ranks, task.elements, size);
    lengths.push_back(slice.length() * size);
    offsets.push_back(slice.begin * size);
  }
  const Blocks blocks{0, lengths.data(), offsets.data()};
  begin_with(task.reducer, task.out, task.in, task.elements);
  // A block that was sent is written to again only by what came of it in all others.
  Loans loans(group, true, blocks.longest(ring.ranks));
  if (const int error = co_await combine_around(group, loans, ring, task.out, blocks, reducer); error != 0)
    co_return error;
  end_with(task.reducer, bytes_at(task.out, offsets[ring.rank]), lengths[ring.rank] / size);
  co_return co_await pass_around(group, loans, ring, task.out, blocks, ring.rank);
}

}  // namespace nupa::ccl::lanes
