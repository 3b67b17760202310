// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/socket.h>

#include <atomic>
#include <cstdint>

#include "rsockets/descriptor_table.h"

namespace nupa::sockets {

/// An rsocket over a program's TCP socket. The program's descriptor remains a real, unconnected TCP socket. So its
/// number, its flags and calls that this library does not intercept still work, and TCP can take over when the peer has
/// no rsockets. dup() adds a descriptor for the same overlay.
struct Overlay {
  enum class Mode : uint8_t {
    kListening,   ///< both listen; the rsocket is made at the first accept or poll
    kConnecting,  ///< the rsocket connects; TCP has not started
    kConnected,
    kLost,  ///< inherited from the parent process, without its rsocket
  };
  static constexpr int kNone = -1;

  std::atomic<Mode> mode{Mode::kConnected};
  std::atomic<int> rsocket{kNone};
  std::atomic<int> descriptors{0};
  std::atomic<bool> failed{false};     ///< the connection failed; the rsocket reports why
  bool tried = false;                  ///< listening: an rsocket was made, or the attempt failed
  std::atomic<bool> accepting{false};  ///< a thread is about to accept a TCP connection
  int backlog = 0;
  int64_t connect_until_ns = 0;
  sockaddr_storage peer{};
  socklen_t peer_length = 0;
};

/// Returns null for a plain descriptor. Takes no lock.
Overlay* overlay_of(int fd);
/// Returns an overlay that no other thread sees before lay(), or null if there is no memory.
Overlay* spare_overlay(Overlay::Mode mode, int rsocket);
/// Puts the overlay over a descriptor. Returns false if there is no memory; then the overlay is back in the pool.
bool lay(int fd, Overlay* overlay);
/// Adds a descriptor for the same overlay.
void share(int fd, Overlay* overlay);
/// Removes the overlay of a descriptor. Removal of its last descriptor closes the rsocket.
void lift(int fd);
/// In a forked child: marks the parent's connections as lost. If the parent has made an rsocket, the child can make
/// none. The locks are new.
void forget_rsockets();
/// Records that the memory belongs to this process. Called before main and in a forked child.
void note_process();
/// True in a child of vfork(), which works in its parent's memory until it executes a program. The child closes and
/// copies only its own descriptors, so the parent's overlays must not change.
bool in_parents_memory();
/// True if this process may make rsockets: no parent made one before the fork.
bool usable();

/// Makes a nonblocking rsocket. The first call in a process also moves NUPA's own descriptors to high numbers, because
/// programs size tables by the numbers that they expect. Returns -1 and sets errno on failure.
int make_rsocket(int domain);
/// Sets the lowest number for NUPA's descriptors.
void set_floor(int floor);

/// Copies the socket options that rsockets support to the rsocket.
void take_over_options(int fd, int rsocket);
/// Makes a listener's rsocket if this process has not tried that yet. Returns its number, or kNone if there is only
/// TCP.
int listening_rsocket(int fd, Overlay* overlay);
/// The deadline of a connection attempt (CLOCK_MONOTONIC, ns).
inline int64_t connect_deadline(const Overlay& overlay) { return overlay.connect_until_ns; }

/// While an object lives, poll() and ppoll() of this thread are libc's. rsockets need this because their waits include
/// the program's descriptors.
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
