#pragma once
#include <vector>

#include "memory/piece.h"
#include "memory/region_file.h"

namespace nupa::memory {

/// Somebody whose shared pages a child of fork must get as copies of its own.
class ForkParticipant {
 public:
  virtual ~ForkParticipant() = default;
  /// In fork(), before: stands still until after_fork_*(), and leaves its pieces in fork_pieces().
  virtual void before_fork() = 0;
  virtual void after_fork_in_parent() = 0;
  /// In the child, its only thread, after the pages were copied. Async-signal-safe, frees nothing.
  virtual void after_fork_in_child() = 0;

  const RegionFile& fork_file() const { return *fork_file_; }
  const std::vector<Piece>& fork_pieces() const { return fork_pieces_; }

 protected:
  const RegionFile* fork_file_ = nullptr;
  std::vector<Piece> fork_pieces_;
};

/// From now on fork() minds `participant`; the first call installs the handlers. ENOMEM. Any
/// thread.
int join_forks(ForkParticipant* participant);
void leave_forks(ForkParticipant* participant);

}  // namespace nupa::memory
