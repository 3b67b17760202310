/// A queue pair belongs to the process that made it. A child keeps the program's descriptors and loses what lies over
/// them; a parent that has made no rsocket yet (it only listened, say) leaves the child free to make its own.
#include <pthread.h>

#include "epoll_set.h"
#include "overlay.h"

namespace nupa::sockets {
namespace {

[[gnu::constructor]] void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] {
    forget_epoll_sets();
    forget_rsockets();
  });
}

}  // namespace
}  // namespace nupa::sockets
