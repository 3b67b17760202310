// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Starts the nupa program for a test, with its arguments and input, and returns its output and exit status.
#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace nupa::test {

/// For what is there at once on a machine that has nothing else to do.
constexpr std::chrono::seconds kProgramLimit{30};

/// Asks again and again until it holds. False: it does not within the limit.
bool await(const std::function<bool()>& holds, std::chrono::nanoseconds limit = kProgramLimit);

/// A folder that goes with the test.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  /// Returns its path.
  std::string write(const std::string& name, const std::string& text, unsigned mode = 0600) const;

 private:
  std::string path_;
};

/// Builds a program or a library of C in the folder with the machine's compiler. Returns its path.
std::string built(const Folder& folder, const std::string& name, const std::string& text, const std::string& options);

struct Start {
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;  ///< besides the test's own
  std::vector<std::string> without;                ///< names that are taken from it
  std::string input;
  std::function<bool()> in_child;  ///< before the program is there; false: it is not started
  /// What is started instead of nupa.
  std::string program;
};

class Program {
 public:
  explicit Program(Start start);
  /// Kills it if it runs.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  /// Its exit status; 1000 and the signal's number if one killed it; -1: it does not end within the limit.
  int wait(std::chrono::nanoseconds limit = kProgramLimit);
  std::string out() const;
  std::string err() const;
  bool await_out(const std::string& text, size_t times = 1) const;
  void send(int signal) const;

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = -1;
  base::UniqueFd out_, err_;
};

struct Said {
  int status;
  std::string out, err;
};
/// From its start to its end.
Said run_nupa(Start start);
inline Said run_nupa(std::vector<std::string> arguments) {
  Start start;
  start.arguments = std::move(arguments);
  return run_nupa(std::move(start));
}

std::vector<std::string> lines_of(const std::string& text);
std::vector<std::string> sorted_lines_of(const std::string& text);
size_t count_of(const std::string& text, const std::string& part);
inline bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }
/// The letter of a process's state in /proc; '-': there is none.
char state_of(pid_t pid);
/// It has ended, or nobody has collected it yet.
inline bool is_gone(pid_t pid) { return state_of(pid) == '-' || state_of(pid) == 'Z' || state_of(pid) == 'X'; }

}  // namespace nupa::test
