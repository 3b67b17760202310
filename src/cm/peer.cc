#include "cm/peer.h"

#include <unistd.h>

namespace nupa::cm {

void Peer::ring_doorbell() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(doorbell_.get(), &one, sizeof one);
}

int Peer::channel_fd(uint32_t index) const {
  return index < kMaxChannels ? channel_fds_[index].load(std::memory_order_acquire) : -1;
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
  const int previous = channel_fds_[index].exchange(fd, std::memory_order_acq_rel);
  if (previous >= 0 && !self_) ::close(previous);
}

}  // namespace nupa::cm
