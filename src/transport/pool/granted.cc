// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/granted.h"

namespace nupa::pool {

bool Granted::add(const Region& region) {
  if (count_ == regions_.size()) return false;
  regions_[count_++] = region;
  return true;
}

void Granted::remove(uint32_t number) {
  for (size_t i = 0; i < count_; ++i)
    if (regions_[i].number == number) regions_[i--] = regions_[--count_];
}

const Granted::Region* Granted::find(uint32_t rkey, uint64_t address, uint64_t length) const {
  for (size_t i = 0; i < count_; ++i) {
    const Region& region = regions_[i];
    const uint64_t within = address - region.address;
    if (region.rkey == rkey && within <= region.bytes && length <= region.bytes - within) return &region;
  }
  return nullptr;
}

}  // namespace nupa::pool
