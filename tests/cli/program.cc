// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace nupa::test {
namespace {

constexpr std::chrono::milliseconds kPause{2};

base::UniqueFd file_of(const std::string& content) {
  base::UniqueFd file(memfd_create("nupa-cli-test", MFD_CLOEXEC));
  if (file && pwrite(file.get(), content.data(), content.size(), 0) != ssize_t(content.size())) file.reset();
  return file;
}

std::string content_of(const base::UniqueFd& file) {
  struct stat status;
  if (fstat(file.get(), &status) != 0) return {};
  std::string text(static_cast<size_t>(status.st_size), '\0');
  const ssize_t length = pread(file.get(), text.data(), text.size(), 0);
  text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return text;
}

const char* nupa_program() {
  const char* const other = std::getenv("NUPA_PROGRAM");
  return other != nullptr && *other != '\0' ? other : NUPA_PROGRAM;
}

}  // namespace

bool await(const std::function<bool()>& holds, std::chrono::nanoseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(kPause);  // sleep: the pause between two looks
  }
  return true;
}

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "nupa-cli-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << name << ": errno " << errno;
  path_ = name;
}

Folder::~Folder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::string Folder::write(const std::string& name, const std::string& text, unsigned mode) const {
  const std::string path = *this / name;
  std::ofstream(path) << text;
  EXPECT_EQ(chmod(path.c_str(), mode), 0);
  return path;
}

std::string built(const Folder& folder, const std::string& name, const std::string& text, const std::string& options) {
  const std::string source = folder.write(name + ".c", text);
  const std::string made = folder / name;
  EXPECT_EQ(std::system(("cc -o " + made + " " + source + " " + options + " 2>&1").c_str()), 0);
  return made;
}

Program::Program(Start start) : out_(file_of("")), err_(file_of("")) {
  const base::UniqueFd input = file_of(start.input);
  const std::string program = start.program.empty() ? nupa_program() : start.program;
  std::vector<char*> words{const_cast<char*>(program.c_str())};
  for (const std::string& word : start.arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t test = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != test) _exit(1);
    lseek(input.get(), 0, SEEK_SET);
    for (const auto& [from, to] : {std::pair(input.get(), 0), std::pair(out_.get(), 1), std::pair(err_.get(), 2)}) {
      const std::string path = "/proc/self/fd/" + std::to_string(from);
      // Each opens it on its own: what two processes say is appended.
      const int opened = open(path.c_str(), to == 0 ? O_RDONLY : O_WRONLY | O_APPEND);
      if (opened < 0 || dup2(opened, to) < 0) _exit(1);
      if (opened > 2) close(opened);
    }
    for (const auto& [name, value] : start.environment) setenv(name.c_str(), value.c_str(), 1);
    for (const std::string& name : start.without) unsetenv(name.c_str());
    if (start.in_child && !start.in_child()) _exit(1);
    execv(program.c_str(), words.data());
    _exit(1);
  }
  EXPECT_GT(pid_, 0);
}

Program::~Program() {
  if (pid_ <= 0 || ended_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

int Program::wait(std::chrono::nanoseconds limit) {
  int status = 0;
  if (!ended_ && await([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, limit)) {
    ended_ = true;
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  return status_;
}

std::string Program::out() const { return content_of(out_); }
std::string Program::err() const { return content_of(err_); }

bool Program::await_out(const std::string& text, size_t times) const {
  return await([&] { return count_of(out(), text) >= times; });
}

void Program::send(int signal) const { EXPECT_EQ(kill(pid_, signal), 0); }

Said run_nupa(Start start) {
  Program program(std::move(start));
  const int status = program.wait();
  return {status, program.out(), program.err()};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> sorted_lines_of(const std::string& text) {
  std::vector<std::string> lines = lines_of(text);
  std::sort(lines.begin(), lines.end());
  return lines;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  return end == text.npos || end + 2 >= text.size() ? '-' : text[end + 2];
}

}  // namespace nupa::test
