#include "cm/peer.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
  std::lock_guard lock(channels_lock_);
  const int fd = channel_fds_ == nullptr ? -1 : (*channel_fds_)[index].load(std::memory_order_relaxed);
  const uint64_t one = 1;
  return fd >= 0 && ::write(fd, &one, sizeof one) == sizeof one;
}

Peer::~Peer() {
  if (!self_) close_channels();
}

void Peer::close_channels() {
  if (channel_fds_ == nullptr) return;
  for (auto& fd : *channel_fds_)
    if (fd.load() >= 0) ::close(fd.load());
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
  if (previous >= 0 && !self_) ::close(previous);
}

}  // namespace nupa::cm
