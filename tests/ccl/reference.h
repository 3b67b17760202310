// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The serial reference: the results of the collectives, computed by one process.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "ccl/reduce/reduce.h"
#include "job.h"

namespace nupa::ccl {

/// Sets small slots, so that small arrays take several turns.
class WithSmallSlots : public ::testing::Test {
 protected:
  void SetUp() override { setenv("NUPA_CCL_SLOT_BYTES", "4096", 1); }
  void TearDown() override { unsetenv("NUPA_CCL_SLOT_BYTES"); }
};

/// Whether this rank allocates its arrays with nupa_ccl_alloc().
inline bool g_allocates = false;

template <class T>
struct ArrayAllocator {
  using value_type = T;
  ArrayAllocator() = default;
  template <class U>
  explicit ArrayAllocator(const ArrayAllocator<U>&) {}
  T* allocate(size_t count) {
    if (!g_allocates) return std::allocator<T>().allocate(count);
    auto* const array = static_cast<T*>(nupa_ccl_alloc(count * sizeof(T)));
    if (array == nullptr) throw std::bad_alloc();
    return array;
  }
  void deallocate(T* array, size_t count) {
    if (nupa_ccl_free(array) != 0) std::allocator<T>().deallocate(array, count);
  }
  bool operator==(const ArrayAllocator&) const { return true; }
};
using Bytes = std::vector<std::byte, ArrayAllocator<std::byte>>;

/// Random numbers of a type, whose sums and products neither overflow nor become NaN.
Bytes numbers(Type type, size_t elements, uint32_t seed);

/// The arrays of one operation on all ranks. Each rank can compute those of every rank.
struct Round {
  Type type;
  size_t elements;
  uint32_t seed;
  bool simple = false;  ///< numbers -1, 0 and 1, whose sums of a few are exact in every type

  Bytes of(uint32_t rank) const;
  /// Describes the operation, for a failure's message.
  std::string text(const char* what, bool in_place) const;
  nupa_ccl_type c_type() const { return static_cast<nupa_ccl_type>(type); }
  bool operator==(const Round&) const = default;
};

/// Reduces the arrays of ranks `begin` to `end` - 1.
Bytes reduced(const Round& round, const Reduction& reduction, uint32_t begin, uint32_t end,
              const std::vector<Bytes>& factors = {});

constexpr nupa_ccl_op kOps[] = {NUPA_CCL_SUM,         NUPA_CCL_PRODUCT,    NUPA_CCL_MIN,        NUPA_CCL_MAX,
                                NUPA_CCL_AVERAGE,     NUPA_CCL_BIT_AND,    NUPA_CCL_BIT_OR,     NUPA_CCL_BIT_XOR,
                                NUPA_CCL_LOGICAL_AND, NUPA_CCL_LOGICAL_OR, NUPA_CCL_LOGICAL_XOR};
/// None, one, odd numbers, a flag line's edges, a slot's edges (tests use small slots) and several slots.
constexpr size_t kSizes[] = {0, 1, 7, 14, 57, 1000, 4099};

// Each ends the rank's process where a result is wrong.

/// Operations that reduce, for one type, operator and size.
void check_reductions(Rank& rank, const Round& round, nupa_ccl_op op, bool in_place);
/// A whole number of elements for each rank.
void check_reduce_scatter(Rank& rank, const Round& whole, nupa_ccl_op op, bool in_place);
/// Operations that move equal blocks.
void check_movements(Rank& rank, const Round& round, bool in_place);
/// Blocks of different lengths, of which some are empty.
void check_uneven(Rank& rank, uint32_t seed);
/// An operator that does not commute: an affine map after another one, modulo a prime, as two halves of a word.
void check_joining(Rank& rank, size_t elements);

}  // namespace nupa::ccl
