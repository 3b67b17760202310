// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What tests of processes that meet share: a runtime directory of their own, a process that is played, sockets whose
/// other side belongs to another user.
#include <gtest/gtest.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "../../support/soon.h"
#include "base/clock.h"
#include "base/shared_file.h"
#include "host/wire.h"
#include "shm/segment.h"

namespace nupa::host::test {

constexpr int64_t kSoonNs = 20'000'000'000;  // a sanitizer on a busy machine
constexpr int kSoonMs = 20'000;
constexpr uid_t kNobody = 65534;

using nupa::test::soon;

/// NUPA_RUNTIME_DIR for as long as it lives.
class Folder {
 public:
  Folder() {
    char made[] = "/tmp/nupa-cm-test-XXXXXX";
    EXPECT_NE(nullptr, mkdtemp(made));
    path_ = made;
    if (const char* before = getenv("NUPA_RUNTIME_DIR"); before != nullptr) before_ = before;
    setenv("NUPA_RUNTIME_DIR", made, 1);
  }
  ~Folder() {
    if (before_.empty())
      unsetenv("NUPA_RUNTIME_DIR");
    else
      setenv("NUPA_RUNTIME_DIR", before_.c_str(), 1);
    std::filesystem::remove_all(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_, before_;
};

struct Ends {
  base::UniqueFd one, other;
};
inline Ends make_pair(int flags = SOCK_NONBLOCK) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0, ends));
  return {base::UniqueFd(ends[0]), base::UniqueFd(ends[1])};
}

inline sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  EXPECT_LT(static_cast<size_t>(std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str())),
            sizeof address.sun_path);
  return address;
}
/// A socket bound to `path`; it listens for `backlog` connections unless that is negative.
inline base::UniqueFd socket_at(const std::string& path, int backlog) {
  base::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = address_of(path);
  EXPECT_EQ(0, bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
  EXPECT_TRUE(backlog < 0 || listen(fd.get(), backlog) == 0);
  return fd;
}
inline bool connect_by(int socket, const std::string& path) {
  const sockaddr_un address = address_of(path);
  return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}
inline base::UniqueFd connect_to(const std::string& path) {
  base::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!connect_by(fd.get(), path)) fd.reset();
  return fd;
}
constexpr int kNotListening = -1;
constexpr int kBacklog = 8;

/// Status of a child in which an EXPECT failed: nobody else sees that.
constexpr int kFailedExpectation = 99;

/// Runs `body` in a child of fork and returns its result; 1000 + the signal that ended it.
inline int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const int result = body();
    _exit(::testing::Test::HasFailure() ? kFailedExpectation : result);
  }
  int status = 0;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/// A socket whose other side a process of `user` has made. Needs root.
inline base::UniqueFd socket_from_user(uid_t user) {
  const Ends link = make_pair();
  const Message carrier{kWireMagic, kWireVersion, static_cast<uint32_t>(MessageKind::kGoodbye), 0, 0, 0, 0};
  EXPECT_EQ(0, in_child([&] {
              if (setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0) return 1;
              const Ends ends = make_pair();
              const int fds[] = {ends.one.get(), ends.other.get()};
              return send_message(link.one.get(), carrier, fds, 2) ? 0 : 2;
            }));
  auto received = receive_message(link.other.get());
  EXPECT_TRUE(received && received->fd_count == 2);
  return received ? std::move(received->fds[0]) : base::UniqueFd();
}

/// A pipe whose writing end is given away: `closed()` is true when nobody has that end any more.
class Token {
 public:
  Token() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(0, pipe2(ends, O_CLOEXEC | O_NONBLOCK));
    read_.reset(ends[0]);
    write_.reset(ends[1]);
  }
  int fd() const { return write_.get(); }
  base::UniqueFd take() { return std::move(write_); }
  void drop() { write_.reset(); }
  bool closed() const {
    char nothing;
    return ::read(read_.get(), &nothing, 1) == 0;
  }

 private:
  base::UniqueFd read_, write_;
};

/// What a process shows to others, as a test likes it.
class FakeProcess {
 public:
  explicit FakeProcess(uint32_t slot = 77, uint64_t instance = 0x1122334455667788) : instance_(instance) {
    auto segment = shm::Segment::create();
    auto region = base::make_shared_file("nupa-test-region");
    EXPECT_TRUE(segment && region);
    if (!segment || !region) return;
    segment_ = std::move(*segment);
    region_ = std::move(*region);
    wakeup_fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    header().slot = slot;
    header().instance = instance;
  }
  shm::SegmentHeader& header() { return *segment_->tables().header; }
  const shm::Tables& tables() { return segment_->tables(); }
  Result<shm::Segment::Block> allocate(uint64_t bytes) { return segment_->allocate(bytes); }
  int segment_fd() const { return segment_->fd(); }
  int region_fd() const { return region_.get(); }
  int wakeup_fd() const { return wakeup_fd_.get(); }

  Message message(MessageKind kind, uint32_t index = 0) {
    return {kWireMagic, kWireVersion, static_cast<uint32_t>(kind), header().slot, index, header().instance, 0};
  }
  Message hello() {
    Message hello = message(MessageKind::kHello);
    hello.probe = reinterpret_cast<uint64_t>(&instance_);
    return hello;
  }
  bool send_hello(int socket) {
    const int fds[kMaxFds] = {segment_fd(), region_fd(), wakeup_fd()};
    return send_message(socket, hello(), fds, kMaxFds).has_value();
  }
  /// As it arrives at another process.
  Received received_hello() {
    Received received;
    received.message = hello();
    for (const int fd : {segment_fd(), region_fd(), wakeup_fd()}) received.fds[received.fd_count++].reset(dup(fd));
    return received;
  }

 private:
  uint64_t instance_;
  std::unique_ptr<shm::Segment> segment_;
  base::UniqueFd region_, wakeup_fd_;
};

}  // namespace nupa::host::test
