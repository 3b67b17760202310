// SPDX-License-Identifier: Apache-2.0
#include "rsockets/listener.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>

namespace nupa::rsockets {
namespace {

/// The smallest backlog. Programs ask for as little as 1, but expect the larger queue that TCP gives them.
constexpr int kMinBacklog = 16;
constexpr int kMaxBacklog = 4096;

std::nullptr_t failed(const Error& error) {
  errno = error.code();
  return nullptr;
}

size_t limited(int backlog) { return static_cast<size_t>(std::clamp(backlog, kMinBacklog, kMaxBacklog)); }

}  // namespace

std::unique_ptr<Listener> Listener::make(Stream* stream, int backlog) {
  std::unique_ptr<Listener> listener(new (std::nothrow) Listener(stream));
  if (!listener) {
    errno = ENOMEM;
    return nullptr;
  }
  listener->backlog_ = limited(backlog);
  auto event = progress::EventDescriptor::open();
  if (!event) return failed(event.error());
  listener->event_ = std::move(*event);
  if (rdma_listen(stream->id(), static_cast<int>(listener->backlog_)) != 0) return nullptr;
  auto loop = service_loop();
  if (!loop) return failed(loop.error());
  auto watch = (*loop)->watch(stream->fd(), [at = listener.get()](uint32_t) { at->service(); });
  if (!watch) return failed(watch.error());
  listener->watch_ = std::move(*watch);
  return listener;
}

Listener::~Listener() {
  stop();
  for (auto& stream : queue_) stream->close();
}

void Listener::stop() { watch_ = nullptr; }

void Listener::set_backlog(int backlog) {
  std::lock_guard lock(mutex_);
  backlog_ = limited(backlog);
}

void Listener::refuse_all() {
  std::lock_guard lock(mutex_);
  backlog_ = 0;
}

std::unique_ptr<Stream> Listener::take() {
  std::lock_guard lock(mutex_);
  if (queue_.empty()) return nullptr;
  event_->take_back();
  auto stream = std::move(queue_.front());
  queue_.pop_front();
  waiting_.store(queue_.size(), std::memory_order_release);
  return stream;
}

void Listener::service() {
  rdma_cm_event* event;
  while (rdma_get_cm_event(stream_->channel_.get(), &event) == 0) handle_event(event);
}

/// The event is acknowledged before its id migrates or is destroyed, because both wait for the acknowledgement.
void Listener::handle_event(rdma_cm_event* event) {
  const rdma_cm_event_type type = event->event;
  rdma_cm_id* id = event->id;
  if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
    rdma_conn_param param = event->param.conn;
    std::byte data[UINT8_MAX];
    if (param.private_data == nullptr) param.private_data_len = 0;
    if (param.private_data_len != 0) std::memcpy(data, param.private_data, param.private_data_len);
    param.private_data = data;
    rdma_ack_cm_event(event);
    request(id, param);
    return;
  }
  rdma_ack_cm_event(event);
  if (id == stream_->id()) return;
  auto stream = take_pending(id);
  if (stream && type == RDMA_CM_EVENT_ESTABLISHED && stream->established() == 0) deliver(std::move(stream));
}

void Listener::request(rdma_cm_id* id, const rdma_conn_param& param) {
  size_t limit;
  size_t taken;
  {
    std::lock_guard lock(mutex_);
    limit = backlog_;
    taken = queue_.size() + pending_.size();
  }
  if (taken >= limit) {
    rdma_reject(id, nullptr, 0);
    rdma_destroy_id(id);
    return;
  }
  auto stream = Stream::answer(*stream_, id, param);
  if (stream) pending_.push_back(std::move(stream));
}

std::unique_ptr<Stream> Listener::take_pending(const rdma_cm_id* id) {
  const auto it = std::find_if(pending_.begin(), pending_.end(), [&](const auto& s) { return s->id() == id; });
  if (it == pending_.end()) return nullptr;
  auto stream = std::move(*it);
  *it = std::move(pending_.back());
  pending_.pop_back();
  return stream;
}

void Listener::deliver(std::unique_ptr<Stream> stream) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(stream));
    waiting_.store(queue_.size(), std::memory_order_release);
    event_->count();
  }
  stream_->read_edges_.fetch_add(1, std::memory_order_release);
  stream_->observers().notify();
}

}  // namespace nupa::rsockets
