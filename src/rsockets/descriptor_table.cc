// SPDX-License-Identifier: Apache-2.0
#include "rsockets/descriptor_table.h"

#include <unistd.h>

#include <cerrno>
#include <new>

#include "progress/lifecycle.h"
#include "progress/waiter.h"

namespace nupa::rsockets {
namespace {

/// The interval at which close() checks whether the last call has returned.
constexpr int64_t kCloseLookNs = 200'000;
constexpr int kCloseSpins = 1000;

}  // namespace

DescriptorTable& DescriptorTable::instance() {
  // Never destroyed: at exit other threads may still be inside.
  struct Forked final : progress::ForkParticipant {
    DescriptorTable table;
    void before_fork() override {}
    void in_parent() override {}
    bool in_child() override {
      table.forget_calls();
      return true;
    }
  };
  static auto* made = [] {
    auto* forked = new Forked;
    progress::join_forks(progress::ForkStage::kDescriptors, forked);
    return forked;
  }();
  return made->table;
}

DescriptorTable::Lease::~Lease() {
  if (slot_ != nullptr) slot_->in_use[static_cast<uint32_t>(use_)].value.fetch_sub(1, std::memory_order_release);
}

DescriptorTable::Slot* DescriptorTable::slot(int fd) const {
  const auto index = static_cast<uint32_t>(fd);
  if (index >= kChunk * kChunks) return nullptr;
  Slot* chunk = chunks_[index / kChunk].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : &chunk[index % kChunk];
}

DescriptorTable::Lease DescriptorTable::lease(int fd, Use use) {
  Slot* found = slot(fd);
  if (found == nullptr || found->socket.load(std::memory_order_relaxed) == nullptr) return {};
  auto& count = found->in_use[static_cast<uint32_t>(use)].value;
  count.fetch_add(1, std::memory_order_seq_cst);
  // The count is raised before this check. close() removes the rsocket first and then reads the count, so one of the
  // two sees the other.
  Socket* socket = found->socket.load(std::memory_order_seq_cst);
  if (socket != nullptr) return Lease(found, socket, use);
  count.fetch_sub(1, std::memory_order_release);
  return {};
}

bool DescriptorTable::contains(int fd) const {
  const Slot* found = slot(fd);
  return found != nullptr && found->socket.load(std::memory_order_acquire) != nullptr;
}

int DescriptorTable::add(std::unique_ptr<Socket> socket) {
  const auto index = static_cast<uint32_t>(socket->fd());
  if (index >= kChunk * kChunks) return -EMFILE;
  auto& place = chunks_[index / kChunk];
  if (place.load(std::memory_order_acquire) == nullptr) {
    Slot* fresh = new (std::nothrow) Slot[kChunk];
    if (fresh == nullptr) return -ENOMEM;
    Slot* expected = nullptr;
    if (!place.compare_exchange_strong(expected, fresh)) delete[] fresh;
  }
  slot(static_cast<int>(index))->socket.store(socket.release(), std::memory_order_release);
  return 0;
}

int DescriptorTable::close(int fd) {
  Slot* found = slot(fd);
  Socket* socket = found == nullptr ? nullptr : found->socket.exchange(nullptr, std::memory_order_seq_cst);
  if (socket == nullptr) return -EBADF;
  if (socket->inherited()) {
    ::close(fd);
    return 0;
  }
  socket->close();
  for (const Count& count : found->in_use) {
    for (int turn = 0; count.value.load(std::memory_order_seq_cst) != 0; ++turn) {
      if (turn < kCloseSpins) {
        progress::relax();
      } else {
        socket->observers().notify();
        progress::sleep_for(kCloseLookNs);
      }
    }
  }
  delete socket;
  return 0;
}

void DescriptorTable::forget_calls() {
  for (auto& chunk : chunks_) {
    Slot* slots = chunk.load(std::memory_order_relaxed);
    if (slots == nullptr) continue;
    for (uint32_t i = 0; i < kChunk; ++i) {
      for (Count& count : slots[i].in_use) {
        // Counts of zero are not written, so that the child keeps sharing their pages with the parent.
        if (count.value.load(std::memory_order_relaxed) != 0) count.value.store(0, std::memory_order_relaxed);
      }
    }
  }
}

void DescriptorTable::forget_all() {
  for (auto& chunk : chunks_) {
    Slot* slots = chunk.load(std::memory_order_relaxed);
    if (slots == nullptr) continue;
    for (uint32_t i = 0; i < kChunk; ++i) slots[i].socket.store(nullptr, std::memory_order_relaxed);
  }
}

}  // namespace nupa::rsockets
