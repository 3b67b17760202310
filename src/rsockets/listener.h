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

/// The queue of a listening stream. The service's loop answers requests, so that a peer's connect() does not wait for
/// this program's accept(); connections that stand wait here.
class Listener final {
 public:
  /// Null with errno set.
  static std::unique_ptr<Listener> make(Stream* stream, int backlog);
  ~Listener();

  /// Readable while a connection waits.
  int fd() const { return event_->fd(); }
  bool readable() const { return waiting_.load(std::memory_order_acquire) != 0; }
  void set_backlog(int backlog);
  /// Requests are refused from here on.
  void refuse_all();
  /// No request is answered from here on.
  void stop();
  /// Null: none waits.
  std::unique_ptr<Stream> take();

 private:
  explicit Listener(Stream* stream) : stream_(stream) {}
  /// Answers what has come.
  void service();
  void handle_event(rdma_cm_event* event);
  void request(rdma_cm_id* id, const rdma_conn_param& param);
  void deliver(std::unique_ptr<Stream> stream);
  std::unique_ptr<Stream> take_pending(const rdma_cm_id* id);

  Stream* const stream_;
  std::unique_ptr<progress::EventDescriptor> event_;  ///< counts queue_
  std::unique_ptr<progress::Loop::Watch> watch_;
  std::vector<std::unique_ptr<Stream>> pending_;  ///< answered, not confirmed; the service's loop alone
  std::mutex mutex_;
  size_t backlog_ = 0;
  std::deque<std::unique_ptr<Stream>> queue_;
  std::atomic<size_t> waiting_{0};
};

}  // namespace nupa::rsockets
