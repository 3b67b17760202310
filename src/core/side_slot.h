// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/types.h>

#include <atomic>
#include <bit>
#include <cstddef>

#include "base/wide_word.h"

namespace nupa::core {

/// One completion of this process's own requests, beside the ring of its completion queue. The ring lies in shared
/// memory, because peers write to it; the usual completion of a send is written and read by one thread, and takes a
/// third of the instructions here. For queues whose entries raise no event and have no timestamp.
///
/// A queue pair puts a completion here only if its earlier ones were polled, and writes to the ring if the slot is in
/// use. The slot notes which entry of the ring comes after it, and a poll takes it before that entry. So completions
/// come in the order in which they were written: a send's completion comes before the answer of its receiver.
///
/// Memory order, on any processor:
/// - put() releases the completion by the state, and holds() acquires it.
/// - clear() releases the slot after the poller has read it, and the compare-exchange of put() acquires it. If two
/// queue
///   pairs try at the same time, one gets the slot.
/// - A writer that puts a completion here and the next one of the same queue pair into the ring releases both by the
///   ring's stamp. A poller that has acquired the stamp finds this one.
class SideSlot {
 public:
  /// The completion of a request of this process that succeeded.
  struct Sent {
    uint64_t wr_id;
    WcOpcode opcode;
    uint32_t byte_len;
    uint32_t qp_num;
    uint32_t position;  ///< see shm::CqEntry::sq_position
    uint64_t place;     ///< the ring's entries below this came before; as CompletionRing::next_position()
  };

  /// A writer, with the send lock of its queue pair. False: the slot is in use.
  bool put(const Sent& sent) {
    State seen = State::kEmpty;
    if (!state_.compare_exchange_strong(seen, State::kFilling, std::memory_order_acquire, std::memory_order_relaxed))
      return false;
    // Whole words, which a poll loads again: a wide load of parts that were just stored would wait for these stores.
    auto* const words = reinterpret_cast<base::WideWord*>(&completion_);
    base::store_wide(words, base::make_wide(sent.wr_id, uint64_t{static_cast<uint32_t>(sent.opcode)} << 32));
    base::store_wide(words + 1, base::make_wide(uint64_t{sent.byte_len} << 32, uint64_t{sent.qp_num} << 32));
    position_ = sent.position;
    place_ = sent.place;
    state_.store(State::kFull, std::memory_order_release);
    return true;
  }

  bool holds() const { return state_.load(std::memory_order_acquire) == State::kFull; }

  // With the queue's lock, after holds() returned true.
  const WorkCompletion& completion() const { return completion_; }
  uint32_t position() const { return position_; }
  uint64_t place() const { return place_; }
  /// Empties the slot; also in a forked child.
  void clear() { state_.store(State::kEmpty, std::memory_order_release); }

 private:
  enum class State : uint32_t { kEmpty, kFilling, kFull };

  std::atomic<State> state_{State::kEmpty};
  uint32_t position_ = 0;
  uint64_t place_ = 0;
  alignas(base::WideWord) WorkCompletion completion_{};  ///< kSuccess; the last word is always 0
};
static_assert(std::endian::native == std::endian::little && sizeof(WorkCompletion) == 48 &&
              static_cast<uint32_t>(WcStatus::kSuccess) == 0 && offsetof(WorkCompletion, status) == 8 &&
              offsetof(WorkCompletion, opcode) == 12 && offsetof(WorkCompletion, byte_len) == 20 &&
              offsetof(WorkCompletion, imm_data) == 24 && offsetof(WorkCompletion, qp_num) == 28);

}  // namespace nupa::core
