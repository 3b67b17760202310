#include "cm/peer.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

namespace nupa::cm {

int Peer::map_region(void* at, uint64_t bytes, uint64_t offset) {
  std::lock_guard lock(region_mutex_);
  if (!region_fd_) return ESRCH;
  // Pages behind its end would be a SIGBUS. It only grows (files are sealed).
  struct stat file;
  if (fstat(region_fd_.get(), &file) != 0) return errno;
  const auto size = static_cast<uint64_t>(file.st_size);
  if (bytes > size || offset > size - bytes) return ERANGE;
  void* const mapped =
      mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, region_fd_.get(), static_cast<off_t>(offset));
  return mapped == MAP_FAILED ? errno : 0;
}

void Peer::ring_doorbell() {
  const uint64_t one = 1;
  std::lock_guard lock(channels_lock_);
  [[maybe_unused]] const ssize_t written = ::write(doorbell_.get(), &one, sizeof one);
}

bool Peer::signal_channel(uint32_t index) {
  if (index >= kMaxChannels) return false;
  {
    std::lock_guard lock(channels_lock_);
    if (channel_fds_ == nullptr) return false;
    const int fd = (*channel_fds_)[index].load(std::memory_order_relaxed);
    const uint64_t one = 1;
    if (fd >= 0) return ::write(fd, &one, sizeof one) == sizeof one;
  }
  want_channel(index);
  return false;
}

void Peer::want_channel(uint32_t index) {
  Asker* const asker = asker_.load(std::memory_order_acquire);
  const uint64_t bit = uint64_t{1} << (index % 64);
  if (asker == nullptr || self_ || (asked_[index / 64].fetch_or(bit) & bit) != 0) return;
  wanted_[index / 64].fetch_or(bit);
  asker->channels_are_wanted();
}

void Peer::forget_asked() {
  for (auto& word : asked_) word.store(0);
}

uint32_t Peer::most_channels_held() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<uint32_t>(std::min<rlim_t>(limit.rlim_cur / kPartOfDescriptors, UINT32_MAX));
}

Peer::~Peer() {
  if (!self_) close_channels();
}

void Peer::close_channels() {
  if (channel_fds_ == nullptr) return;
  for (auto& fd : *channel_fds_)
    if (fd.load() >= 0) {
      ::close(fd.load());
      --channels_held_;
    }
  channel_fds_.reset();
}

void Peer::let_go() { file_->let_go(); }

bool Peer::mark_gone() {
  if (tables_.header->closing.load() != 0) mark_polite();
  if (!alive_.exchange(false)) return false;
  if (self_) return true;
  file_->close_file();
  {
    std::lock_guard lock(region_mutex_);
    region_fd_.reset();
  }
  std::lock_guard lock(channels_lock_);
  doorbell_.reset();
  close_channels();
  return true;
}

void Peer::set_channel(uint32_t index, int fd) {
  std::lock_guard lock(channels_lock_);
  if (!alive() && !self_) {
    if (fd >= 0) ::close(fd);
    return;
  }
  const int previous = (*channel_fds_)[index].exchange(fd, std::memory_order_relaxed);
  asked_[index / 64].fetch_and(~(uint64_t{1} << (index % 64)));
  if (self_) return;
  if (fd >= 0) ++channels_held_;
  if (previous < 0) return;
  ::close(previous);
  --channels_held_;
}

}  // namespace nupa::cm
