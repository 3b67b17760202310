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

/// Pieces of a program's memory in order, or one piece.
struct Pieces {
  const iovec* list;
  int count;

  size_t bytes() const;
};

/// One rsocket. Calls return what the socket call of the name returns, or a negative errno. As with rdma-core, one
/// thread may send while another receives and others poll.
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
  /// The descriptor that the program knows the rsocket by.
  virtual int fd() const = 0;

  virtual int bind(const sockaddr* addr, socklen_t length) = 0;
  virtual int listen(int backlog) = 0;
  /// The new rsocket, which the caller owns and which is not in the descriptor table yet, goes into *accepted.
  virtual int accept(Socket** accepted) = 0;
  virtual int connect(const sockaddr* addr, socklen_t length) = 0;
  virtual int shutdown(int how) = 0;
  /// Ends what is under way; blocked calls of other threads come back. Then the object may be destroyed.
  virtual void close() = 0;
  virtual ssize_t send(Pieces data, int flags, const sockaddr* to, socklen_t length) = 0;
  virtual ssize_t receive(Pieces room, int flags, sockaddr* from, socklen_t* length) = 0;
  virtual int local_name(sockaddr* addr, socklen_t* length) = 0;
  virtual int peer_name(sockaddr* addr, socklen_t* length) = 0;
  virtual int set_option(int level, int name, const void* value, socklen_t length) = 0;
  virtual int get_option(int level, int name, void* value, socklen_t* length) = 0;
  /// Bytes that can be read now (FIONREAD).
  virtual size_t readable_bytes() = 0;

  /// Makes what progress is possible without waiting; which of the events (and POLLERR, POLLHUP) hold.
  virtual short ready(short events) = 0;
  /// Adds the descriptors that become readable when something happens, and asks for that. The caller calls ready()
  /// once more before it sleeps.
  virtual void arm(std::vector<pollfd>* fds) = 0;
  /// After a sleep in which that descriptor of arm() became readable: takes its event.
  virtual void wake(int descriptor) = 0;

  /// Counts what has happened for readers and writers: an edge-triggered epoll reports when they have grown.
  uint32_t read_edges() const { return read_edges_.load(std::memory_order_acquire); }
  uint32_t write_edges() const { return write_edges_.load(std::memory_order_acquire); }

  Observers& observers() { return observers_; }

  bool nonblocking() const { return (flags_.load(std::memory_order_relaxed) & kNonBlocking) != 0; }
  int status_flags() const { return flags_.load(std::memory_order_relaxed); }
  void set_status_flags(int flags) { flags_.store(flags, std::memory_order_relaxed); }

 protected:
  static const int kNonBlocking;
  static const int kInterrupted;

  /// Spins for the polling time, then sleeps until test() holds, the deadline passes (EAGAIN) or a signal comes
  /// (EINTR). test() is called with no lock held after what progress there is.
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

  /// The same, whatever signals come meanwhile: for calls that TCP does not interrupt.
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

/// A socket address of IP or IB.
socklen_t address_length(const sockaddr* addr);
/// Copies what fits and says how long it is, as getsockname().
void give_address(const sockaddr* from, sockaddr* to, socklen_t* length);

}  // namespace nupa::rsockets
