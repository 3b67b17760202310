// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <functional>
#include <vector>

#include "ccl/channel/peer_reads.h"

namespace nupa::ccl {

/// Reads by CMA (process_vm_readv). The system may deny them: to other users, to unrelated processes (Yama), and in
/// containers.
class CmaReads final : public PeerReads {
 public:
  /// `processes`: by rank of the group. `on_dead`: called if the process of a rank no longer exists.
  CmaReads(std::vector<pid_t> processes, std::function<void(uint32_t rank)> on_dead)
      : processes_(std::move(processes)), on_dead_(std::move(on_dead)) {}
  int read(uint32_t rank, void* to, uint64_t address, size_t bytes) override;

 private:
  const std::vector<pid_t> processes_;
  const std::function<void(uint32_t)> on_dead_;
};

}  // namespace nupa::ccl
