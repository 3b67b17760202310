// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <rdma/rdma_cma.h>

#include <vector>

namespace nupa::rsockets {

/// A non-blocking event channel of one stream. Its descriptor is the stream's descriptor for the program.
class EventChannel {
 public:
  EventChannel() = default;
  EventChannel(EventChannel&& other) noexcept;
  EventChannel& operator=(EventChannel&& other) noexcept;
  ~EventChannel();

  /// Returns 0 or a negative errno.
  int open();
  rdma_event_channel* get() const { return channel_; }
  int fd() const { return channel_ == nullptr ? -1 : channel_->fd; }

 private:
  rdma_event_channel* channel_ = nullptr;
};

/// A completion queue for both directions of a queue pair, with its completion channel and the arming that a sleeping
/// thread needs. Not thread-safe: the user holds a lock.
class CompletionSource {
 public:
  CompletionSource() = default;
  ~CompletionSource();
  CompletionSource(const CompletionSource&) = delete;
  CompletionSource& operator=(const CompletionSource&) = delete;

  /// Returns 0 or a negative errno.
  int open(ibv_context* verbs, int entries);
  bool is_open() const { return cq_ != nullptr; }
  ibv_cq* cq() const { return cq_; }
  ibv_comp_channel* channel() const { return channel_; }
  /// A descriptor only for waits until it is readable.
  int fd() const { return signal_fd_; }

  /// Makes the descriptor readable at the next completion. The caller then polls once more.
  void arm();
  /// Takes the event after the descriptor became readable.
  void take_event();
  void close();

 private:
  ibv_comp_channel* channel_ = nullptr;
  int signal_fd_ = -1;
  ibv_cq* cq_ = nullptr;
  bool armed_ = false;
  unsigned int unacknowledged_ = 0;
};

/// Returns the errno for an event that reports a failed connection attempt.
int error_of(const rdma_cm_event& event);

}  // namespace nupa::rsockets
