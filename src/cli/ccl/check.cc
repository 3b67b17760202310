// SPDX-License-Identifier: Apache-2.0
#include "cli/ccl/check.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cli/ccl/number.h"

namespace nupa::cli::collectives {
namespace {

/// The content of an output array before the call. Hardly any input has this value.
constexpr int kUnwritten = 0xa5;
/// The distance from the start of one check to that of the next. With the period it reaches all starts.
constexpr uint64_t kStride = 131;

/// Calls `fragment`(element, position in the period, count) for those parts of an array that are parts of the period.
template <class Piece>
void for_fragments(size_t count, size_t start, const Piece& fragment) {
  for (size_t done = 0; done < count;) {
    const size_t at = (start + done) % kPeriod;
    const size_t part = std::min(kPeriod - at, count - done);
    fragment(done, at, part);
    done += part;
  }
}

bool is_right(nupa_ccl_type type, const std::byte* got, const std::byte* expected, double tolerance) {
  if (std::memcmp(got, expected, traits_of(type).size) == 0) return true;
  if (is_integer(type)) return false;
  const double is = load(type, got).number;
  const double should_be = load(type, expected).number;
  if (std::isnan(should_be)) return std::isnan(is);
  return is == should_be || std::fabs(is - should_be) <= tolerance;
}

}  // namespace

Check::Check(const Call& call, uint32_t rank, uint32_t ranks, uint64_t turn)
    : call_(call), rank_(rank), ranks_(ranks), start_(turn * kStride % kPeriod) {}

void Check::fill() const {
  const Shape& shape = call_.shape();
  const size_t size = shape.element_bytes();
  std::memset(call_.out(), kUnwritten, call_.out_count() * size);
  if (call_.in_count() == 0) return;
  const auto period = period_of(shape, rank_);
  for_fragments(call_.in_count(), start_, [&](size_t element, size_t at, size_t count) {
    std::memcpy(call_.in() + element * size, &period[at * size], count * size);
  });
}

Check::Part Check::copied(uint32_t from, size_t at, size_t its_at) const {
  return {at, call_.shape().count, period_of(call_.shape(), from), {}, (start_ + its_at) % kPeriod};
}

std::vector<Check::Part> Check::parts() const {
  const Shape& shape = call_.shape();
  const size_t count = shape.count;
  const auto reduced = [&](uint32_t begin, uint32_t end, size_t its_at) {
    Reduced all = reduce_periods(shape, begin, end, ranks_);
    return Part{0, count, std::move(all.period), std::move(all.tolerance), (start_ + its_at) % kPeriod};
  };
  std::vector<Part> parts;
  if (call_.out_count() == 0) return parts;
  switch (shape.operation) {
    case Operation::kBarrier:
      break;
    case Operation::kBroadcast:
      parts.push_back(copied(shape.root, 0, 0));
      break;
    case Operation::kScatter:
      parts.push_back(copied(shape.root, 0, rank_ * count));
      break;
    case Operation::kGather:
    case Operation::kAllGather:
      for (uint32_t from = 0; from < ranks_; ++from) parts.push_back(copied(from, from * count, 0));
      break;
    case Operation::kAllToAll:
      for (uint32_t from = 0; from < ranks_; ++from) parts.push_back(copied(from, from * count, rank_ * count));
      break;
    case Operation::kReduce:
    case Operation::kAllReduce:
      parts.push_back(reduced(0, ranks_, 0));
      break;
    case Operation::kReduceScatter:
      parts.push_back(reduced(0, ranks_, rank_ * count));
      break;
    case Operation::kScan:
      parts.push_back(reduced(0, rank_ + 1, 0));
      break;
    case Operation::kExscan:
      if (rank_ > 0) parts.push_back(reduced(0, rank_, 0));
      break;
  }
  return parts;
}

void Check::compare(const Part& part, std::string* first, size_t* wrong) const {
  const nupa_ccl_type type = call_.shape().type;
  const size_t size = call_.shape().element_bytes();
  const std::byte* const out = call_.out() + part.at * size;
  for_fragments(part.count, part.start, [&](size_t element, size_t at, size_t count) {
    // The bits are the same in nearly all cases.
    if (std::memcmp(out + element * size, &part.period[at * size], count * size) == 0) return;
    for (size_t i = 0; i < count; ++i) {
      const std::byte* const got = out + (element + i) * size;
      const std::byte* const expected = &part.period[(at + i) * size];
      if (is_right(type, got, expected, part.tolerance.empty() ? 0 : part.tolerance[at + i])) continue;
      if ((*wrong)++ == 0)
        *first = fmt::format("element {} is {}, expected {}", part.at + element + i, text_of(type, load(type, got)),
                             text_of(type, load(type, expected)));
    }
  });
}

std::string Check::verdict() const {
  std::string first;
  size_t wrong = 0;
  for (const Part& part : parts()) compare(part, &first, &wrong);
  if (wrong == 0) return "";
  return fmt::format("{} ({} of {} elements are wrong)", first, wrong, call_.out_count());
}

}  // namespace nupa::cli::collectives
