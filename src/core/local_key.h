// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/seam/request.h"
#include "shm/layout.h"

namespace nupa::core {

/// Finds the memory of a list's entry in this process, if its key allows `rights` in protection domain `pd` (IBTA
/// 10.6.3). Returns kSuccess or kLocProtErr.
inline WcStatus find_local(const shm::MrShared* keys, uint32_t pd, const Sge& sge, uint32_t rights, Piece* piece) {
  const uint32_t index = shm::key_index(sge.lkey);
  if (__builtin_expect(sge.lkey == 0 || index >= shm::kMaxMr, 0)) return WcStatus::kLocProtErr;
  const shm::MrShared& mr = keys[index];
  const uint64_t offset = sge.addr - mr.start;
  if (__builtin_expect(mr.key.load(std::memory_order_acquire) != sge.lkey || mr.pd != pd || offset > mr.length ||
                           sge.length > mr.length - offset || (mr.access & rights) != rights ||
                           mr.kind == static_cast<uint32_t>(shm::MrKind::kWindow),
                       0))
    return WcStatus::kLocProtErr;
  const bool null = mr.kind == static_cast<uint32_t>(shm::MrKind::kNull);
  *piece = {null ? nullptr : reinterpret_cast<std::byte*>(sge.addr + mr.delta), sge.length};
  return WcStatus::kSuccess;
}

}  // namespace nupa::core
