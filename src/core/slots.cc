// SPDX-License-Identifier: Apache-2.0
#include "core/slots.h"

#include <cerrno>
#include <new>

#include "base/log.h"

namespace nupa::core {

Result<uint32_t> Slots::take_qp() {
  if (const int64_t index = qps_.indices().take(); index >= 0) return static_cast<uint32_t>(index);
  std::lock_guard lock(mutex_);
  // Another thread may have taken a slot meanwhile.
  if (const int64_t index = qps_.indices().take(); index >= 0) return static_cast<uint32_t>(index);
  if (auto taken = take_slot(); !taken) return tl::unexpected(taken.error());
  if (const int64_t index = qps_.indices().take(); index >= 0) return static_cast<uint32_t>(index);
  return fail(ENOMEM, "no memory for a queue pair number");
}

Result<void> Slots::take_slot() {
  const uint32_t count = qps_.slot_count();
  if (count == shm::kMaxBanks) return fail(ENOMEM, "all ", shm::kMaxQp, " queue pairs of this process are in use");
  // Everything that can fail is done before this process owns the slot.
  const auto slot = node_.take_slot([this](uint32_t further) -> Result<bool> {
    try {
      qps_.prepare(further);
      return transports_.reserve_further(further);
    } catch (const std::bad_alloc&) {
      return fail(ENOMEM, "no memory for a further slot");
    }
  });
  if (!slot) {
    const Error& why = slot.error();
    NUPA_WARN("no further queue pairs: this process has %u slots of %u queue pairs and cannot take another slot: %s",
              count, shm::kSlotQp, why.what());
    return fail(why.code(), "all ", count * shm::kSlotQp,
                " queue pairs of this process are in use, and it cannot take another slot: ", why.what());
  }
  transports_.extend(*slot);
  qps_.add_slot(*slot);
  NUPA_INFO("took slot %u for more queue pairs", *slot);
  return {};
}

}  // namespace nupa::core
