#pragma once
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "ccl/error/cause.h"
#include "ccl/diagnostics/description.h"

namespace nupa::ccl {

/// The checking mode of a communicator: before each call ranks tell each other what it is. All of them come to the same
/// verdict, for all have the same table.
class Checker {
 public:
  /// Does a collective among the ranks, unchecked. An errno value.
  using Run = std::function<int(Call& call)>;

  Checker(uint32_t rank, uint32_t ranks, Run run) : rank_(rank), ranks_(ranks), run_(std::move(run)) {}

  /// Why all has to end: ranks do not agree (EPROTO, and who is the first that differs from most), or what telling each
  /// other has ended by; no cause: they agree. One thread at a time. When it returns EPROTO each rank has the text.
  Cause check(const Call& call, uint64_t number);
  /// Of a check that has found ranks that do not agree: who called what; else empty. Any thread.
  std::string text() const;

 private:
  int exchange(const void* mine, void* all, size_t bytes);
  /// The verdict on the table: no cause: they agree.
  Cause compare(const std::vector<Description>& table);
  bool counts_agree(const std::vector<Description>& table) const;
  /// Learns all counts, to say whose do not agree.
  Cause compare_counts(const Call& call, const Description& description);
  Cause disagree(uint32_t rank, std::string text);

  const uint32_t rank_;
  const uint32_t ranks_;
  const Run run_;
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace nupa::ccl
