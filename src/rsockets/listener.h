// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "progress/event_descriptor.h"
#include "progress/loop.h"
#include "rsockets/service.h"
#include "rsockets/stream.h"

namespace nupa::rsockets {

/// The queue of a listening stream. The service loop answers requests, so a peer's connect() does not wait for this
/// program's accept(). Established connections wait here for accept().
class Listener final {
 public:
  /// Returns null and sets errno on failure.
  static std::unique_ptr<Listener> make(Stream* stream, int backlog);
  ~Listener();

  /// The descriptor is readable while a connection waits.
  int fd() const { return event_->fd(); }
  bool readable() const { return waiting_.load(std::memory_order_acquire) != 0; }
  void set_backlog(int backlog);
  /// Rejects all later requests.
  void refuse_all();
  /// Stops the answering of requests.
  void stop();
  /// Returns null if no connection waits.
  std::unique_ptr<Stream> take();

 private:
  explicit Listener(Stream* stream) : stream_(stream) {}
  /// Handles the events that have arrived.
  void service();
  void handle_event(rdma_cm_event* event);
  void request(rdma_cm_id* id, const rdma_conn_param& param);
  void deliver(std::unique_ptr<Stream> stream);
  std::unique_ptr<Stream> take_pending(const rdma_cm_id* id);

  Stream* const stream_;
  std::unique_ptr<progress::EventDescriptor> event_;  ///< counts queue_
  std::unique_ptr<progress::Loop::Watch> watch_;
  std::vector<std::unique_ptr<Stream>> pending_;  ///< answered, not confirmed yet; used by the service loop only
  std::mutex mutex_;
  size_t backlog_ = 0;
  std::deque<std::unique_ptr<Stream>> queue_;
  std::atomic<size_t> waiting_{0};
};

}  // namespace nupa::rsockets
