// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "memory/piece.h"
#include "memory/region_file.h"

namespace nupa::memory {

/// An owner of shared pages. A child of fork() gets private copies of these pages.
class ForkParticipant {
 public:
  virtual ~ForkParticipant() = default;
  /// Called before fork(): does not change pages until after_fork_*(), and lists its pieces in fork_pieces().
  virtual void before_fork() = 0;
  virtual void after_fork_in_parent() = 0;
  /// Called in the child's only thread after the pages were copied. Async-signal-safe; frees nothing.
  virtual void after_fork_in_child() = 0;

  const RegionFile& fork_file() const { return *fork_file_; }
  const std::vector<Piece>& fork_pieces() const { return fork_pieces_; }

 protected:
  const RegionFile* fork_file_ = nullptr;
  std::vector<Piece> fork_pieces_;
};

/// Registers `participant` for later forks; the first call installs the fork handlers. ENOMEM. Any thread.
int join_forks(ForkParticipant* participant);
void leave_forks(ForkParticipant* participant);

}  // namespace nupa::memory
