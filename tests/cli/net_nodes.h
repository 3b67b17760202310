// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Network namespaces with nodes in them, and UDP between those.
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "json/json.h"
#include "netdev/prefix.h"
#include "program.h"

namespace nupa::test {

using nlohmann::json;
using Words = std::vector<std::string>;

constexpr uint16_t kPort = 4000;

/// A network namespace with its loopback, as long as this object.
class Namespace {
 public:
  Namespace() {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) return;
    const pid_t test = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != test || unshare(CLONE_NEWNET) != 0) _exit(1);
      ifreq loopback{};
      loopback.ifr_name[0] = 'l';
      loopback.ifr_name[1] = 'o';
      loopback.ifr_flags = IFF_UP | IFF_LOOPBACK | IFF_RUNNING;
      const int asks = socket(AF_INET, SOCK_DGRAM, 0);
      if (ioctl(asks, SIOCSIFFLAGS, &loopback) != 0 || write(ready[1], "", 1) != 1) _exit(1);
      for (;;) pause();
    }
    close(ready[1]);
    char word;
    if (read(ready[0], &word, 1) == 1)
      fd_.reset(open(("/proc/" + std::to_string(pid_) + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
    close(ready[0]);
  }
  ~Namespace() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Namespace(const Namespace&) = delete;
  Namespace& operator=(const Namespace&) = delete;

  explicit operator bool() const { return static_cast<bool>(fd_); }
  pid_t pid() const { return pid_; }
  bool enter() const { return setns(fd_.get(), CLONE_NEWNET) == 0; }
  /// On a thread that is in it.
  void run(const std::function<void()>& what) const {
    std::thread([&] {
      ASSERT_TRUE(enter());
      what();
    }).join();
  }

 private:
  pid_t pid_ = -1;
  base::UniqueFd fd_;
};

inline sockaddr_in address_of(const std::string& text, uint16_t port = kPort) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET, text.c_str(), &address.sin_addr), 1);
  return address;
}

struct Setting {
  int level, name, value;
};

/// A socket of datagrams in a namespace, at an address of it.
inline base::UniqueFd datagrams_at(const Namespace& space, const std::string& address,
                                   const std::vector<Setting>& settings = {}) {
  base::UniqueFd made;
  space.run([&] {
    made.reset(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    for (const Setting& one : settings)
      EXPECT_EQ(setsockopt(made.get(), one.level, one.name, &one.value, sizeof one.value), 0);
    const sockaddr_in own = address_of(address);
    EXPECT_EQ(bind(made.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own), 0) << strerror(errno);
  });
  return made;
}

inline void send_datagram(const base::UniqueFd& from, const std::string& to, size_t bytes) {
  const std::string text(bytes, 'x');
  const sockaddr_in there = address_of(to);
  EXPECT_EQ(sendto(from.get(), text.data(), bytes, 0, reinterpret_cast<const sockaddr*>(&there), sizeof there),
            ssize_t(bytes))
      << strerror(errno);
}

inline bool comes(const base::UniqueFd& at, size_t bytes) {
  pollfd entry{at.get(), POLLIN, 0};
  if (poll(&entry, 1, 20'000) != 1) return false;
  std::string text(70'000, '\0');
  return recv(at.get(), text.data(), text.size(), 0) == ssize_t(bytes);
}

class CliNet : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
    if (const char* const before = getenv("NUPA_RUNTIME_DIR")) before_ = before;
    setenv("NUPA_RUNTIME_DIR", directory.c_str(), 1);  // for questions of the test itself
  }
  void TearDown() override {
    if (before_.empty())
      unsetenv("NUPA_RUNTIME_DIR");
    else
      setenv("NUPA_RUNTIME_DIR", before_.c_str(), 1);
  }
  Start net(Words words, const Namespace* space = nullptr) const {
    words.insert(words.begin(), "net");
    Start start;
    start.arguments = std::move(words);
    start.environment = {{"HOME", folder.path()},
                         {"XDG_CONFIG_HOME", folder.path()},
                         {"NUPA_RUNTIME_DIR", directory},
                         {"NUPA_TRANSPORT", "auto"}};
    if (space != nullptr) start.in_child = [space] { return space->enter(); };
    return start;
  }
  /// What is said of a start that fails.
  std::string refusal_of(Words words, const Namespace* space = nullptr, int status = 1) const {
    const Said said = run_nupa(net(std::move(words), space));
    EXPECT_EQ(said.status, status) << said.out << said.err;
    EXPECT_EQ(lines_of(said.err).size(), 1u) << said.err;
    return said.err;
  }
  std::string usage_error_of(Words words) const { return refusal_of(std::move(words), nullptr, 2); }

  const Folder folder;
  const std::string directory = folder / "run";

 private:
  std::string before_;
};

/// Nodes need network namespaces and TUN.
class CliNetNodes : public CliNet {
 protected:
  void SetUp() override {
    CliNet::SetUp();
    if (geteuid() != 0 || !first || ::access("/dev/net/tun", R_OK | W_OK) != 0)
      GTEST_SKIP() << "needs root, network namespaces and /dev/net/tun";
  }
  /// Node nX with 10.77.0.X, which runs until it is destroyed.
  std::unique_ptr<Program> up(const Namespace& space, int number, const Words& options = {},
                              bool awaited = true) const {
    const std::string name = "n" + std::to_string(number);
    Words words = {"up", "lab", "--node", name};
    if (std::find(options.begin(), options.end(), "--addr") == options.end())
      words.insert(words.end(), {"--addr", "10.77.0." + std::to_string(number) + "/24"});
    words.insert(words.end(), options.begin(), options.end());
    auto program = std::make_unique<Program>(net(words, &space));
    if (awaited) {
      EXPECT_TRUE(program->await_out("is up\n")) << program->err();
    }
    return program;
  }
  json status(const std::string& node) const {
    const json all = parse_json(run_nupa(net({"status", "--node", node, "--json"})).out).value_or(json());
    return all.is_array() && all.size() == 1 ? all[0] : json();
  }
  /// What one node says of another.
  json peer(const std::string& node, const std::string& other) const {
    const json said = status(node);
    if (said.is_object())
      for (const json& one : said["peers"])
        if (one["node"] == other) return one;
    return json{{"state", "unknown"}};
  }
  bool are_joined(const std::string& one, const std::string& other) const {
    return await([&] { return peer(one, other)["state"] == "up" && peer(other, one)["state"] == "up"; });
  }
  /// Why a node's question to others has failed.
  std::string why(const std::string& node) const {
    std::string all;
    const json said = status(node);
    if (said.is_object())
      for (const json& one : said["asked"]) all += one["why"].get<std::string>() + "\n";
    return all;
  }

  const Namespace first, second, third;
};

}  // namespace nupa::test
