// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/ccl.h>

#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "bindings/torch/queue.h"

namespace nupa::torch_backend {

/// A message that no thread waits for. A Watcher's thread polls it.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Returns whether it is done.
  virtual bool look() = 0;
};

class Watcher {
 public:
  Watcher() = default;
  ~Watcher() { stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  /// Throws std::system_error if no thread can be started.
  void add(std::shared_ptr<Watched> one);
  /// Waits for all that is watched; nothing may be added afterwards. Must not be called by the watcher's own thread.
  void stop();

 private:
  void serve();

  std::mutex mutex_;
  progress::Condition added_;
  std::list<std::shared_ptr<Watched>> all_;
  bool ends_ = false;
  progress::Thread thread_;
};

/// A communicator and its outstanding operations. It outlives its process group as long as other ranks need it.
class Group {
 public:
  /// Joins the group of all ranks that call this with the same id. `limit`: for ranks to come and for each operation,
  /// rounded up to whole seconds. Returns null and sets *error if that fails.
  static std::shared_ptr<Group> join(const nupa_ccl_unique_id& id, uint32_t rank, uint32_t ranks,
                                     std::chrono::milliseconds limit, std::string* error);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  nupa_ccl_comm* comm() const { return comm_; }
  Queue& queue() { return queue_; }
  Watcher& watcher() { return watcher_; }
  /// Record that a message begins, and that it ends. Each message calls both.
  void message_begins();
  void message_ends();

  /// Ends the outstanding operations of all ranks. Thread-safe.
  void abort();
  /// Frees the group when all ranks have retired it and nothing is outstanding. Returns at once, because the program of
  /// a rank may drop a group at any time (garbage collection). Call it once.
  static void retire(std::shared_ptr<Group> group);
  /// Returns whether all retired groups are freed within `limit`.
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
