// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "progress/clock.h"
#include "progress/waiter.h"
#include "transport/pool/medium/make_pool.h"

namespace nupa::test {

/// A process of the pool that lives until the test kills it.
class PoolMember {
 public:
  explicit PoolMember(const std::string& spec) {
    int pipes[2];
    if (pipe(pipes) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      const auto pool = pool::make_pool(*pool::parse_spec(spec, ""));
      const bool is_there = pool && (*pool)->join({}) && (*pool)->allocate(4096);
      [[maybe_unused]] const ssize_t written = write(pipes[1], is_there ? "y" : "n", 1);
      // sleep: heartbeats come at an interval, until the test kills this process.
      for (;; progress::sleep_for(50'000'000)) (*pool)->beat(progress::now_ns());
    }
    char word = 0;
    joined_ = read(pipes[0], &word, 1) == 1 && word == 'y';
    close(pipes[0]);
    close(pipes[1]);
  }
  ~PoolMember() { end(); }
  bool joined() const { return joined_; }
  void end() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  pid_t child_ = -1;
  bool joined_ = false;
};

}  // namespace nupa::test
