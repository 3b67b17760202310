// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "cli/ccl/check.h"
#include "cli/ccl/number.h"

namespace nupa::cli::collectives {
namespace {

/// The splitmix64 generator.
uint64_t random_bits(uint64_t seed) {
  seed += 0x9e3779b97f4a7c15;
  seed = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9;
  seed = (seed ^ seed >> 27) * 0x94d049bb133111eb;
  return seed ^ seed >> 31;
}

Element input(const Shape& shape, uint64_t random) {
  const uint64_t choice = random >> 32;
  if (is_integer(shape.type)) {
    const bool is_logical = shape.op >= NUPA_CCL_LOGICAL_AND;
    return {.bits = is_logical && choice % 2 == 0 ? 0 : random};
  }
  // The products of many ranks stay near 1.
  if (shape.op == NUPA_CCL_PRODUCT)
    return {.number = std::ldexp(choice % 2 == 0 ? 1 : -1, static_cast<int>(random % 3) - 1)};
  // Every format represents these numbers exactly, and float32 represents the sums of many.
  constexpr int kMost = 7;
  constexpr double kStep = 0.25;
  return {.number = kStep * (static_cast<int>(choice % (2 * kMost + 1)) - kMost)};
}

}  // namespace

std::vector<std::byte> period_of(const Shape& shape, uint32_t rank) {
  const size_t size = shape.element_bytes();
  std::vector<std::byte> period(kPeriod * size);
  for (size_t i = 0; i < kPeriod; ++i)
    store(shape.type, input(shape, random_bits(uint64_t{rank} << 32 | i)), &period[i * size]);
  return period;
}

Reduced reduce_periods(const Shape& shape, uint32_t begin, uint32_t end, uint32_t ranks) {
  const size_t size = shape.element_bytes();
  std::vector<Element> values(kPeriod);
  std::vector<double> magnitudes(kPeriod);  // of the sums so far, which limit the rounding errors
  for (uint32_t rank = begin; rank < end; ++rank) {
    const auto period = period_of(shape, rank);
    for (size_t i = 0; i < kPeriod; ++i) {
      const Element next = load(shape.type, &period[i * size]);
      values[i] = rank == begin ? next : combine(shape.type, shape.op, values[i], next);
      magnitudes[i] = std::max(magnitudes[i] + std::fabs(next.number), std::fabs(values[i].number));
    }
  }
  Reduced result{std::vector<std::byte>(kPeriod * size), {}};
  const bool rounds = !is_integer(shape.type) && shape.op != NUPA_CCL_MIN && shape.op != NUPA_CCL_MAX;
  if (rounds) result.tolerance.resize(kPeriod);
  for (size_t i = 0; i < kPeriod; ++i) {
    if (shape.op == NUPA_CCL_AVERAGE) values[i] = divide(shape.type, values[i], ranks);
    std::byte* const to = &result.period[i * size];
    store(shape.type, values[i], to);
    if (!rounds) continue;
    const double on_the_way = (end - begin) * std::min(epsilon(NUPA_CCL_FLOAT32), epsilon(shape.type)) * magnitudes[i];
    const double at_last =
        epsilon(shape.type) * std::max(std::fabs(load(shape.type, to).number), smallest_normal(shape.type));
    result.tolerance[i] = on_the_way + at_last;
  }
  return result;
}

}  // namespace nupa::cli::collectives
