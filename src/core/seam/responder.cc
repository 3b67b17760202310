// SPDX-License-Identifier: Apache-2.0
#include "core/seam/responder.h"

#include "base/memory_fault.h"
#include "base/ordered_copy.h"

namespace nupa::core {

WcStatus ContextTarget::write(const Range& range, const Piece* pieces, uint32_t count) {
  uint64_t offset = 0;
  for (uint32_t i = 0; i < count; ++i) {
    std::byte* const to = range.at + offset;
    const Piece& piece = pieces[i];
    if (!base::try_access(to, piece.length, [&] { base::copy_in_order(to, piece.data, piece.length); }))
      return WcStatus::kRemOpErr;
    offset += piece.length;
  }
  return context_.wrote(static_cast<uint32_t>(offset)) ? WcStatus::kSuccess : failure();
}

WcStatus ContextTarget::place(const Receive&, uint64_t offset, const Piece* pieces, uint32_t count, uint64_t,
                              const std::byte** behind) {
  for (uint32_t i = 0; i < count; ++i) {
    if (!context_.place(offset, pieces[i].data, static_cast<uint32_t>(pieces[i].length), behind)) return failure();
    offset += pieces[i].length;
  }
  return WcStatus::kSuccess;
}

}  // namespace nupa::core
