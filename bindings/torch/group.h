#pragma once
#include <nupa/ccl.h>

#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "bindings/torch/queue.h"

namespace nupa::torch_backend {

/// What nobody waits for and nobody runs: messages. A thread looks at them.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Whether it is done, now or before.
  virtual bool look() = 0;
};

class Watcher {
 public:
  Watcher() = default;
  ~Watcher() { stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  /// Throws std::system_error: there is no thread to be had.
  void add(std::shared_ptr<Watched> one);
  /// Waits for what is watched; nothing comes any more. Not by its own thread.
  void stop();

 private:
  void serve();

  std::mutex mutex_;
  progress::Condition added_;
  std::list<std::shared_ptr<Watched>> all_;
  bool ends_ = false;
  progress::Thread thread_;
};

/// A communicator and what is under way on it. It outlives its process group, as long as other ranks need it.
class Group {
 public:
  /// Of all ranks that call it with this id. `limit`: for ranks to come, and of each operation; whole seconds, rounded
  /// up. *error: why there is none.
  static std::shared_ptr<Group> join(const nupa_ccl_unique_id& id, uint32_t rank, uint32_t ranks,
                                     std::chrono::milliseconds limit, std::string* error);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  nupa_ccl_comm* comm() const { return comm_; }
  Queue& queue() { return queue_; }
  Watcher& watcher() { return watcher_; }
  /// A message is under way; each is told of twice.
  void message_begins();
  void message_ends();

  /// Ends what all ranks have under way. Any thread.
  void abort();
  /// Frees it when all ranks have come here and nothing is under way, which nobody waits for: the program of one may
  /// drop a group at a moment of its own (garbage collection). To be called once.
  static void retire(std::shared_ptr<Group> group);
  /// Whether none is left that was retired; false: not within `limit`.
  static bool await_retired(std::chrono::milliseconds limit);

 private:
  Group() = default;
  void leave();

  nupa_ccl_comm* comm_ = nullptr;
  int process_ = 0;
  std::mutex mutex_;
  progress::Condition messages_end_;
  size_t messages_ = 0;
  Queue queue_;
  Watcher watcher_;
};

}  // namespace nupa::torch_backend
