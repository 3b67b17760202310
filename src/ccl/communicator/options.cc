// SPDX-License-Identifier: Apache-2.0
#include "ccl/communicator/options.h"

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/clock.h"
#include "base/settings.h"
#include "ccl/planner/planner.h"
#include "ccl/reduce/reduce.h"

namespace nupa::ccl {
namespace {

static_assert(base::find_setting("NUPA_CCL_MAPPED_RANKS")->most == kMaxSources);

/// Adds the names of the operation's algorithms for one kind of group.
template <class Group>
void add_names(Operation operation, std::set<std::string>* names) {
  for (const Algorithm<Group>& one : algorithms<Group>())
    if (one.operation == operation) names->insert(one.name);
}

/// Returns the words that may follow "OPERATION=", or nothing for an unknown operation.
std::set<std::string> names_of_algorithms(const std::string& operation) {
  std::set<std::string> names;
  for (uint32_t i = 0; i < kOperations; ++i) {
    if (operation != name_of(static_cast<Operation>(i))) continue;
    add_names<ShmGroup>(static_cast<Operation>(i), &names);
    add_names<ChannelGroup>(static_cast<Operation>(i), &names);
    add_names<HierarchicalGroup>(static_cast<Operation>(i), &names);
  }
  return names;
}

/// Checks the operations and algorithms of "all_reduce=ring,broadcast=binomial". An empty name chooses none.
Result<void> check_algorithms(const std::string& text) {
  for (size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, end - at);
    const size_t equals = std::min(one.find('='), one.size());
    const std::set<std::string> names = names_of_algorithms(one.substr(0, equals));
    if (equals == one.size() || names.empty())
      return fail(EINVAL, "NUPA_CCL_ALGO=", text, ": expected OPERATION=ALGORITHM,... such as all_reduce=ring");
    if (equals + 1 == one.size() || names.contains(one.substr(equals + 1))) continue;
    std::string expected;
    for (const std::string& name : names) expected += (expected.empty() ? "" : ", ") + name;
    return fail(EINVAL, "NUPA_CCL_ALGO=", text, ": expected for ", one.substr(0, equals), ": ", expected);
  }
  return {};
}

}  // namespace

Result<CommunicatorOptions> CommunicatorOptions::from_environment() {
  CommunicatorOptions options;
  const auto seconds = base::number_setting("NUPA_CCL_TIMEOUT");
  if (!seconds) return tl::unexpected(seconds.error());
  options.limit_ns = static_cast<int64_t>(*seconds) * base::kNsPerSecond;
  const auto slot = base::number_setting("NUPA_CCL_SLOT_BYTES");
  if (!slot) return tl::unexpected(slot.error());
  options.slot_bytes = (*slot + kPage - 1) / kPage * kPage;
  const auto mapped = base::number_setting("NUPA_CCL_MAPPED_RANKS");
  if (!mapped) return tl::unexpected(mapped.error());
  options.mapped_ranks = static_cast<uint32_t>(*mapped);
  const auto checks = base::boolean_setting("NUPA_CCL_CHECK");
  if (!checks) return tl::unexpected(checks.error());
  options.checks = *checks;
  const auto deterministic = base::boolean_setting("NUPA_CCL_DETERMINISTIC");
  if (!deterministic) return tl::unexpected(deterministic.error());
  options.deterministic = *deterministic;
  const auto reads = base::boolean_setting("NUPA_CCL_READS");
  if (!reads) return tl::unexpected(reads.error());
  options.reads = *reads;
  if (const char* const text = base::text_setting("NUPA_CCL_ALGO")) options.algorithms = text;
  if (const auto known = check_algorithms(options.algorithms); !known) return tl::unexpected(known.error());
  // The trace is opened when all ranks have met, which is late for an error.
  if (const auto trace = base::check_setting(*base::find_setting("NUPA_CCL_TRACE")); !trace)
    return tl::unexpected(trace.error());
  return options;
}

std::string CommunicatorOptions::wanted(Operation operation) const {
  if (algorithms.empty()) return "";
  const std::string key = std::string(name_of(operation)) + "=";
  size_t at = 0;
  while (at < algorithms.size()) {
    const size_t end = std::min(algorithms.find(',', at), algorithms.size());
    const std::string one = algorithms.substr(at, end - at);
    if (one.starts_with(key)) return one.substr(key.size());
    at = end + 1;
  }
  return "";
}

}  // namespace nupa::ccl
