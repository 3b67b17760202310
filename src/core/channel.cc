// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "base/lowest_descriptor.h"
#include "core/cq.h"
#include "progress/event_catch.h"

namespace nupa::core {

Channel::Channel(DeviceImpl& device, std::unique_ptr<progress::EventDescriptor> events, uint32_t index)
    : device_(device), events_(std::move(events)), index_(index) {
  device_.users.add();
}

Channel::~Channel() {
  if (open_ && close() != 0) NUPA_ERROR("completion channel deleted while completion queues use it");
}

int Channel::close() {
  if (device_.is_here()) {
    {
      std::lock_guard lock(mutex_);
      if (!cqs_.empty()) return EBUSY;
    }
    open_ = false;
    // One event wakes all waiting threads: each thread that takes it puts it back.
    events_->count();
    device_.process().node().withdraw_channel(index_);
  }
  open_ = false;
  device_.users.drop();
  return 0;
}

void Channel::attach(Cq* cq) {
  std::lock_guard lock(mutex_);
  cqs_.push_back(cq);
}

void Channel::detach(Cq* cq) {
  std::lock_guard lock(mutex_);
  cqs_.erase(std::remove(cqs_.begin(), cqs_.end(), cq), cqs_.end());
  // Events that the service thread has not reported yet have woken no thread: they must not take back the wake-up of
  // another queue.
  uint32_t unsignalled = cq->take_unsignalled();
  while (cq->take_event()) {
    if (unsignalled != 0)
      --unsignalled;
    else if (!events_->take_back())
      break;
  }
}

void Channel::wake(uint32_t events) const { events_->count(events); }

void Channel::recover() {
  std::lock_guard lock(mutex_);
  uint32_t raised = 0;
  for (const Cq* cq : cqs_) raised += cq->reported_events();
  if (raised == 0) return;
  // The count includes a thread that is about to take its event, and a process that is about to write one. In that case
  // one thread wakes up and finds nothing.
  if (const uint32_t reported = events_->waiting(); raised > reported) wake(raised - reported);
}

Cq* Channel::next_with_event() {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < cqs_.size(); ++i) {
    Cq* cq = cqs_[(turn_ + i) % cqs_.size()];
    if (!cq->take_event()) continue;
    cq->count_delivered();
    turn_ = (turn_ + i + 1) % cqs_.size();
    return cq;
  }
  return nullptr;
}

bool Channel::may_have_event() {
  constexpr size_t kFew = 8;
  std::lock_guard lock(mutex_);
  return cqs_.size() > kFew || std::any_of(cqs_.begin(), cqs_.end(), [](const Cq* cq) { return cq->has_event(); });
}

Result<CompletionQueue*> Channel::wait() {
  // The events belong to the parent, which would miss them.
  if (!device_.is_here()) return fail(ENODEV, "the completion channel belongs to the parent process");
  const auto take_packets = [&] {
    progress::EventCatch events(*events_);
    for (progress::Poller* poller : device_.process().transports().pollers()) {
      const progress::Poller::Slept slept = poller->sleep(events);
      if (events.take()) return progress::EventDescriptor::kTaken;
      if (slept == progress::Poller::Slept::kReady) return progress::EventDescriptor::kReadable;
      if (slept == progress::Poller::Slept::kSignal) return EINTR;
    }
    return 0;
  };
  for (;;) {
    if (const int error = events_->take(fd(), may_have_event(), take_packets); error != 0)
      return fail(error, "no completion event");
    if (!open_) {
      events_->count();
      return fail(ECANCELED, "the completion channel is closed");
    }
    if (Cq* cq = next_with_event(); cq != nullptr) return cq;
    // The wake-up belonged to a queue that was closed meanwhile: wait for the next one.
  }
}

Result<std::unique_ptr<CompletionChannel>> DeviceImpl::create_channel() {
  if (!is_here()) return fail_inherited();
  auto events = progress::EventDescriptor::open(base::lowest_descriptor());
  if (!events) return tl::unexpected(events.error());
  auto index = process_->node().publish_channel((*events)->signal_fd());
  if (!index) return tl::unexpected(index.error());
  return std::make_unique<Channel>(*this, std::move(*events), *index);
}

}  // namespace nupa::core
