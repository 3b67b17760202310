// SPDX-License-Identifier: Apache-2.0
/// Initialization before main, and forks. A queue pair belongs to the process that made it. A child keeps the program's
/// descriptors and loses their overlays. If the parent has made no rsocket yet (it only listened, for example), the
/// child can make its own.
///
/// A fork does not wait for the locks of this library. Other threads of the parent hold some of them while they connect
/// or call the communication manager, whose locks the fork takes. A child therefore gets new locks and empty
/// structures. The old contents are not touched, because a thread may have been changing them.
#include <sys/resource.h>

#include <algorithm>

#include "rsockets/preload/epoll_members.h"
#include "rsockets/preload/overlay.h"
#include "progress/lifecycle.h"
#include "rsockets/preload/rules.h"

namespace nupa::sockets {
namespace {

/// Each connection has two descriptors of NUPA's. They lie in the upper part of the permitted range.
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
  static Forks* const forks = new Forks;  // forks may happen while static objects are destroyed
  progress::join_forks(progress::ForkStage::kDescriptors, forks);
}

}  // namespace
}  // namespace nupa::sockets
