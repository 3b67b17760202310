// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The lines that NUPA_EXPLAIN makes a process print, for tests of programs. The variable is read once, so a test that
/// needs it runs in another process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <string>

namespace nupa::test {

/// Returns what a call prints, without the process's name; "" if it prints nothing.
inline std::string printed_by(const std::function<void()>& call) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const int before = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  call();
  const int error = errno;
  dup2(before, STDERR_FILENO);
  close(before);
  char text[4096];
  const ssize_t bytes = read(ends[0], text, sizeof text);
  close(ends[0]);
  close(ends[1]);
  errno = error;
  const std::string line(text, bytes < 0 ? 0 : static_cast<size_t>(bytes));
  const std::string head = "nupa[" + std::to_string(getpid()) + "] info: ";
  if (line.rfind(head, 0) != 0) return line;
  return line.substr(head.size(), line.size() - head.size() - 1);
}

/// Runs a disabled test of this program with the variable ("NAME=value"). Returns its exit status.
inline int run_again(const char* test, const char* variable) {
  const std::string filter = std::string("--gtest_filter=") + test;
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("NUPA_LOG");
    putenv(const_cast<char*>(variable));
    const int nothing = open("/dev/null", O_WRONLY);
    dup2(nothing, STDOUT_FILENO);
    dup2(nothing, STDERR_FILENO);
    execl("/proc/self/exe", "tests", filter.c_str(), "--gtest_also_run_disabled_tests", nullptr);
    _exit(99);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

}  // namespace nupa::test
