#pragma once
#include <sys/socket.h>

#include <atomic>
#include <cstdint>

#include "rsockets/descriptor_table.h"

namespace nupa::sockets {

/// An rsocket that lies over a program's TCP socket. The program's descriptor stays a real, unconnected TCP socket, so
/// that its number, its flags and what this library does not intercept keep their meaning, and so that TCP can take
/// over when the peer has no rsockets. dup() gives one more descriptor for the same overlay.
struct Overlay {
  enum class Mode : uint8_t {
    kListening,   ///< both listen; the rsocket from the first accept or poll on
    kConnecting,  ///< the rsocket tries; TCP has not begun
    kConnected,
    kLost,  ///< of the parent process: its rsocket is not here
  };
  static constexpr int kNone = -1;

  std::atomic<Mode> mode{Mode::kConnected};
  std::atomic<int> rsocket{kNone};
  std::atomic<int> descriptors{0};
  std::atomic<bool> failed{false};     ///< there is no connection: the rsocket tells why
  bool tried = false;                  ///< listening: making the rsocket has been tried
  std::atomic<bool> accepting{false};  ///< a thread is about to take a connection of the kernel's
  int backlog = 0;
  int64_t connect_until_ns = 0;
  sockaddr_storage peer{};
  socklen_t peer_length = 0;
};

/// Null: a plain descriptor. Takes no lock.
Overlay* overlay_of(int fd);
/// One for a descriptor, which no other thread sees before lay(). Null: there is no memory.
Overlay* spare_overlay(Overlay::Mode mode, int rsocket);
/// Lays it over a descriptor. False: there is no memory, and it is spare again.
bool lay(int fd, Overlay* overlay);
/// Another descriptor for the same.
void share(int fd, Overlay* overlay);
/// Takes it off a descriptor; the last one closes the rsocket.
void lift(int fd);
/// In a forked child: connections are the parent's, listeners may be made again. The locks are new.
void forget_rsockets();
/// Before main and in a forked child: the memory is this process's.
void note_process();
/// A child of vfork() works in its parent's memory until it executes a program: what it closes and copies are its own
/// descriptors, and the parent's connections stay as they are.
bool in_parents_memory();
/// Whether a child of this process may have rsockets of its own: none has been made before the fork.
bool usable();

/// rsocket(), not blocking. The first call of a process has what NUPA opens for itself go to high descriptor numbers:
/// programs size tables by the numbers that they expect. -1 with errno.
int make_rsocket(int domain);
/// Where descriptors of ours go.
void set_floor(int floor);

/// What the program has set on its socket and an rsocket knows, too.
void take_over_options(int fd, int rsocket);
/// Makes a listener's rsocket if that has not been tried in this process. Its number, or kNone: TCP only.
int listening_rsocket(int fd, Overlay* overlay);
/// When a connection that is under way has to be there (CLOCK_MONOTONIC ns).
inline int64_t connect_deadline(const Overlay& overlay) { return overlay.connect_until_ns; }

/// While one lives, poll() and ppoll() of this thread are libc's: rsockets' own waiting has a program's descriptors in
/// its lists, too.
class PlainPoll {
 public:
  PlainPoll() { ++depth; }
  ~PlainPoll() { --depth; }
  PlainPoll(const PlainPoll&) = delete;
  PlainPoll& operator=(const PlainPoll&) = delete;
  static bool on() { return depth != 0; }

 private:
  [[gnu::tls_model("initial-exec")]] static thread_local int depth;
};

}  // namespace nupa::sockets
