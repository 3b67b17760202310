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

/// A send or a receive as the program asks for it.
struct MessageTask {
  /// Checking mode: the type of the elements. What came of another type is EPROTO.
  static constexpr uint8_t kNoType = 0xff;

  bool is_send = false;
  uint8_t type = kNoType;
  uint32_t peer = kNoRank;  ///< receive: kNoRank is anybody; then: who sent it
  int32_t tag = 0;          ///< receive: or kAnyTag; then: what came
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;  ///< receive: room for so many; then: what came
};

/// How far it has come.
struct Message : MessageTask {
  Message() = default;
  explicit Message(const MessageTask& task) : MessageTask(task) {}

  size_t moved = 0;  ///< what has been put under way, or has come
  int error = 0;     ///< EMSGSIZE: what came has no room; or why all has ended
  std::atomic<bool> done{false};

  uint8_t came_type = kNoType;
  std::unique_ptr<Observed> observed;  ///< null: nobody observes

  void finish() {
    if (observed != nullptr) observed->event.end_ns = base::now_ns();
    done.store(true, std::memory_order_release);
  }
  bool takes(uint32_t source, int32_t its_tag) const {
    return (peer == kNoRank || peer == source) && (tag == kAnyTag || tag == its_tag);
  }
};

}  // namespace nupa::ccl
