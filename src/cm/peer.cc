#include "cm/peer.h"

#include <unistd.h>

#include <mutex>

namespace nupa::cm {

void Peer::ring_doorbell() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(doorbell_.get(), &one, sizeof one);
}

bool Peer::signal_channel(uint32_t index) {
  if (index >= kMaxChannels) return false;
  std::lock_guard lock(channels_lock_);
  const int fd = channel_fds_[index].load(std::memory_order_relaxed);
  const uint64_t one = 1;
  return fd >= 0 && ::write(fd, &one, sizeof one) == sizeof one;
}

Peer::~Peer() {
  if (self_) return;
  for (auto& fd : channel_fds_)
    if (fd.load() >= 0) ::close(fd.load());
}

bool Peer::mark_gone() {
  if (tables_.header->closing.load() != 0) mark_polite();
  return alive_.exchange(false);
}

void Peer::set_channel(uint32_t index, int fd) {
  std::lock_guard lock(channels_lock_);
  const int previous = channel_fds_[index].exchange(fd, std::memory_order_relaxed);
  if (previous >= 0 && !self_) ::close(previous);
}

}  // namespace nupa::cm
