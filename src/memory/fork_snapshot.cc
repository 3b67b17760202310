// SPDX-License-Identifier: Apache-2.0
#include "memory/fork_snapshot.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "base/log.h"
#include "progress/lifecycle.h"
#include "memory/raw_mapping.h"

namespace nupa::memory {
namespace {

/// Never destroyed: fork() may run while static objects are being destroyed.
class Forks final : public progress::ForkParticipant {
 public:
  static Forks& instance() {
    static Forks* const all = new Forks;
    return *all;
  }
  Forks() : joined(progress::join_forks(progress::ForkStage::kMemory, this)) {}
  void before_fork() override;
  void in_parent() override;
  bool in_child() override;

  const int joined;  ///< an errno value
  std::mutex mutex;
  std::vector<memory::ForkParticipant*> participants;

 private:
  int read_end_ = -1;
  int write_end_ = -1;
};

void Forks::before_fork() {
  mutex.lock();
  bool shared = false;
  for (memory::ForkParticipant* participant : participants) {
    participant->before_fork();
    shared |= !participant->fork_pieces().empty();
  }
  if (!shared) return;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) == 0) {
    read_end_ = ends[0];
    write_end_ = ends[1];
  } else {
    NUPA_WARN(
        "fork: cannot create a pipe (errno %d): the parent's first writes to registered memory may "
        "reach the child",
        errno);
  }
}

/// Runs last in the parent: the rest of the library works again while the child copies.
void Forks::in_parent() {
  if (read_end_ >= 0) {
    // The child closes its end when it has its copies. If it dies, the kernel closes the end. Without a child no
    // process has it.
    close(write_end_);
    char nothing;
    while (read(read_end_, &nothing, 1) < 0 && errno == EINTR) {
    }
    close(read_end_);
    read_end_ = write_end_ = -1;
  }
  for (memory::ForkParticipant* participant : participants) participant->after_fork_in_parent();
  mutex.unlock();
}

void copy_for_child(const RegionFile& file, const Piece& piece) {
  void* fresh =
      raw_mmap(nullptr, piece.length(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fresh != MAP_FAILED && file.handle().read(static_cast<std::byte*>(fresh), piece.length(), piece.file_offset) &&
      raw_mremap(fresh, piece.length(), reinterpret_cast<void*>(piece.begin)) != MAP_FAILED)
    return;
  // There is no memory. A fault in the child is better than writes that reach its parent.
  raw_munmap(reinterpret_cast<void*>(piece.begin), piece.length());
}

/// Runs first in the child: before this, the child's writes may reach its parent.
bool Forks::in_child() {
  for (const memory::ForkParticipant* participant : participants)
    for (const Piece& piece : participant->fork_pieces()) copy_for_child(participant->fork_file(), piece);
  for (memory::ForkParticipant* participant : participants) participant->after_fork_in_child();
  participants.clear();
  if (read_end_ >= 0) {
    close(read_end_);
    close(write_end_);
    read_end_ = write_end_ = -1;
  }
  mutex.unlock();
  return true;
}

}  // namespace

int join_forks(ForkParticipant* participant) {
  Forks& all = Forks::instance();
  if (all.joined != 0) return all.joined;
  std::lock_guard lock(all.mutex);
  all.participants.push_back(participant);
  return 0;
}

void leave_forks(ForkParticipant* participant) {
  Forks& all = Forks::instance();
  std::lock_guard lock(all.mutex);
  all.participants.erase(std::remove(all.participants.begin(), all.participants.end(), participant),
                         all.participants.end());
}

}  // namespace nupa::memory
