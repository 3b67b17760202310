// SPDX-License-Identifier: Apache-2.0
#include "rsockets/mappings.h"

#include <algorithm>
#include <cerrno>

namespace nupa::rsockets {

Mappings::~Mappings() { clear(); }

void Mappings::clear() {
  std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) ibv_dereg_mr(entry.region);
  entries_.clear();
  pending_.store(false);
}

int Mappings::add(ibv_pd* pd, void* buffer, size_t length, bool remote, uint64_t offset) {
  std::lock_guard lock(mutex_);
  uint32_t index = kLocal;
  if (remote) {
    const auto used = [&](uint32_t candidate) {
      return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.index == candidate; });
    };
    index = 0;
    while (index < table_.length && used(index)) ++index;
    if (index >= table_.length) return -ENOMEM;
  }
  const int access = IBV_ACCESS_LOCAL_WRITE | (remote ? IBV_ACCESS_REMOTE_WRITE : 0);
  ibv_mr* region = ibv_reg_mr(pd, buffer, length, access);
  if (region == nullptr) return -errno;
  entries_.push_back({region, offset, index, ++last_number_, !remote});
  look_for_pending();
  return 0;
}

int Mappings::remove(const void* buffer, size_t length) {
  std::lock_guard lock(mutex_);
  const auto it = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.region->addr == buffer && entry.region->length == length;
  });
  if (it == entries_.end()) return -EINVAL;
  ibv_dereg_mr(it->region);
  entries_.erase(it);
  look_for_pending();
  return 0;
}

bool Mappings::next(Announcement* announcement) {
  std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.announced) continue;
    announcement->index = entry.index;
    announcement->number = entry.number;
    announcement->mapping.offset = entry.offset;
    announcement->mapping.buffer = {reinterpret_cast<uintptr_t>(entry.region->addr), entry.region->rkey,
                                    static_cast<uint32_t>(entry.region->length)};
    return true;
  }
  return false;
}

void Mappings::announced(const Announcement& announcement) {
  std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.number == announcement.number) entry.announced = true;
  }
  look_for_pending();
}

void Mappings::look_for_pending() {
  const bool any = std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return !entry.announced; });
  pending_.store(any, std::memory_order_release);
}

}  // namespace nupa::rsockets
