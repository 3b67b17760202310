// SPDX-License-Identifier: Apache-2.0
#include "host/own_header.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "base/clock.h"

namespace nupa::host {
namespace {

void command_name(char (&out)[64]) {
  FILE* file = std::fopen("/proc/self/comm", "re");
  if (file == nullptr) return;
  if (std::fgets(out, sizeof out, file) != nullptr) out[std::strcspn(out, "\n")] = '\0';
  std::fclose(file);
}

}  // namespace

void describe_self(uint64_t instance, const std::vector<std::vector<Gid>>& gids, shm::SegmentHeader* header) {
  header->instance = instance;
  header->pid = getpid();
  header->uid = geteuid();
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  header->start_ns = static_cast<uint64_t>(now.tv_sec) * base::kNsPerSecond + static_cast<uint64_t>(now.tv_nsec);
  command_name(header->command);
  header->device_count = static_cast<uint32_t>(std::min<size_t>(gids.size(), shm::kMaxDevices));
  for (uint32_t device = 0; device < header->device_count; ++device) {
    shm::GidTableShared& table = header->devices[device];
    table.count = static_cast<uint32_t>(std::min<size_t>(gids[device].size(), shm::kMaxGids));
    std::copy_n(gids[device].begin(), table.count, table.gids);
  }
}

}  // namespace nupa::host
