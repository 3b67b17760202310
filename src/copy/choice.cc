// SPDX-License-Identifier: Apache-2.0
#include "copy/choice.h"

#include <sched.h>

#include <utility>

#include "base/log.h"
#include "base/settings.h"
#include "copy/dsa_engine.h"
#include "copy/thread_engine.h"

namespace nupa::copy {

namespace {

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/// The reasons why no work queue can be used, or the name of the first that can.
struct Search {
  std::string usable;
  std::string obstacles;
};
Search search(bool dedicated, const QueuePlaces& places) {
  Search found;
  for (const QueueInfo& info : list_work_queues(places)) {
    std::string obstacle = info.obstacle;
    if (obstacle.empty() && !info.shared && !dedicated) obstacle = "dedicated to one process";
    if (obstacle.empty()) {
      found.usable = info.name;
      return found;
    }
    found.obstacles += (found.obstacles.empty() ? "" : "; ") + info.name + ": " + obstacle;
  }
  if (found.obstacles.empty()) found.obstacles = "no work queue of Intel DSA";
  return found;
}

}  // namespace

Result<Choice> chosen_engine() {
  const auto word = base::word_setting("NUPA_COPY_ENGINE");
  if (!word) return tl::unexpected(word.error());
  const auto bytes = base::number_setting("NUPA_COPY_ENGINE_BYTES");
  if (!bytes) return tl::unexpected(bytes.error());
  const auto threads = base::number_setting("NUPA_COPY_THREADS");
  if (!threads) return tl::unexpected(threads.error());
  return Choice{static_cast<Kind>(*word), *bytes, static_cast<uint32_t>(*threads)};
}

Result<std::unique_ptr<CopyEngine>> make_engine(const Choice& choice, Hooks hooks, const QueuePlaces& places) {
  if (choice.kind == Kind::kNone) return nullptr;
  if (choice.kind == Kind::kThread) return std::make_unique<ThreadEngine>(choice.threads, std::move(hooks));
  const bool by_name = choice.kind == Kind::kDsa;
  auto queue = open_work_queue(by_name, places);
  if (!queue) {
    if (by_name) return fail(ENODEV, "NUPA_COPY_ENGINE=dsa: ", queue.error().what());
    NUPA_DEBUG("no copy engine: %s", queue.error().what());
    return nullptr;
  }
  hooks.writes_unguarded();
  return std::make_unique<DsaEngine>(std::move(*queue));
}

Report report(const Choice& choice, const QueuePlaces& places) {
  using Level = Report::Level;
  if (choice.kind == Kind::kNone) return {Level::kFine, "none (NUPA_COPY_ENGINE=none)", ""};
  if (choice.kind == Kind::kThread) {
    if (usable_processors() > 1) return {Level::kFine, "thread", ""};
    return {Level::kNote, "thread, on the only processor",
            "a thread that copies takes the processor away: unset NUPA_COPY_ENGINE"};
  }
  const bool by_name = choice.kind == Kind::kDsa;
  const Search found = search(by_name, places);
  if (!found.usable.empty()) return {Level::kFine, "dsa, " + found.usable, ""};
  if (by_name) return {Level::kProblem, "dsa: " + found.obstacles, "correct the work queue, or unset NUPA_COPY_ENGINE"};
  return {Level::kFine, "none: " + found.obstacles + " (NUPA_COPY_ENGINE=thread has threads copy)", ""};
}

}  // namespace nupa::copy
