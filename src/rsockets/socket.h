// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "rsockets/waiter.h"

namespace nupa::rsockets {

/// A list of the program's buffers, in order.
struct Pieces {
  const iovec* list;
  int count;

  size_t bytes() const;
};

/// One rsocket. Each call returns what the socket call of the same name returns, or a negative errno. As with
/// rdma-core, one thread may send while another receives and others poll.
class Socket {
 public:
  Socket(int domain, int type) : domain_(domain), type_(type) {}
  virtual ~Socket() = default;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int domain() const { return domain_; }
  int type() const { return type_; }
  /// True in a forked child: the rsocket belongs to the parent.
  bool inherited() const { return process_ != getpid(); }
  /// The descriptor that the program uses for the rsocket.
  virtual int fd() const = 0;

  virtual int bind(const sockaddr* addr, socklen_t length) = 0;
  virtual int listen(int backlog) = 0;
  /// Stores the new rsocket in *accepted. The caller owns it and adds it to the descriptor table.
  virtual int accept(Socket** accepted) = 0;
  virtual int connect(const sockaddr* addr, socklen_t length) = 0;
  virtual int shutdown(int how) = 0;
  /// Ends all activity; blocked calls of other threads return. Afterwards the object may be destroyed.
  virtual void close() = 0;
  virtual ssize_t send(Pieces data, int flags, const sockaddr* to, socklen_t length) = 0;
  virtual ssize_t receive(Pieces room, int flags, sockaddr* from, socklen_t* length) = 0;
  virtual int local_name(sockaddr* addr, socklen_t* length) = 0;
  virtual int peer_name(sockaddr* addr, socklen_t* length) = 0;
  virtual int set_option(int level, int name, const void* value, socklen_t length) = 0;
  virtual int get_option(int level, int name, void* value, socklen_t* length) = 0;
  /// Returns the bytes that can be read now (FIONREAD).
  virtual size_t readable_bytes() = 0;

  /// Makes all progress that is possible without waiting. Returns the events that hold, with POLLERR and POLLHUP.
  virtual short ready(short events) = 0;
  /// Adds the descriptors that become readable when something happens, and arms them. The caller calls ready() once
  /// more before it sleeps.
  virtual void arm(std::vector<pollfd>* fds) = 0;
  /// Takes the event of a descriptor from arm() that became readable during a sleep.
  virtual void wake(int descriptor) = 0;

  /// Count the events for readers and writers. An edge-triggered epoll reports a change when a count has grown.
  uint32_t read_edges() const { return read_edges_.load(std::memory_order_acquire); }
  uint32_t write_edges() const { return write_edges_.load(std::memory_order_acquire); }

  Observers& observers() { return observers_; }

  bool nonblocking() const { return (flags_.load(std::memory_order_relaxed) & kNonBlocking) != 0; }
  int status_flags() const { return flags_.load(std::memory_order_relaxed); }
  void set_status_flags(int flags) { flags_.store(flags, std::memory_order_relaxed); }

 protected:
  static const int kNonBlocking;
  static const int kInterrupted;

  /// Polls for the polling time, then sleeps until test() holds, the deadline passes (EAGAIN) or a signal arrives
  /// (EINTR). test() is called without locks, after all possible progress.
  template <class Test>
  int wait_until(const Deadline& deadline, Test test) {
    Spin spin;
    do {
      ready(0);
      if (test()) return 0;
    } while (spin.again());
    for (;;) {
      const int rc = sleep(
          deadline, [](void* context) { return (*static_cast<Test*>(context))(); }, &test);
      if (rc != kLookAgain) return rc;
    }
  }

  /// Like wait_until(), but continues after signals. Used for calls that TCP does not interrupt.
  template <class Test>
  int wait_through_signals(const Deadline& deadline, Test test) {
    for (;;) {
      const int rc = wait_until(deadline, test);
      if (rc != kInterrupted) return rc;
    }
  }

  std::atomic<uint32_t> read_edges_{0};
  std::atomic<uint32_t> write_edges_{0};

 private:
  static constexpr int kLookAgain = 1;
  int sleep(const Deadline& deadline, bool (*test)(void*), void* context);

  const int domain_;
  const int type_;
  const pid_t process_ = getpid();
  std::atomic<int> flags_{0};
  Observers observers_;
};

/// Returns the length of an IP or IB socket address.
socklen_t address_length(const sockaddr* addr);
/// Copies as much as fits and stores the full length, as getsockname() does.
void give_address(const sockaddr* from, sockaddr* to, socklen_t* length);

}  // namespace nupa::rsockets
