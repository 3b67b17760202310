// SPDX-License-Identifier: Apache-2.0
#include "rsockets/endpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "verbs/private.h"

namespace nupa::rsockets {
namespace {

/// Acknowledging takes the queue's lock, so this many events are acknowledged at once.
constexpr unsigned int kAcknowledgeTogether = 256;

int set_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

}  // namespace

EventChannel::EventChannel(EventChannel&& other) noexcept : channel_(std::exchange(other.channel_, nullptr)) {}

EventChannel& EventChannel::operator=(EventChannel&& other) noexcept {
  std::swap(channel_, other.channel_);
  return *this;
}

EventChannel::~EventChannel() {
  if (channel_ != nullptr) rdma_destroy_event_channel(channel_);
}

int EventChannel::open() {
  channel_ = rdma_create_event_channel();
  if (channel_ == nullptr) return errno == 0 ? -ENODEV : -errno;
  return set_nonblocking(channel_->fd);
}

CompletionSource::~CompletionSource() { close(); }

int CompletionSource::open(ibv_context* verbs, int entries) {
  channel_ = ibv_create_comp_channel(verbs);
  if (channel_ == nullptr) return -errno;
  const int rc = set_nonblocking(channel_->fd);
  if (rc != 0) return rc;
  signal_fd_ = nupa_verbs_signal_descriptor(channel_);
  cq_ = ibv_create_cq(verbs, entries, nullptr, channel_, 0);
  return cq_ == nullptr ? -errno : 0;
}

void CompletionSource::arm() {
  if (armed_) return;
  ibv_req_notify_cq(cq_, 0);
  armed_ = true;
}

void CompletionSource::take_event() {
  ibv_cq* cq;
  void* context;
  if (!armed_ || ibv_get_cq_event(channel_, &cq, &context) != 0) return;
  armed_ = false;
  if (++unacknowledged_ == kAcknowledgeTogether) {
    ibv_ack_cq_events(cq_, unacknowledged_);
    unacknowledged_ = 0;
  }
}

void CompletionSource::close() {
  if (cq_ != nullptr) {
    if (unacknowledged_ != 0) ibv_ack_cq_events(cq_, unacknowledged_);
    ibv_destroy_cq(cq_);
  }
  if (channel_ != nullptr) ibv_destroy_comp_channel(channel_);
  cq_ = nullptr;
  channel_ = nullptr;
  signal_fd_ = -1;
  armed_ = false;
  unacknowledged_ = 0;
}

int error_of(const rdma_cm_event& event) {
  switch (event.event) {
    case RDMA_CM_EVENT_REJECTED:
      return ECONNREFUSED;
    case RDMA_CM_EVENT_UNREACHABLE:
      return event.status < 0 ? -event.status : ETIMEDOUT;
    case RDMA_CM_EVENT_DISCONNECTED:
      return ECONNRESET;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return ENETDOWN;
    default:
      return event.status < 0 ? -event.status : EHOSTUNREACH;
  }
}

}  // namespace nupa::rsockets
