// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "ccl/error/cause.h"
#include "ccl/diagnostics/observe.h"

namespace nupa::ccl {

constexpr int32_t kAnyTag = -1;

/// A send or a receive as the program requested it.
struct MessageTask {
  /// Checking mode compares the types of the elements. A message of another type completes with EPROTO.
  static constexpr uint8_t kNoType = 0xff;

  bool is_send = false;
  uint8_t type = kNoType;
  uint32_t peer = kNoRank;  ///< receive: the source, or kNoRank for any; after completion the sender
  int32_t tag = 0;          ///< receive: may be kAnyTag; after completion the tag of the message
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;  ///< receive: size of `to`; after completion the size of the message
};

/// A message and its progress.
struct Message : MessageTask {
  Message() = default;
  explicit Message(const MessageTask& task) : MessageTask(task) {}

  size_t moved = 0;  ///< bytes that were sent or received
  int error = 0;     ///< EMSGSIZE: the message is longer than the receive; EPROTO: another type; or why all has ended
  std::atomic<bool> done{false};

  uint8_t came_type = kNoType;
  std::unique_ptr<Observed> observed;  ///< null: no observer

  void finish() {
    if (observed != nullptr) observed->event.end_ns = base::now_ns();
    done.store(true, std::memory_order_release);
  }
  bool takes(uint32_t source, int32_t its_tag) const {
    return (peer == kNoRank || peer == source) && (tag == kAnyTag || tag == its_tag);
  }
};

}  // namespace nupa::ccl
