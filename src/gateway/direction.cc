// SPDX-License-Identifier: Apache-2.0
#include "gateway/direction.h"

#include <array>

#include "core/relay_access.h"

namespace nupa::gateway {
namespace {

/// Parts that are moved while the send lock of the first queue pair is held.
constexpr size_t kBatch = 32;

}  // namespace

Result<std::unique_ptr<Direction>> Direction::create(Device& device, ProtectionDomain& pd, uint64_t window,
                                                     std::function<void()> on_work) {
  std::unique_ptr<Direction> direction(new Direction);
  auto memory = device.alloc_mr(pd, 2 * window, access::kLocalWrite);
  if (!memory) return tl::unexpected(memory.error());
  direction->memory_ = std::move(*memory);
  direction->relay_ =
      std::make_unique<RequestRelay>(static_cast<std::byte*>(direction->memory_->addr()), window, std::move(on_work));
  return direction;
}

void Direction::post_parts() {
  while (posted_.size() < kDepth) {
    std::array<RequestRelay::Part, kBatch> parts;
    size_t count = 0;
    {
      const core::RelayLock lock(*from_);
      for (; count < parts.size() && posted_.size() + count < kDepth; ++count) {
        const auto part = relay_->next();
        if (!part) break;
        parts[count] = *part;
      }
    }
    if (count == 0) return;
    bool refused = false;
    to_->post_begin();
    for (size_t i = 0; i < count && !refused; ++i) {
      const RequestRelay::Part& part = parts[i];
      std::array<Sge, 2> pieces;
      SendWr wr;
      wr.wr_id = reinterpret_cast<uint64_t>(this);
      wr.sg_list = pieces.data();
      wr.num_sge = static_cast<uint32_t>(relay_->pieces_of(part, pieces, memory_->lkey()));
      wr.opcode = part.opcode;
      wr.flags = send_flag::kSignaled | (part.solicited ? send_flag::kSolicited : 0);
      wr.imm_or_rkey = part.imm_or_rkey;
      wr.rkey = part.rkey;
      wr.remote_addr = part.address;
      wr.compare_add = part.compare_add;
      wr.swap = part.swap;
      posted_.push_back(part);
      refused = to_->post(wr) != 0;
    }
    to_->post_end();
    // There is no memory: the parts that were not posted never end, and the peer's retries end the connection.
    if (refused) return;
  }
}

void Direction::end_oldest(WcStatus status) {
  if (posted_.empty()) return;
  relay_->end(posted_.front(), status);
  posted_.pop_front();
}

void Direction::settle() {
  if (ended_.empty()) return;
  {
    core::RelayLock lock(*from_);
    for (const WcStatus status : ended_) end_oldest(status);
    lock.answer();
  }
  ended_.clear();
  post_parts();
}

void Direction::look() {
  bool awaits_receive;
  {
    const core::RelayLock lock(*to_);
    awaits_receive = lock.awaits_receive();
  }
  core::RelayLock lock(*from_);
  if (relay_->note_waiting(awaits_receive)) lock.answer();
}

}  // namespace nupa::gateway
