// SPDX-License-Identifier: Apache-2.0
#include "rsockets/preload/overlay.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "rsockets/endpoint.h"
#include "rsockets/stream.h"
#include "rdmacm/private.h"
#include "base/clock.h"
#include "rsockets/preload/fd_table.h"
#include "rsockets/preload/next.h"
#include "progress/lifecycle.h"
#include "rsockets/preload/rules.h"

namespace nupa::sockets {
namespace {

using rsockets::DescriptorTable;
using rsockets::Stream;
using rsockets::Use;

constinit FdTable<Overlay> table;

/// Overlays are reused and never freed, because a thread that looked one up may still read it.
std::mutex pool_mutex;
std::vector<Overlay*> pool;
/// Held while a listener's rsocket is made.
std::mutex listening_mutex;
std::atomic<bool> made_any{false};
std::atomic<bool> unusable{false};
std::atomic<pid_t> owner{0};

int g_floor = 0;

/// How long the exit of a process waits for the goodbyes of all its connections together.
constexpr int64_t kGoodbyeMs = 1000;

template <class Each>
void for_each_connection(Each each) {
  table.for_each([&](Overlay* overlay) {
    if (overlay->mode.load() != Overlay::Mode::kConnected) return;
    const auto lease = DescriptorTable::instance().lease(overlay->rsocket.load(), Use::kOther);
    if (lease) each(static_cast<Stream*>(lease.get()));
  });
}

void send_goodbye() {
  for_each_connection([](Stream* stream) { stream->send_goodbye(); });
  const auto deadline = rsockets::Deadline::in_ms(kGoodbyeMs);
  progress::put_off_exit(progress::Deadline::at(deadline.at_ns() + progress::kActionNs));
  for_each_connection([&](Stream* stream) { stream->await_goodbye(deadline); });
}

/// Makes the library open its per-process descriptors while the low numbers are taken.
void start_library() {
  const int spare = eventfd(0, EFD_CLOEXEC);
  std::vector<int> taken;
  for (int fd = spare; fd >= 0 && fd < g_floor; fd = next::fcntl(spare, F_DUPFD_CLOEXEC, 0)) taken.push_back(fd);
  const int first = rsocket(AF_INET, SOCK_STREAM, 0);
  if (first >= 0) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    rbind(first, reinterpret_cast<sockaddr*>(&any), sizeof any);
    rclose(first);
  }
  for (const int fd : taken) next::close(fd);
  const progress::ExitAction goodbye{[](void*) { send_goodbye(); }, &table};
  [[maybe_unused]] const int error = progress::at_exit(progress::ExitStage::kStreams, goodbye);
}

}  // namespace

constinit thread_local int PlainPoll::depth = 0;

Overlay* overlay_of(int fd) { return table.get(fd); }

Overlay* spare_overlay(Overlay::Mode mode, int rsocket) {
  Overlay* overlay = nullptr;
  {
    std::lock_guard lock(pool_mutex);
    if (!pool.empty()) {
      overlay = pool.back();
      pool.pop_back();
    }
  }
  if (overlay == nullptr) overlay = new (std::nothrow) Overlay;
  if (overlay == nullptr) return nullptr;
  overlay->mode.store(mode);
  overlay->rsocket.store(rsocket);
  overlay->descriptors.store(1);
  overlay->failed.store(false);
  overlay->tried = false;
  overlay->accepting.store(false);
  if (rsocket != Overlay::kNone) made_any.store(true);
  return overlay;
}

bool lay(int fd, Overlay* overlay) {
  if (table.set(fd, overlay)) return true;
  std::lock_guard lock(pool_mutex);
  pool.push_back(overlay);
  return false;
}

void share(int fd, Overlay* overlay) {
  overlay->descriptors.fetch_add(1);
  if (!table.set(fd, overlay)) overlay->descriptors.fetch_sub(1);
}

void lift(int fd) {
  Overlay* overlay = table.take(fd);
  if (overlay == nullptr || overlay->descriptors.fetch_sub(1) != 1) return;
  const int rsocket = overlay->rsocket.exchange(Overlay::kNone);
  if (rsocket >= 0) rclose(rsocket);
  std::lock_guard lock(pool_mutex);
  pool.push_back(overlay);
}

void note_process() { owner.store(getpid()); }

bool in_parents_memory() { return getpid() != owner.load(std::memory_order_relaxed); }

bool usable() { return !unusable.load(std::memory_order_relaxed); }

void forget_rsockets() {
  new (&pool_mutex) std::mutex;
  new (&pool) std::vector<Overlay*>;
  new (&listening_mutex) std::mutex;
  if (!made_any.load()) return;
  unusable.store(true);
  DescriptorTable::instance().forget_all();
  table.for_each([](Overlay* overlay) {
    overlay->rsocket.store(Overlay::kNone);
    if (overlay->mode.load() != Overlay::Mode::kListening) overlay->mode.store(Overlay::Mode::kLost);
    overlay->tried = true;
    overlay->accepting.store(false);
  });
}

void set_floor(int floor) {
  g_floor = floor;
  nupa_rdmacm_set_lowest_descriptor(floor);
}

int make_rsocket(int domain) {
  static std::once_flag once;
  std::call_once(once, start_library);
  return rsocket(domain, SOCK_STREAM | SOCK_NONBLOCK, 0);
}

void take_over_options(int fd, int rsocket) {
  constexpr std::pair<int, int> kOptions[] = {{SOL_SOCKET, SO_RCVTIMEO},
                                              {SOL_SOCKET, SO_SNDTIMEO},
                                              {SOL_SOCKET, SO_LINGER},
                                              {SOL_SOCKET, SO_KEEPALIVE},
                                              {IPPROTO_TCP, TCP_KEEPIDLE}};
  for (const auto& [level, name] : kOptions) {
    alignas(timeval) char value[sizeof(timeval)];
    socklen_t length = sizeof value;
    if (next::getsockopt(fd, level, name, value, &length) == 0) rsetsockopt(rsocket, level, name, value, length);
  }
}

int listening_rsocket(int fd, Overlay* overlay) {
  if (overlay->rsocket.load() >= 0) return overlay->rsocket.load();
  std::lock_guard lock(listening_mutex);
  if (overlay->tried || !usable()) return overlay->rsocket.load();
  overlay->tried = true;
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  if (next::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) != 0) return Overlay::kNone;
  const int error = errno;
  const int rsocket_fd = make_rsocket(local.ss_family);
  if (rsocket_fd >= 0) {
    made_any.store(true);
    take_over_options(fd, rsocket_fd);  // accepted connections inherit them
    int v6_only = 0;
    socklen_t size = sizeof v6_only;
    if (local.ss_family == AF_INET6 && next::getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, &size) == 0) {
      rsetsockopt(rsocket_fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
    }
    if (rbind(rsocket_fd, reinterpret_cast<sockaddr*>(&local), length) == 0 &&
        rlisten(rsocket_fd, overlay->backlog) == 0) {
      overlay->rsocket.store(rsocket_fd);
    } else {
      rclose(rsocket_fd);
    }
  }
  errno = error;
  return overlay->rsocket.load();
}

}  // namespace nupa::sockets
