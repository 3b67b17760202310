// SPDX-License-Identifier: Apache-2.0
#include "host/peer.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include "progress/event_catch.h"
#include "progress/wake_up.h"

namespace nupa::host {

int Peer::map_region(void* at, uint64_t bytes, uint64_t offset) {
  std::lock_guard lock(region_mutex_);
  if (!region_fd_) return ESRCH;
  // Pages behind the file's end would raise SIGBUS. The file only grows (files are sealed).
  struct stat file;
  if (fstat(region_fd_.get(), &file) != 0) return errno;
  const auto size = static_cast<uint64_t>(file.st_size);
  if (bytes > size || offset > size - bytes) return ERANGE;
  void* const mapped =
      mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, region_fd_.get(), static_cast<off_t>(offset));
  return mapped == MAP_FAILED ? errno : 0;
}

void Peer::signal_wakeup_fd() {
  std::lock_guard lock(channels_lock_);
  [[maybe_unused]] const bool added = progress::WakeUp::add_to(wakeup_fd_.get());
}

Peer::ChannelBlock* Peer::block_of(uint32_t index) {
  auto& place = channels_[index / ChannelBlock::kChannels];
  {
    std::lock_guard lock(channels_lock_);
    if (place != nullptr || channels_closed_) return place.get();
  }
  // Without the lock, because zeroing a block takes microseconds.
  std::unique_ptr<ChannelBlock> made(new (std::nothrow) ChannelBlock);
  if (made == nullptr) return nullptr;
  made->fds.fill(-1);
  std::lock_guard lock(channels_lock_);
  if (place == nullptr && !channels_closed_) place = std::move(made);
  return place.get();
}

bool Peer::signal_channel(uint32_t index) {
  if (index >= kMaxChannels) return false;
  auto& place = channels_[index / ChannelBlock::kChannels];
  std::unique_lock lock(channels_lock_);
  if (place == nullptr) {
    lock.unlock();
    if (block_of(index) == nullptr) return false;
    lock.lock();
    if (place == nullptr) return false;  // it exited meanwhile
  }
  const int fd = place->fds[index % ChannelBlock::kChannels];
  if (fd >= 0) return progress::EventCatch::keep(fd) || progress::WakeUp::add_to(fd);
  const bool ask = want_channel(*place, index % ChannelBlock::kChannels);
  lock.unlock();
  if (!ask) return false;
  asker_.load(std::memory_order_acquire)->channels_are_wanted();
  return false;
}

bool Peer::want_channel(ChannelBlock& block, uint32_t index) const {
  const uint64_t bit = uint64_t{1} << (index % 64);
  if (asker_.load(std::memory_order_acquire) == nullptr || self_ || (block.asked[index / 64] & bit) != 0) return false;
  block.asked[index / 64] |= bit;
  block.wanted[index / 64] |= bit;
  return true;
}

std::vector<uint32_t> Peer::take_wanted() {
  std::vector<uint32_t> wanted;
  for (uint32_t first = 0; first < kMaxChannels; first += ChannelBlock::kChannels) {
    ChannelBlock::Bits bits{};
    {
      std::lock_guard lock(channels_lock_);
      if (ChannelBlock* const block = channels_[first / ChannelBlock::kChannels].get(); block != nullptr)
        std::swap(bits, block->wanted);
    }
    for (uint32_t word = 0; word < bits.size(); ++word)
      for (; bits[word] != 0; bits[word] &= bits[word] - 1)
        wanted.push_back(first + word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits[word])));
  }
  return wanted;
}

void Peer::forget_asked() {
  std::lock_guard lock(channels_lock_);
  for (auto& block : channels_)
    if (block != nullptr) block->asked = {};
}

namespace {

/// Returns 1/part of the descriptors that this process may have.
uint32_t part_of_descriptors(uint32_t part) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<uint32_t>(std::min<rlim_t>(limit.rlim_cur / part, UINT32_MAX));
}

}  // namespace

uint32_t Peer::most_channels_held() { return part_of_descriptors(kPartOfDescriptors); }

uint32_t Peer::most_peers() { return part_of_descriptors(2 * kDescriptors); }

Peer::~Peer() {
  if (!self_) close_all(channels_);
}

void Peer::close_all(Channels& channels) {
  for (const auto& block : channels) {
    if (block == nullptr) continue;
    for (const int fd : block->fds) {
      if (fd < 0) continue;
      ::close(fd);
      --channels_held_;
    }
  }
}

void Peer::let_go() { file_->let_go(); }

bool Peer::mark_exited() {
  if (tables_.header->closing.load() != 0) mark_polite();
  if (!alive_.exchange(false)) return false;
  if (self_) return true;
  file_->close_file();
  {
    std::lock_guard lock(region_mutex_);
    region_fd_.reset();
  }
  // There may be thousands of descriptors, and each close() is a system call, so threads that raise events do not wait
  // for it.
  base::UniqueFd wakeup_fd;
  Channels channels;
  {
    std::lock_guard lock(channels_lock_);
    wakeup_fd = std::move(wakeup_fd_);
    channels.swap(channels_);
    channels_closed_ = true;
  }
  close_all(channels);
  return true;
}

void Peer::set_channel(uint32_t index, int fd) {
  [[maybe_unused]] const auto* const there = block_of(index);
  std::lock_guard lock(channels_lock_);
  ChannelBlock* const block = channels_[index / ChannelBlock::kChannels].get();
  if (block == nullptr) {
    if (fd >= 0 && !self_) ::close(fd);
    return;
  }
  const uint32_t place = index % ChannelBlock::kChannels;
  const int previous = std::exchange(block->fds[place], fd);
  block->asked[place / 64] &= ~(uint64_t{1} << (place % 64));
  if (self_) return;
  if (fd >= 0) ++channels_held_;
  if (previous < 0) return;
  ::close(previous);
  --channels_held_;
}

}  // namespace nupa::host
