// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A ring in a sealed memory file, as the command makes it.
#include <gtest/gtest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/shared_file.h"
#include "base/unique_fd.h"
#include "capture/ring.h"

namespace nupa::capture::test {

class RingMemory {
 public:
  explicit RingMemory(uint32_t capacity = kMinCapacity) : capacity_(capacity), file_(*base::make_shared_file("ring")) {
    EXPECT_TRUE(base::grow_shared_file(file_.get(), Ring::file_bytes(capacity)));
    at_ = mmap(nullptr, Ring::file_bytes(capacity), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    EXPECT_NE(MAP_FAILED, at_);
    ring_ = Ring(at_, capacity);
    header().magic = kRingMagic;
    header().version = kRingVersion;
    header().capacity = capacity;
  }
  ~RingMemory() { munmap(at_, Ring::file_bytes(capacity_)); }
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  const Ring& ring() const { return ring_; }
  RingHeader& header() const { return ring_.header(); }
  std::byte* records() const { return static_cast<std::byte*>(at_) + kRecordsOffset; }
  int fd() const { return file_.get(); }
  base::UniqueFd descriptor() const { return base::UniqueFd(fcntl(file_.get(), F_DUPFD_CLOEXEC, 0)); }

  struct Taken {
    Record record;
    std::vector<std::byte> frame;
  };
  /// All packets in the ring.
  std::vector<Taken> drain() const {
    std::vector<Taken> all;
    Record record;
    while (ring_.next(&record) == Ring::Next::kRecord) {
      all.push_back({record, {record.bytes.begin(), record.bytes.end()}});
      ring_.drop(record);
    }
    return all;
  }
  uint64_t dropped() const {
    uint64_t count = 0;
    for (const auto& device : header().dropped)
      for (const auto& transport : device) count += transport.load();
    return count;
  }

 private:
  const uint32_t capacity_;
  base::UniqueFd file_;
  void* at_ = nullptr;
  Ring ring_;
};

}  // namespace nupa::capture::test
