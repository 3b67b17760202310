// SPDX-License-Identifier: Apache-2.0
#include "progress/late_events.h"

#include <array>
#include <utility>

namespace nupa::progress {
namespace {

struct Event {
  LateEvents::Raise raise;
  void* owner;
  uint32_t event;
};
/// A queue pair has two completion queues; with XRC each of its messages may have another one.
struct Kept {
  bool waits;
  uint32_t count;
  std::array<Event, 4> events;
};
[[gnu::tls_model("initial-exec")]] constinit thread_local Kept t_kept{};

}  // namespace

void LateEvents::begin() { t_kept.waits = true; }

bool LateEvents::begun() { return t_kept.waits; }

void LateEvents::end() {
  t_kept.waits = false;
  const uint32_t count = std::exchange(t_kept.count, 0);
  for (uint32_t i = 0; i < count; ++i) t_kept.events[i].raise(t_kept.events[i].owner, t_kept.events[i].event);
}

bool LateEvents::keep(Raise raise, void* owner, uint32_t event) {
  if (!t_kept.waits || t_kept.count == t_kept.events.size()) return false;
  t_kept.events[t_kept.count++] = {raise, owner, event};
  return true;
}

}  // namespace nupa::progress
