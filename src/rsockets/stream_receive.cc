// SPDX-License-Identifier: Apache-2.0
/// Receiving: copies from the receive buffer into the program's memory. Also shutdown and close of a connection.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>

#include "rsockets/cursor.h"
#include "rsockets/listener.h"
#include "rsockets/service.h"
#include "rsockets/stream.h"

namespace nupa::rsockets {
namespace {

/// How long close() waits until sent data is placed at the peer, if SO_LINGER is not set.
constexpr int64_t kLingerMs = 10'000;

}  // namespace

bool Stream::at_end() const {
  return peer_shut_.load(std::memory_order_acquire) || read_shut_.load(std::memory_order_relaxed) ||
         phase() >= Phase::kDisconnected;
}

size_t Stream::readable_bytes() {
  ready(0);
  return ring_.available();
}

size_t Stream::copy_out(Pieces room, size_t skip_room, bool peek) {
  Cursor cursor(room);
  cursor.advance(skip_room);
  size_t left = room.bytes() - skip_room;
  size_t copied = 0;
  while (left != 0) {
    const ReceiveRing::Span span = ring_.readable(peek ? copied : 0);
    const auto step = static_cast<uint32_t>(std::min<size_t>(span.length, left));
    if (step == 0) break;
    cursor.copy_from(buffers_->receive() + span.offset, step);
    if (!peek) ring_.consume(step);
    copied += step;
    left -= step;
  }
  return copied;
}

ssize_t Stream::receive(Pieces room, int flags, sockaddr* from, socklen_t* length) {
  if ((flags & MSG_OOB) != 0) return -EINVAL;
  const bool nonblocking_call = nonblocking() || (flags & MSG_DONTWAIT) != 0;
  if (!connected()) [[unlikely]] {
    const int rc = connecting() ? finish_connecting(nonblocking_call) : 0;
    if (rc != 0) return rc;
    if (phase() == Phase::kIdle || phase() == Phase::kListening) return -ENOTCONN;
  }
  std::lock_guard lock(receive_mutex_);
  const size_t total = room.bytes();
  const bool peek = (flags & MSG_PEEK) != 0;
  const bool whole = (flags & MSG_WAITALL) != 0 && !peek;
  size_t done = 0;
  int rc = 0;
  if (peek) ready(0);  // bytes of an earlier peek are still available, so nothing else would check for more
  while (done < total) {
    if (ring_.available() == 0) {
      if (nonblocking_call) {
        ready(0);
        if (ring_.available() == 0 && !at_end()) rc = -EAGAIN;
      } else {
        rc = wait_until(Deadline::in_ms(options_.receive_timeout_ms),
                        [this] { return ring_.available() != 0 || at_end(); });
      }
      if (rc != 0) break;
      if (ring_.available() == 0) {  // end of file
        if (done == 0) rc = -take_error();
        break;
      }
    }
    done += copy_out(room, done, peek);
    if (ring_.publish_due() && connected()) {
      std::lock_guard completions(completions_);
      update_credits();
    }
    if (!whole) break;
  }
  if (done != 0 && from != nullptr && length != nullptr) peer_name(from, length);
  return done != 0 ? static_cast<ssize_t>(done) : rc;
}

int Stream::shutdown(int how) {
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return -EINVAL;
  if (phase() == Phase::kListening) {
    if (how == SHUT_WR) return 0;
    listener_->refuse_all();
    read_shut_.store(true);
    observers().notify();
    return 0;
  }
  if (connecting() && give_up(ECONNRESET)) return 0;
  if (!connected()) return phase() == Phase::kIdle ? -ENOTCONN : 0;
  keep_alive_.stop();
  const bool write_was_shut = write_shut_.load();
  if (how != SHUT_WR) read_shut_.store(true);
  if (how != SHUT_RD) write_shut_.store(true);
  observers().notify();
  int rc = 0;
  if (how != SHUT_RD && !write_was_shut) {
    std::lock_guard sending(send_mutex_);  // waits until the last data is sent; a blocked send was notified to return
    const bool both = read_shut_.load() || peer_shut_.load();
    const auto room = [this] { return control_room() || !connected(); };
    rc = wait_through_signals(Deadline::in_ms(kLingerMs), room);
    std::lock_guard lock(completions_);
    if (rc == 0 && connected()) {
      rc = post_control(encode(both ? Control::kDisconnect : Control::kShutdown), nullptr);
      end_reported_ = true;
    }
  } else if (how != SHUT_WR && write_was_shut) {
    std::lock_guard lock(completions_);
    if (connected() && control_room()) {
      rc = post_control(encode(Control::kDisconnect), nullptr);
    }
  }
  read_edges_.fetch_add(1);
  write_edges_.fetch_add(1);
  observers().notify();
  return rc;
}

void Stream::close() {
  if (closing_.exchange(true)) return;
  if (connected()) shutdown(SHUT_RDWR);
  if (phase() == Phase::kConnected || phase() == Phase::kDisconnected) {
    const int seconds = options_.linger_seconds;
    const int64_t wait_ms = seconds < 0 ? kLingerMs : seconds * INT64_C(1000);
    if (wait_ms != 0) await_goodbye(Deadline::in_ms(wait_ms));
    rdma_disconnect(id_);
  }
  keep_alive_.stop();
  if (listener_) {
    read_shut_.store(true);
    listener_->stop();
  }
  if (phase() != Phase::kFailed && !listener_) enter(Phase::kDisconnected);
  observers().notify();
}

void Stream::send_goodbye() {
  if (!connected() || closing_.load()) return;
  std::lock_guard lock(completions_);
  progress_locked();
  if (connected() && control_room()) post_control(encode(Control::kDisconnect), nullptr);
}

void Stream::await_goodbye(const Deadline& deadline) {
  // Every control message is signaled, and its completion also covers the data before it.
  wait_through_signals(deadline, [this] {
    return controls_posted_.load() == controls_done_.load() || phase() == Phase::kFailed || broken_.load() != 0;
  });
}

int Stream::listen(int backlog) {
  if (listener_) {
    listener_->set_backlog(backlog);
    return 0;
  }
  if (phase() != Phase::kIdle) return -EINVAL;
  listener_ = Listener::make(this, backlog);
  if (!listener_) return -errno;
  enter(Phase::kListening);
  return 0;
}

int Stream::accept(Socket** accepted) {
  if (phase() != Phase::kListening) return -EINVAL;
  std::lock_guard lock(receive_mutex_);
  for (;;) {
    if (auto stream = listener_->take()) {
      *accepted = stream.release();
      return 0;
    }
    if (read_shut_.load() || closing_.load()) return -EINVAL;
    if (nonblocking()) return -EAGAIN;
    const int rc = wait_until(Deadline::in_ms(options_.receive_timeout_ms),
                              [this] { return listener_->readable() || read_shut_.load() || closing_.load(); });
    if (rc != 0) return rc;
  }
}

void Stream::start_keepalive() {
  keep_alive_.start(keepalive_seconds(), [this] { send_keepalive(); });
}

}  // namespace nupa::rsockets
