/// What happens before main and at fork. A queue pair belongs to the process that made it. A child keeps the program's
/// descriptors and loses what lies over them; a parent that has made no rsocket yet (it only listened, say) leaves the
/// child free to make its own.
///
/// Other threads of the parent may hold any lock of this library, and hold some of them while connections are made or
/// the communication manager is called, whose locks the fork takes: it cannot wait for them. A child gets new locks,
/// and what they guard is empty. What it was is left as it is: a thread may have been in the middle of a change.
#include <sys/resource.h>

#include <algorithm>

#include "rsockets/preload/epoll_members.h"
#include "rsockets/preload/overlay.h"
#include "progress/lifecycle.h"
#include "rsockets/preload/rules.h"

namespace nupa::sockets {
namespace {

/// Two descriptors of each connection are ours, and lie in the upper part of what the limit allows.
int floor_for(rlim_t limit) {
  constexpr rlim_t kHighest = 4096;
  return static_cast<int>(std::min(limit / 4, kHighest));
}

class Forks final : public progress::ForkParticipant {
 public:
  void before_fork() override {}
  void in_parent() override {}
  bool in_child() override {
    note_process();
    forget_plain();
    forget_all_sets();
    forget_rsockets();
    return true;
  }
};

[[gnu::constructor]] void begin() {
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) set_floor(floor_for(files.rlim_cur));
  read_settings();
  note_process();
  static Forks* const forks = new Forks;  // forks may come while static objects are destroyed
  progress::join_forks(progress::ForkStage::kDescriptors, forks);
}

}  // namespace
}  // namespace nupa::sockets
