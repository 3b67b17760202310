// SPDX-License-Identifier: Apache-2.0
#include "ccl/diagnostics/checker.h"

#include <algorithm>
#include <cerrno>

#include "ccl/reduce/names.h"

namespace nupa::ccl {
namespace {

/// With more ranks, the counts are not exchanged: their table would be too large for one error text.
constexpr uint32_t kMostWithCounts = 1024;

std::string rank_text(uint32_t rank) { return "rank " + std::to_string(rank); }

std::string amount(uint64_t bytes, Type type) { return std::to_string(bytes / size_of(type)) + " " + name_of(type); }

/// The first rank with which most ranks agree.
uint32_t usual_rank(const std::vector<Description>& table) {
  uint32_t usual = 0;
  uint32_t most = 0;
  for (uint32_t rank = 0; rank < table.size() && 2 * most <= table.size(); ++rank) {
    const auto alike = static_cast<uint32_t>(std::count_if(
        table.begin(), table.end(), [&](const Description& other) { return other.agrees_with(table[rank]); }));
    if (alike > most) usual = rank;
    most = std::max(most, alike);
  }
  return usual;
}

}  // namespace

int Checker::exchange(const void* mine, void* all, size_t bytes) {
  Call call;
  call.operation = Operation::kAllGather;
  call.in = mine;
  call.out = all;
  call.elements = bytes;
  return run_(call);
}

Cause Checker::disagree(uint32_t rank, std::string text) {
  std::lock_guard lock(mutex_);
  text_ = std::move(text);
  return {EPROTO, rank};
}

std::string Checker::text() const {
  std::lock_guard lock(mutex_);
  return text_;
}

Cause Checker::compare(const std::vector<Description>& table) {
  const uint32_t usual = usual_rank(table);
  const Description& expected = table[usual];
  const auto differs = [&](const Description& one) { return !one.agrees_with(expected); };
  const auto first = std::find_if(table.begin(), table.end(), differs);
  if (first == table.end()) return {};
  const auto rank = static_cast<uint32_t>(first - table.begin());
  const auto others = std::count_if(first + 1, table.end(), differs);
  std::string text = rank_text(rank) + " called " + first->text() + " (its " + first->ordinal() + "), " +
                     rank_text(usual) + " " + expected.text();
  if (others > 0) text += "; " + std::to_string(others) + " more differ from " + rank_text(usual);
  return disagree(rank, std::move(text));
}

bool Checker::counts_agree(const std::vector<Description>& table) const {
  if (table[0].equal != 0) return true;
  if (has_common_counts(table[0]))
    return std::all_of(table.begin(), table.end(), [&](const Description& one) { return one.given == table[0].given; });
  uint64_t difference = 0;
  for (const Description& one : table) difference += one.given - one.taken;
  return difference == 0;
}

Cause Checker::compare_counts(const Call& call, const Description& description) {
  const std::string what = description.text() + " (the " + description.ordinal() + ")";
  if (ranks_ > kMostWithCounts) return disagree(kNoRank, what + ": ranks have counts that do not agree");
  const std::vector<uint64_t> mine = flows_of(call, rank_, ranks_);
  std::vector<uint64_t> all(mine.size() * ranks_);
  if (const int error = exchange(mine.data(), all.data(), mine.size() * sizeof mine[0]); error != 0)
    return {error, kNoRank};
  const auto type = static_cast<Type>(description.type);
  const bool common = has_common_counts(description);
  for (uint32_t here = 0; here < ranks_; ++here)
    for (uint32_t there = 0; there < ranks_; ++there) {
      const uint64_t given = all[here * mine.size() + there];
      // With common counts, the list of rank 0 is expected; otherwise, what the receiver takes from this sender.
      const uint64_t expected = common ? all[there] : all[there * mine.size() + ranks_ + here];
      if (given == expected) continue;
      if (common)
        return disagree(here, rank_text(here) + " called " + what + " with " + amount(given, type) + " of " +
                                  rank_text(there) + ", rank 0 with " + amount(expected, type));
      return disagree(description.operation == Operation::kScatter ? there : here,
                      what + ": " + rank_text(here) + " sends " + amount(given, type) + " to " + rank_text(there) +
                          ", which expects " + amount(expected, type));
    }
  return disagree(kNoRank, what + ": ranks have counts that do not agree");
}

Cause Checker::check(const Call& call, uint64_t number) {
  if (ranks_ == 1) return {};
  const Description mine = Description::of(call, number, rank_, ranks_);
  std::vector<Description> table(ranks_);
  if (const int error = exchange(&mine, table.data(), sizeof mine); error != 0) return {error, kNoRank};
  Cause cause = compare(table);
  if (!cause && !counts_agree(table)) cause = compare_counts(call, table[0]);
  if (cause.error != EPROTO || text().empty()) return cause;
  // No rank may end the communicator before all ranks have the text.
  Call barrier;
  run_(barrier);
  return cause;
}

}  // namespace nupa::ccl
