// SPDX-License-Identifier: Apache-2.0
#include "progress/event_descriptor.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

#include "base/lowest_descriptor.h"
#include "base/system_error.h"
#include "progress/descriptors.h"
#include "progress/wake_up.h"

namespace nupa::progress {
Result<std::unique_ptr<EventDescriptor>> EventDescriptor::open(int lowest) {
  base::UniqueFd signal = base::out_of_the_way(base::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)), lowest);
  if (!signal) return base::fail_call(errno, "cannot create an event descriptor");
  base::UniqueFd shown = base::out_of_the_way(base::UniqueFd(epoll_create1(EPOLL_CLOEXEC)), lowest);
  if (!shown) return base::fail_call(errno, "cannot create an event descriptor");
  // Level-triggered: the set is readable as long as the count is not 0. Each write wakes the threads that wait for the
  // set.
  epoll_event readable{};
  readable.events = EPOLLIN;
  if (epoll_ctl(shown.get(), EPOLL_CTL_ADD, signal.get(), &readable) != 0)
    return base::fail_call(errno, "cannot add an eventfd to an event descriptor");
  return std::unique_ptr<EventDescriptor>(new EventDescriptor(std::move(shown), std::move(signal)));
}

void EventDescriptor::count(uint32_t events) const {
  [[maybe_unused]] const bool added = WakeUp::add_to(signal_.get(), events);
}

bool EventDescriptor::take_back() const {
  uint64_t one;
  iovec to{&one, sizeof one};
  constexpr off_t kNowhere = -1;
  const ssize_t got = ::preadv2(signal_.get(), &to, 1, kNowhere, RWF_NOWAIT);
  if (got >= 0 || errno != EOPNOTSUPP) return got == sizeof one;
  // Linux before 5.8: if another reader comes between the two calls, this waits for the next event.
  return is_readable(signal_.get()) && read_one() == 0;
}

uint32_t EventDescriptor::waiting() const {
  // A read of the eventfd would take an event, so read its count (proc_pid_fdinfo(5)).
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(signal_.get()));
  for (std::string name; info >> name;) {
    uint32_t count = 0;
    if (name == "eventfd-count:" && info >> std::hex >> count) return count;
  }
  return 0;
}

int EventDescriptor::check_waits(int shown) {
  const int flags = fcntl(shown, F_GETFL);
  if (flags < 0) return EBADF;
  if ((flags & O_NONBLOCK) != 0) return EAGAIN;
  return 0;
}

int EventDescriptor::read_one() const {
  // The eventfd itself blocks, so the kernel restarts this read after a signal, as for the kernel's own event
  // descriptors.
  uint64_t one;
  return ::read(signal_.get(), &one, sizeof one) == sizeof one ? 0 : errno;
}

}  // namespace nupa::progress
