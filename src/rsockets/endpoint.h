#pragma once
#include <rdma/rdma_cma.h>

#include <vector>

namespace nupa::rsockets {

/// An event channel of its own, which does not block. Its descriptor is what a program knows a stream by.
class EventChannel {
 public:
  EventChannel() = default;
  EventChannel(EventChannel&& other) noexcept;
  EventChannel& operator=(EventChannel&& other) noexcept;
  ~EventChannel();

  /// 0 or a negative errno.
  int open();
  rdma_event_channel* get() const { return channel_; }
  int fd() const { return channel_ == nullptr ? -1 : channel_->fd; }

 private:
  rdma_event_channel* channel_ = nullptr;
};

/// A completion queue for both directions of a queue pair, and its channel; arming as a sleeper needs it. Not
/// thread-safe: its user has a lock.
class CompletionSource {
 public:
  CompletionSource() = default;
  ~CompletionSource();
  CompletionSource(const CompletionSource&) = delete;
  CompletionSource& operator=(const CompletionSource&) = delete;

  /// 0 or a negative errno.
  int open(ibv_context* verbs, int entries);
  bool is_open() const { return cq_ != nullptr; }
  ibv_cq* cq() const { return cq_; }
  ibv_comp_channel* channel() const { return channel_; }
  /// For waits until it is readable, and for nothing else.
  int fd() const { return signal_fd_; }

  /// The descriptor becomes readable with the next completion. Whoever calls polls once more.
  void arm();
  /// Takes the event that a readable descriptor stands for.
  void take_event();
  void close();

 private:
  ibv_comp_channel* channel_ = nullptr;
  int signal_fd_ = -1;
  ibv_cq* cq_ = nullptr;
  bool armed_ = false;
  unsigned int unacknowledged_ = 0;
};

/// What an event of a connection that was not made says, as errno.
int error_of(const rdma_cm_event& event);

}  // namespace nupa::rsockets
