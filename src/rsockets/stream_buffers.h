// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "rsockets/wire.h"

namespace nupa::rsockets {

/// The memory of one connection in two regions. The peer writes into the first one (receive buffer, tables). This side
/// sends from the second one, and the peer has no key for it. The kernel allocates a page at its first use.
class StreamBuffers {
 public:
  static constexpr size_t kControlBytes = sizeof(RemoteBuffer);
  /// Slots for control messages with a target buffer. They are used if the device takes less inline data.
  static constexpr uint32_t kControlSlots = 4;

  /// Returns null and sets errno on failure.
  static std::unique_ptr<StreamBuffers> make(ibv_pd* pd, uint32_t receive_bytes, uint32_t send_bytes,
                                             uint32_t mappings);
  ~StreamBuffers();
  StreamBuffers(const StreamBuffers&) = delete;
  StreamBuffers& operator=(const StreamBuffers&) = delete;

  std::byte* receive() const { return base_; }
  RemoteBuffer* targets() const { return reinterpret_cast<RemoteBuffer*>(base_ + tables_at_); }
  RemoteMapping* mappings() const { return reinterpret_cast<RemoteMapping*>(targets() + kTargets); }
  std::byte* send() const { return base_ + send_at_; }
  std::byte* control(uint32_t slot) const { return send() + send_bytes_ + slot % kControlSlots * kControlBytes; }
  uint32_t rkey() const { return remote_->rkey; }
  uint32_t lkey() const { return local_->lkey; }

 private:
  StreamBuffers() = default;

  std::byte* base_ = nullptr;
  size_t length_ = 0;
  size_t tables_at_ = 0;
  size_t send_at_ = 0;
  uint32_t send_bytes_ = 0;
  ibv_mr* remote_ = nullptr;
  ibv_mr* local_ = nullptr;
};

}  // namespace nupa::rsockets
