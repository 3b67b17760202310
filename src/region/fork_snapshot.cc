#include "region/fork_snapshot.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "base/log.h"
#include "region/raw_mapping.h"

namespace nupa::region {
namespace {

/// Lives as long as the process: fork() may run while static objects are being destroyed.
struct Forks {
  std::mutex mutex;
  std::vector<ForkParticipant*> participants;
  int read_end = -1;
  int write_end = -1;
};

Forks& forks() {
  static Forks* const all = new Forks;
  return *all;
}

void prepare() {
  Forks& all = forks();
  all.mutex.lock();
  bool shared = false;
  for (ForkParticipant* participant : all.participants) {
    participant->before_fork();
    shared |= !participant->fork_pieces().empty();
  }
  if (!shared) return;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) == 0) {
    all.read_end = ends[0];
    all.write_end = ends[1];
  } else {
    NUPA_WARN(
        "fork: no descriptor left (errno %d): what is written to registered memory at once may "
        "reach the child",
        errno);
  }
}

void in_parent() {
  Forks& all = forks();
  if (all.read_end >= 0) {
    // The child closes its end when it has its copies, or dies, which closes it too. Without a
    // child nobody has it.
    close(all.write_end);
    char nothing;
    while (read(all.read_end, &nothing, 1) < 0 && errno == EINTR) {
    }
    close(all.read_end);
    all.read_end = all.write_end = -1;
  }
  for (ForkParticipant* participant : all.participants) participant->after_fork_in_parent();
  all.mutex.unlock();
}

void copy_for_child(const RegionFile& file, const Piece& piece) {
  void* fresh =
      raw_mmap(nullptr, piece.length(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fresh != MAP_FAILED && file.handle().read(static_cast<std::byte*>(fresh), piece.length(), piece.file_offset) &&
      raw_mremap(fresh, piece.length(), reinterpret_cast<void*>(piece.begin)) != MAP_FAILED)
    return;
  // No memory: a fault in the child is better than writes that reach its parent.
  raw_munmap(reinterpret_cast<void*>(piece.begin), piece.length());
}

void in_child() {
  Forks& all = forks();
  for (const ForkParticipant* participant : all.participants)
    for (const Piece& piece : participant->fork_pieces()) copy_for_child(participant->fork_file(), piece);
  for (ForkParticipant* participant : all.participants) participant->after_fork_in_child();
  all.participants.clear();
  if (all.read_end >= 0) {
    close(all.read_end);
    close(all.write_end);
    all.read_end = all.write_end = -1;
  }
  all.mutex.unlock();
}

}  // namespace

int join_forks(ForkParticipant* participant) {
  static const int installed = pthread_atfork(prepare, in_parent, in_child);
  if (installed != 0) return installed;
  Forks& all = forks();
  std::lock_guard lock(all.mutex);
  all.participants.push_back(participant);
  return 0;
}

void leave_forks(ForkParticipant* participant) {
  Forks& all = forks();
  std::lock_guard lock(all.mutex);
  all.participants.erase(std::remove(all.participants.begin(), all.participants.end(), participant),
                         all.participants.end());
}

}  // namespace nupa::region
