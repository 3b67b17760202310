#pragma once
#include <unistd.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/unique_fd.h"

namespace nupa::rsockets {

/// Somebody whose descriptor the service's thread watches.
class ServiceClient {
 public:
  /// The descriptor is readable. Called by the thread; must not call Service.
  virtual void service() = 0;

 protected:
  ~ServiceClient() = default;
};

/// Somebody whom the service's thread calls from time to time.
class ServiceTimer {
 public:
  /// Called by the thread.
  virtual void keep_alive() = 0;

 protected:
  ~ServiceTimer() = default;
};

/// One thread a process, started when it is first needed: answers what comes to listeners and sends keepalives. Its
/// lock is held while a client is served, so a client that was removed is not served any more. A forked child has a
/// service of its own: what it inherits watches for the parent, and a thread that the child lacks may hold its lock.
class Service {
 public:
  /// This process's.
  static Service& instance();

  /// 0 or a negative errno.
  int add(int fd, ServiceClient* client);
  void remove(int fd, ServiceClient* client);

  /// Has keep_alive() called every so many seconds.
  int keep_alive(ServiceTimer* who, int seconds);
  void forget(ServiceTimer* who);

 private:
  struct Timer {
    ServiceTimer* who;
    int64_t period_ns;
    int64_t due_ns;
  };

  Service() = default;
  int start();
  void run();
  void kick();
  int64_t serve_timers();

  const pid_t process_ = getpid();
  std::recursive_mutex mutex_;  ///< held while clients are served, who come back with calls of their own
  bool started_ = false;
  base::UniqueFd epoll_;
  base::UniqueFd event_;
  std::map<int, ServiceClient*> clients_;
  std::vector<Timer> timers_;
};

}  // namespace nupa::rsockets
