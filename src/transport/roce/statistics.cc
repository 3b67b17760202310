// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/statistics.h"

#include <algorithm>

#include "base/gid_text.h"

namespace nupa::roce {
namespace {

using core::StatFields;
using core::StatList;
using core::StatValue;

std::string name_of(PathHealth health) {
  switch (health) {
    case PathHealth::kUnproven:
      return "unproven";
    case PathHealth::kAlive:
      return "alive";
    case PathHealth::kDead:
      return "dead";
  }
  return "?";
}

template <class Value>
void add(StatFields* to, const char* name, Value value) {
  to->push_back({name, StatValue{std::move(value)}});
}

StatFields fields_of(const PathStatistics& path) {
  const uint64_t window = path.window.load();
  const uint64_t ports = path.ports.load();
  StatFields fields;
  add(&fields, "address", base::gid_text(path.to));
  add(&fields, "port", ports & 0xffff);
  add(&fields, "from_address", base::gid_text(path.from));
  add(&fields, "from_port", ports >> 16);
  add(&fields, "health", name_of(static_cast<PathHealth>(path.health.load())));
  add(&fields, "round_trip_us", static_cast<double>(path.round_trip_ns.load()) / 1000);
  if (window == ~uint64_t{0})
    add(&fields, "window", std::monostate{});
  else
    add(&fields, "window", window);
  add(&fields, "in_flight", path.in_flight.load());
  add(&fields, "rate", path.rate.load());
  add(&fields, "ecn_marked", path.marked.load());
  return fields;
}

StatFields ignored_by(const Statistics& seen) {
  StatFields fields;
  add(&fields, "unexpected_packets", seen.unexpected_packets.load());
  add(&fields, "duplicates", seen.duplicates.load());
  add(&fields, "stray", seen.stray.load());
  add(&fields, "dropped", seen.dropped.load());
  return fields;
}

StatFields resent_by(const Statistics& seen) {
  StatFields fields;
  add(&fields, "sequence", seen.resent_sequence.load());
  add(&fields, "selective", seen.resent_selective.load());
  add(&fields, "timeout", seen.resent_timeout.load());
  return fields;
}

}  // namespace

Statistics& Statistics::take(shm::StatisticsShared& block) {
  auto& taken = *reinterpret_cast<Statistics*>(block.bytes);
  block.transport.store(0);
  for (auto* flag : {&taken.paths, &taken.standard}) flag->store(0);
  for (auto* counter : {&taken.resent_sequence, &taken.resent_selective, &taken.resent_timeout,
                        &taken.unexpected_packets, &taken.duplicates, &taken.stray, &taken.dropped})
    counter->store(0);
  block.transport.store(shm::pack_name(kTransportName));
  return taken;
}

core::Explanation explain(QpType type, const shm::StatisticsShared& block) {
  const Statistics& seen = *reinterpret_cast<const Statistics*>(block.bytes);
  core::Explanation explanation;
  add(&explanation.fields, "ignored", ignored_by(seen));
  if (type == QpType::kUd) return explanation;
  explanation.peer = base::gid_text(seen.path[0].to);
  StatList paths;
  const uint32_t count = std::min(seen.paths.load(), kMaxPaths);
  for (const PathStatistics* path = seen.path; path != seen.path + count; ++path) paths.push_back({fields_of(*path)});
  add(&explanation.fields, "paths", std::move(paths));
  add(&explanation.fields, "standard_peer", seen.standard.load() != 0);
  add(&explanation.fields, "resent", resent_by(seen));
  return explanation;
}

}  // namespace nupa::roce
