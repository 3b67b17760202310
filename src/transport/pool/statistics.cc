// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/statistics.h"

#include "base/gid_text.h"

namespace nupa::pool {
namespace {

using core::StatFields;
using core::StatValue;

template <class Value>
void add(StatFields* to, const char* name, Value value) {
  to->push_back({name, StatValue{std::move(value)}});
}

}  // namespace

Statistics& Statistics::take(shm::StatisticsShared& block) {
  auto& taken = *reinterpret_cast<Statistics*>(block.bytes);
  block.transport.store(0);
  taken.peer = {};
  for (auto* number : {&taken.host, &taken.record, &taken.linked, &taken.pad}) number->store(0);
  for (auto* counter : {&taken.sent, &taken.received, &taken.resent, &taken.not_ready, &taken.absent, &taken.room_waits,
                        &taken.stray, &taken.placed, &taken.dropped})
    counter->store(0);
  block.transport.store(shm::pack_name(kTransportName));
  return taken;
}

core::Explanation explain(QpType type, const shm::StatisticsShared& block) {
  const Statistics& seen = *reinterpret_cast<const Statistics*>(block.bytes);
  core::Explanation explanation;
  StatFields ignored;
  add(&ignored, "stray", seen.stray.load());
  add(&ignored, "dropped", seen.dropped.load());
  add(&explanation.fields, "ignored", std::move(ignored));
  add(&explanation.fields, "sent", seen.sent.load());
  add(&explanation.fields, "received", seen.received.load());
  if (type == QpType::kUd) return explanation;
  explanation.peer = base::gid_text(seen.peer);
  if (seen.linked.load() != 0) {
    add(&explanation.fields, "host", uint64_t{seen.host.load()});
    add(&explanation.fields, "process", uint64_t{seen.record.load()});
  }
  add(&explanation.fields, "placed", seen.placed.load());
  add(&explanation.fields, "resent", seen.resent.load());
  add(&explanation.fields, "not_ready", seen.not_ready.load());
  add(&explanation.fields, "absent", seen.absent.load());
  add(&explanation.fields, "room_waits", seen.room_waits.load());
  return explanation;
}

}  // namespace nupa::pool
