// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include <nupa/result.h>

#include "copy/copy_engine.h"
#include "copy/work_queue.h"

namespace nupa::copy {

/// The words of NUPA_COPY_ENGINE, in the order of base/settings_table.h.
enum class Kind : uint8_t { kAuto, kNone, kThread, kDsa };

struct Choice {
  Kind kind = Kind::kAuto;
  uint64_t least_bytes = 0;  ///< length of the shortest request that uses the engine
  uint32_t threads = 0;      ///< of the thread engine
};

/// Reads NUPA_COPY_ENGINE, NUPA_COPY_ENGINE_BYTES and NUPA_COPY_THREADS. EINVAL: one of them has a wrong value.
Result<Choice> chosen_engine();

/// Makes the engine. Null: there is none, by choice or because kAuto finds no accelerator. ENODEV: the accelerator that
/// was chosen by name cannot be used, with the reason.
Result<std::unique_ptr<CopyEngine>> make_engine(const Choice& choice, Hooks hooks, const QueuePlaces& places = {});

/// The engine that a process of this user would use, and the reason, for `nupa doctor`.
struct Report {
  enum class Level : uint8_t { kFine, kNote, kProblem };
  Level level = Level::kFine;
  std::string found;
  std::string remedy;
};
Report report(const Choice& choice, const QueuePlaces& places = {});

}  // namespace nupa::copy
