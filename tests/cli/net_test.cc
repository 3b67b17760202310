// SPDX-License-Identifier: Apache-2.0
// `nupa net`: nodes in network namespaces of their own, what their kernels are given, and what is said about them.
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
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "netdev/door.h"
#include "netdev/prefix.h"
#include "program.h"

namespace nupa::test {
namespace {

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

sockaddr_in address_of(const std::string& text, uint16_t port = kPort) {
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
base::UniqueFd datagrams_at(const Namespace& space, const std::string& address,
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

void send_datagram(const base::UniqueFd& from, const std::string& to, size_t bytes) {
  const std::string text(bytes, 'x');
  const sockaddr_in there = address_of(to);
  EXPECT_EQ(sendto(from.get(), text.data(), bytes, 0, reinterpret_cast<const sockaddr*>(&there), sizeof there),
            ssize_t(bytes))
      << strerror(errno);
}

bool comes(const base::UniqueFd& at, size_t bytes) {
  pollfd entry{at.get(), POLLIN, 0};
  if (poll(&entry, 1, 20'000) != 1) return false;
  std::string text(70'000, '\0');
  return recv(at.get(), text.data(), text.size(), 0) == ssize_t(bytes);
}

bool has_ipv6() { return std::filesystem::exists("/proc/self/net/if_inet6"); }

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
  std::string refusal_of(Words words, const Namespace* space = nullptr) const {
    const Said said = run_nupa(net(std::move(words), space));
    EXPECT_EQ(said.status, 1) << said.out << said.err;
    EXPECT_EQ(lines_of(said.err).size(), 1u) << said.err;
    return said.err;
  }

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
    const json all = json::parse(run_nupa(net({"status", "--node", node, "--json"})).out, nullptr, false);
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

TEST_F(CliNet, Key_IsSixtyFourDigitsThatNobodyElseHas) {
  const Said one = run_nupa(net({"key"})), other = run_nupa(net({"key"}));
  EXPECT_EQ(one.status, 0);
  EXPECT_EQ(one.out.size(), 65u);
  EXPECT_EQ(one.out.find_first_not_of("0123456789abcdef"), 64u);
  EXPECT_NE(one.out, other.out);
}

TEST_F(CliNet, KeyFile_OpenToOthersOrWithoutAKey_IsRefused) {
  const std::string key = run_nupa(net({"key"})).out;
  const auto refusal = [&](const std::string& file) {
    return refusal_of({"up", "lab", "--addr", "10.77.0.1/24", "--key-file", file});
  };
  for (const unsigned mode : {0640u, 0620u, 0610u, 0604u, 0602u, 0601u})
    EXPECT_TRUE(has(refusal(folder.write("key", key, mode)), "is open to others: chmod 600 it")) << mode;
  EXPECT_TRUE(has(refusal(folder.write("key", key.substr(1))), "64 hexadecimal digits"));
  EXPECT_TRUE(has(refusal(folder.write("key", "")), "64 hexadecimal digits"));
  EXPECT_TRUE(has(refusal(folder / "missing"), "cannot be read"));
}

TEST_F(CliNet, Up_OptionsThatCannotBe_AreRefused) {
  EXPECT_TRUE(has(refusal_of({"up", "lab"}), "a node needs an address: --addr 10.77.0.1/24"));
  EXPECT_TRUE(has(refusal_of({"up", "lab", "--addr", "10.77.0.1/33"}), "'10.77.0.1/33': "));
  EXPECT_TRUE(has(refusal_of({"up", "lab", "--addr", "224.0.0.1"}), "'224.0.0.1': "));
  EXPECT_TRUE(has(refusal_of({"up", "lab", "--addr", "10.77.0.1/24", "--peer", "host"}), "'host': "));
  const std::string key = folder.write("key", run_nupa(net({"key"})).out);
  EXPECT_TRUE(has(refusal_of({"up", "no/name", "--addr", "10.77.0.1/24", "--key-file", key}), "names have letters"));
  EXPECT_TRUE(has(refusal_of({"up", "lab", "--node", ".hidden", "--addr", "10.77.0.1/24"}), "names have letters"));
  for (const Words& words : std::vector<Words>{
           {"--mtu", "1279"}, {"--mtu", "65521"}, {"--queues", "0"}, {"--queues", "17"}, {"--config", "/missing"}}) {
    Words all = {"up", "lab", "--addr", "10.77.0.1/24"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_EQ(run_nupa(net(all)).status, 2) << words[0] << " " << words[1];
  }
  EXPECT_EQ(run_nupa(net({})).status, 2);
  EXPECT_EQ(run_nupa(net({"up"})).status, 2);
}

TEST_F(CliNet, Up_WithoutAFolderForTheKey_AsksForItsFile) {
  Start start = net({"up", "lab", "--addr", "10.77.0.1/24"});
  start.environment["XDG_CONFIG_HOME"] = "";
  start.environment["HOME"] = "";
  for (const Words& without : {Words{}, Words{"XDG_CONFIG_HOME", "HOME"}}) {
    start.without = without;
    const Said said = run_nupa(start);
    EXPECT_EQ(said.status, 1);
    EXPECT_TRUE(has(said.err, "name its file by --key-file")) << said.err;
  }
}

TEST_F(CliNet, Config_ThatIsNotOfThisNode_IsRefused) {
  const auto refusal = [&](const std::string& text, const std::string& node = "n1") {
    return refusal_of({"up", "lab", "--node", node, "--config", folder.write("lab.json", text)});
  };
  EXPECT_TRUE(has(refusal("{"), "is no network"));
  EXPECT_TRUE(has(refusal("[]"), "is no network"));
  EXPECT_TRUE(has(refusal(R"({"nodes":[]})"), "is no network"));
  EXPECT_TRUE(
      has(refusal(R"({"network":"office","nodes":{"n1":{"addresses":["10.77.0.1/24"]}}})"), "is of network office"));
  EXPECT_TRUE(has(refusal(R"({"nodes":{"n1":{"addresses":["10.77.0.1/24"]}}})", "n2"), "has no node 'n2'"));
  EXPECT_TRUE(has(refusal(R"({"nodes":{"n1":{}}})"), "lab.json: "));
  EXPECT_TRUE(has(refusal(R"({"nodes":{"n1":{"addresses":["10.77.0/24"]}}})"), "'10.77.0/24': "));
  EXPECT_TRUE(has(refusal(R"({"nodes":{"n1":{"addresses":["10.77.0.1/24"]},"n2":{"hosts":["h"]}}})"), "'h': "));
}

TEST_F(CliNet, Config_MtuThatCannotBe_IsRefusedWithItsValue) {
  const auto refusal = [&](const std::string& network_mtu, const std::string& node_mtu) {
    const auto as_field = [](const std::string& mtu) { return mtu.empty() ? "" : "\"mtu\":" + mtu + ","; };
    const std::string text = "{" + as_field(network_mtu) + "\"nodes\":{\"n1\":{" + as_field(node_mtu) +
                             "\"addresses\":[\"10.77.0.1/24\"]}}}";
    return refusal_of({"up", "lab", "--node", "n1", "--config", folder.write("lab.json", text)});
  };
  for (const std::string mtu : {"1279", "65521", "0", "-1500", "1500.5", "4294968796", "\"9000\"", "null", "[9000]"}) {
    const std::string wanted = "lab.json: mtu is " + mtu + ", not a number from 1280 to 65520";
    ASSERT_TRUE(has(refusal(mtu, ""), wanted)) << mtu;
    ASSERT_TRUE(has(refusal("9000", mtu), wanted)) << mtu;
  }
}

TEST_F(CliNet, Up_NamesThatCannotBe_LeaveNoKeyFile) {
  const auto folders_files = [&] {
    std::vector<std::string> all;
    for (const auto& one : std::filesystem::recursive_directory_iterator(folder.path())) all.push_back(one.path());
    return all;
  };
  const std::vector<std::string> before = folders_files();
  for (const std::string network : {"../lab", "no/name", ".lab", "a network", ""})
    EXPECT_TRUE(has(refusal_of({"up", network, "--addr", "10.77.0.1/24"}), "names have letters")) << network;
  EXPECT_TRUE(has(refusal_of({"up", "lab", "--node", "no/name", "--addr", "10.77.0.1/24"}), "names have letters"));
  EXPECT_EQ(run_nupa(net({"key", "lab"})).status, 2) << "the command prints a key and takes no name";
  EXPECT_EQ(folders_files(), before);
}

TEST_F(CliNet, WithoutNodes_DownFailsAndStatusSaysSo) {
  EXPECT_TRUE(has(refusal_of({"down"}), "there is no such node here"));
  const Said said = run_nupa(net({"status"}));
  EXPECT_EQ(said.status, 0);
  EXPECT_EQ(said.out, "no node runs here\n");
  EXPECT_EQ(run_nupa(net({"status", "--json"})).out, "[]\n");
}

TEST_F(CliNetNodes, Up_KeyThatIsNotThere_IsMadeForItsUserAlone) {
  const std::string path = folder / "nupa/lab.key";
  const auto one = up(first, 1);
  struct stat found {};
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0600u);
  EXPECT_EQ(found.st_size, 65);
  EXPECT_EQ(found.st_nlink, 1u);
  std::string before, after;
  std::ifstream(path) >> before;
  const auto other = up(second, 2);
  std::ifstream(path) >> after;
  EXPECT_EQ(before, after);
  EXPECT_TRUE(are_joined("n1", "n2"));
}

TEST_F(CliNetNodes, Up_KeyThatAnotherNodeMakesMeanwhile_IsTaken) {
  const auto one = up(first, 1);
  // This path leads to the key only once the folders for a new key have been made: the key is not there when the node
  // looks for it, and is there when it puts its own.
  Start start = net({"up", "lab", "--node", "n2", "--addr", "10.77.0.2/24"}, &second);
  start.environment["XDG_CONFIG_HOME"] = folder / "not-yet/..";
  const Program other(start);
  ASSERT_TRUE(other.await_out("is up\n")) << other.err();
  EXPECT_TRUE(are_joined("n1", "n2"));
  const auto files = std::filesystem::directory_iterator(folder / "nupa");
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "a key that nobody took is left";
}

TEST_F(CliNetNodes, Up_Interface_HasWhatIsSaidOfIt) {
  const auto one = up(first, 1, {"--mtu", "4000", "--addr", "10.77.0.1/20", "--interface", "lab0"});
  first.run([&] {
    const base::UniqueFd asks(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const auto ask = [&](unsigned long what) {
      ifreq request{};
      std::string("lab0").copy(request.ifr_name, IFNAMSIZ - 1);
      EXPECT_EQ(ioctl(asks.get(), what, &request), 0) << strerror(errno);
      return request;
    };
    const auto text = [](const ifreq& request) {
      char name[INET_ADDRSTRLEN] = "";
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(request.ifr_addr).sin_addr, name, sizeof name);
      return std::string(name);
    };
    EXPECT_EQ(ask(SIOCGIFMTU).ifr_mtu, 4000);
    EXPECT_EQ(text(ask(SIOCGIFADDR)), "10.77.0.1");
    EXPECT_EQ(text(ask(SIOCGIFNETMASK)), "255.255.240.0");
    constexpr int kWanted = IFF_UP | IFF_MULTICAST | IFF_NOARP;
    EXPECT_EQ(ask(SIOCGIFFLAGS).ifr_flags & kWanted, kWanted);
    std::string off;
    std::ifstream("/proc/sys/net/ipv6/conf/lab0/disable_ipv6") >> off;
    EXPECT_EQ(off, has_ipv6() ? "1" : "");
  });
  const json said = status("n1");
  EXPECT_EQ(said["interface"], "lab0");
  EXPECT_EQ(said["mtu"], 4000);
  EXPECT_EQ(said["addresses"], json::array({"10.77.0.1/20"}));
}

TEST_F(CliNetNodes, Up_Ipv6_HasTheNodesAddressesOnly) {
  if (!has_ipv6()) GTEST_SKIP() << "the machine has no IPv6";
  const auto one = up(first, 1, {"--addr6", "fd77::1/64", "--addr", "10.77.0.1/24"});
  first.run([] {
    std::ifstream file("/proc/thread-self/net/if_inet6");
    Words found;
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string address, index, length, scope, flags, interface;
      words >> address >> index >> length >> scope >> flags >> interface;
      if (interface == "nupa0") found.push_back(address + "/" + length);
    }
    std::string own;
    for (const uint8_t byte : netdev::link_local_of("n1").address.raw) {
      char digits[3];
      snprintf(digits, sizeof digits, "%02x", byte);
      own += digits;
    }
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, (Words{"fd770000000000000000000000000001/40", own + "/40"}));
  });
}

TEST_F(CliNetNodes, Up_SeveralAddresses_AreTheInterfacesAndReached) {
  if (!has_ipv6()) GTEST_SKIP() << "the machine has no IPv6";
  const auto one = up(first, 1, {"--addr", "10.77.0.1/24", "--addr", "10.78.0.1/16", "--addr6", "fd77::1/64"});
  const auto other = up(second, 2, {"--addr", "10.77.0.2/24", "--addr", "10.78.9.2/16", "--addr6", "fd77::2/64"});
  ASSERT_TRUE(are_joined("n1", "n2"));
  json addresses = json::array({"10.77.0.2/24", "10.78.9.2/16", "fd77::2/64"});
  addresses.push_back(netdev::link_local_of("n2").text());
  EXPECT_EQ(peer("n1", "n2")["addresses"], addresses);
  const std::pair<const char*, const char*> pairs[] = {{"10.77.0.1", "10.77.0.2"}, {"10.78.0.1", "10.78.9.2"}};
  for (const auto& [from, to] : pairs) {
    const auto sends = datagrams_at(first, from), takes = datagrams_at(second, to);
    send_datagram(sends, to, 100);
    EXPECT_TRUE(comes(takes, 100)) << to;
    send_datagram(takes, from, 200);
    EXPECT_TRUE(comes(sends, 200)) << from;
  }
}

TEST_F(CliNetNodes, Up_WithoutAName_HasItsFirstAddressesName) {
  const Program program(net({"up", "lab", "--addr", "10.77.0.5/24", "--addr", "10.77.0.6/24"}, &first));
  ASSERT_TRUE(program.await_out("is up\n")) << program.err();
  EXPECT_EQ(status("10.77.0.5")["node"], "10.77.0.5");
}

TEST_F(CliNetNodes, Up_InterfaceThatCannotBe_IsRefused) {
  const auto refusal = [&](const std::string& name) {
    return refusal_of({"up", "lab", "--addr", "10.77.0.1/24", "--interface", name}, &first);
  };
  for (const char* name : {"", "sixteen-letters-", "a/b", "a%d", "a b", "a\tb"})
    EXPECT_TRUE(has(refusal(name), "an interface's name has 1 to 15 characters")) << name;
  EXPECT_TRUE(has(refusal("lo"), "there is an interface of this name: lo"));
  EXPECT_TRUE(has(refusal_of({"up", "lab", "--addr", "::1/128"}, &first),
                  "the interface cannot be given its addresses: nupa0"));
  EXPECT_TRUE(has(up(first, 1, {"--interface", "fifteen-letters"})->out(), "interface fifteen-letters is up"));
  const auto one = up(first, 1);
  EXPECT_TRUE(has(refusal_of({"up", "lab", "--node", "n1", "--addr", "10.77.0.9/24", "--interface", "other"}, &first),
                  "a node of this name is in the network already: n1 in lab"));
  EXPECT_TRUE(has(refusal_of({"up", "office", "--node", "n1", "--addr", "10.77.0.9/24", "--queues", "2"}, &first),
                  "there is an interface of this name"));
}

TEST_F(CliNetNodes, Config_GivesWhatTheCommandLineDoesNot) {
  const std::string config =
      folder.write("lab.json", R"({"network":"lab","mtu":5000,"key_file":")" +
                                   folder.write("own.key", run_nupa(net({"key"})).out) + R"(","nodes":{
    "n1":{"addresses":["10.77.0.11/24"],"interface":"lab1","hosts":["127.0.0.9"]},
    "n2":{"addresses":["10.77.0.12/24"],"mtu":6000,"hosts":["127.0.0.2","127.0.0.3"]}}})");
  const auto start = [&](Words words) {
    words.insert(words.begin(), {"up", "lab", "--config", config});
    auto program = std::make_unique<Program>(net(words, &first));
    EXPECT_TRUE(program->await_out("is up\n")) << program->err();
    return program;
  };
  auto node = start({"--node", "n1"});
  json said = status("n1");
  EXPECT_EQ(said["addresses"], json::array({"10.77.0.11/24"}));
  EXPECT_EQ(said["interface"], "lab1");
  EXPECT_EQ(said["mtu"], 5000);
  std::vector<std::string> asked;
  for (const json& one : said["asked"]) asked.push_back(one["at"]);
  EXPECT_EQ(asked, (Words{"127.0.0.2", "127.0.0.3"}));  // others' hosts, not its own
  EXPECT_FALSE(std::filesystem::exists(folder / "nupa/lab.key"));
  node.reset();
  node = start({"--node", "n2", "--mtu", "7000", "--addr", "10.77.0.99/24"});
  said = status("n2");
  EXPECT_EQ(said["addresses"], json::array({"10.77.0.99/24"}));
  EXPECT_EQ(said["mtu"], 7000);
  node.reset();
  node = start({"--node", "n2"});
  EXPECT_EQ(status("n2")["mtu"], 6000);
}

TEST_F(CliNetNodes, Status_CountsPacketsAndKeepsThemOverConnections) {
  const auto one = up(first, 1);
  auto other = up(second, 2);
  ASSERT_TRUE(are_joined("n1", "n2"));
  const auto sends = datagrams_at(first, "10.77.0.1");
  auto takes = datagrams_at(second, "10.77.0.2");
  for (int i = 0; i < 10; ++i) {
    send_datagram(sends, "10.77.0.2", 100);
    EXPECT_TRUE(comes(takes, 100));
  }
  send_datagram(takes, "10.77.0.1", 1000);
  EXPECT_TRUE(comes(sends, 1000));
  json there = peer("n1", "n2"), here = peer("n2", "n1");
  EXPECT_EQ(there["sent"]["packets"], 10);
  EXPECT_EQ(there["sent"]["bytes"], 10 * 128);
  EXPECT_EQ(there["received"]["packets"], 1);
  EXPECT_EQ(there["received"]["bytes"], 1028);
  EXPECT_EQ(here["sent"], there["received"]);
  EXPECT_EQ(here["received"], there["sent"]);
  EXPECT_EQ(there["connections"], 1);
  EXPECT_EQ(there["addresses"], json::array({"10.77.0.2/24"}));
  EXPECT_EQ(there["transport"], "shm");
  EXPECT_EQ(there["transport_alias"], "window");
  EXPECT_GT(there["round_trip_us"].get<double>(), 0);

  takes.reset();
  other->send(SIGTERM);
  ASSERT_EQ(other->wait(), 0);
  EXPECT_TRUE(await([&] { return peer("n1", "n2")["state"] == "down"; }));
  there = peer("n1", "n2");
  EXPECT_NE(there["why"], "");
  EXPECT_EQ(there["sent"]["packets"], 10);
  EXPECT_EQ(status("n1")["unroutable"], 0);
  send_datagram(sends, "10.77.0.2", 100);
  EXPECT_TRUE(await([&] { return status("n1")["unroutable"] == 1; }));

  other = up(second, 2);
  ASSERT_TRUE(are_joined("n1", "n2"));
  takes = datagrams_at(second, "10.77.0.2");
  recv(sends.get(), nullptr, 0, MSG_DONTWAIT);  // the error that the node has told
  send_datagram(sends, "10.77.0.2", 200);
  EXPECT_TRUE(comes(takes, 200));
  there = peer("n1", "n2");
  EXPECT_EQ(there["sent"]["packets"], 11);
  EXPECT_EQ(there["sent"]["bytes"], 10 * 128 + 228);
  EXPECT_EQ(there["received"]["packets"], 1);
  EXPECT_EQ(there["connections"], 2);
  EXPECT_EQ(peer("n2", "n1")["received"]["packets"], 1);
}

TEST_F(CliNetNodes, Status_CountsWhatIsDroppedByItsReason) {
  const auto one = up(first, 1);
  const auto other = up(second, 2, {"--mtu", "1400"});
  ASSERT_TRUE(are_joined("n1", "n2"));
  const auto takes = datagrams_at(second, "10.77.0.2");
  EXPECT_EQ(peer("n1", "n2")["mtu"], 1400);
  const auto stranger = datagrams_at(first, "10.77.0.7", {{IPPROTO_IP, IP_TRANSPARENT, 1}});
  const auto long_ones = datagrams_at(first, "10.77.0.1", {{IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE}});
  for (int i = 0; i < 3; ++i) send_datagram(stranger, "10.77.0.2", 100);
  send_datagram(long_ones, "10.77.0.2", 1373);
  // The node has told its kernel, which tells it to the next one that sends.
  pollfd told{long_ones.get(), 0, 0};
  poll(&told, 1, 0);
  int error = 0;
  socklen_t length = sizeof error;
  EXPECT_TRUE(await([&] { return peer("n1", "n2")["dropped"]["too_long"] == 1; }));
  EXPECT_EQ(getsockopt(long_ones.get(), SOL_SOCKET, SO_ERROR, &error, &length), 0);
  send_datagram(long_ones, "10.77.0.2", 1372);
  EXPECT_TRUE(comes(takes, 1372));
  EXPECT_EQ(peer("n1", "n2")["dropped"],
            (json{{"no_room", 0}, {"too_long", 1}, {"wrong_source", 0}, {"malformed", 0}, {"refused", 0}}));
  EXPECT_EQ(peer("n2", "n1")["dropped"],
            (json{{"no_room", 0}, {"too_long", 0}, {"wrong_source", 3}, {"malformed", 0}, {"refused", 0}}));
  EXPECT_EQ(peer("n1", "n2")["sent"]["packets"], 4);
  EXPECT_EQ(peer("n2", "n1")["received"]["packets"], 1);
}

TEST_F(CliNetNodes, Status_CountsWhatTheInterfaceDropsWhileTheNodeStandsStill) {
  const auto one = up(first, 1);
  const auto sends = datagrams_at(first, "10.77.0.1");
  EXPECT_EQ(status("n1")["dropped_by_interface"], 0);
  one->send(SIGSTOP);
  EXPECT_TRUE(await([&] { return state_of(one->pid()) == 'T'; }));
  for (int i = 0; i < 2000; ++i) {
    const sockaddr_in there = address_of("10.77.0.9");
    sendto(sends.get(), "", 1, MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&there), sizeof there);
  }
  one->send(SIGCONT);
  uint64_t dropped = 0;
  first.run([&] {
    std::ifstream file("/proc/thread-self/net/dev");
    for (std::string line; std::getline(file, line);)
      if (has(line, "nupa0:")) {
        std::istringstream words(line.substr(line.find(':') + 1));
        for (int i = 0; i < 12; ++i) words >> dropped;
      }
  });
  if (dropped == 0) GTEST_SKIP() << "this kernel holds up who sends";
  EXPECT_EQ(status("n1")["dropped_by_interface"], dropped);
}

TEST_F(CliNetNodes, Stranger_WithAnotherKey_IsCountedAndToldNothing) {
  const auto one = up(first, 1);
  const std::string key = folder.write("other.key", run_nupa(net({"key"})).out);
  const auto other = up(second, 2, {"--key-file", key});
  EXPECT_TRUE(await([&] { return status("n1")["strangers"].get<uint64_t>() > 0; }));
  EXPECT_EQ(status("n1")["peers"], json::array());
  EXPECT_EQ(status("n2")["peers"], json::array());
  EXPECT_FALSE(has(why("n2"), "refused")) << why("n2");
  EXPECT_NE(why("n2"), "\n");
}

TEST_F(CliNetNodes, Node_WithAnAddressThatANodeHas_IsRefused) {
  const auto one = up(first, 1);
  auto other = up(second, 2);
  ASSERT_TRUE(are_joined("n1", "n2"));
  {
    const auto twin = up(third, 3, {"--addr", "10.77.0.1/24"});
    // The one whose address it is, and the one that knows whose it is.
    const std::string refused = "refused: the address 10.77.0.1 is node n1's\n";
    EXPECT_TRUE(await([&] { return count_of(why("n3"), refused) == 2; })) << why("n3");
    EXPECT_EQ(status("n3")["peers"], json::array());
  }
  EXPECT_EQ(status("n1")["peers"].size(), 1u);
  EXPECT_EQ(status("n2")["peers"].size(), 1u);
  EXPECT_TRUE(are_joined("n1", "n2"));
  // An address is free again once its node has gone.
  other.reset();
  EXPECT_TRUE(await([&] { return peer("n1", "n2")["state"] == "down"; }));
  const auto heir = up(third, 3, {"--addr", "10.77.0.2/24"});
  EXPECT_TRUE(are_joined("n1", "n3"));
}

TEST_F(CliNetNodes, Node_ThatIsItself_IsRefused) {
  const auto one = up(first, 1, {"--peer", "127.0.0.1"});
  EXPECT_TRUE(await([&] { return has(why("n1"), "refused: this is the same node\n"); })) << why("n1");
}

/// Two hosts with a wire: the second one has a runtime directory of its own.
class CliNetHosts : public CliNetNodes {
 protected:
  void SetUp() override {
    CliNetNodes::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!ip(first, "link add wire type veth peer name wire netns " + std::to_string(second.pid())))
      GTEST_SKIP() << "no pair of interfaces can be made";
    for (const auto& [space, host] : {std::pair(&first, "1"), std::pair(&second, "2")}) {
      ASSERT_TRUE(ip(*space, std::string("address add 10.118.0.") + host + "/24 dev wire"));
      ASSERT_TRUE(ip(*space, "link set wire up"));
    }
    ASSERT_EQ(mkdir(elsewhere.c_str(), 0700), 0);
  }
  static bool ip(const Namespace& space, const std::string& words) {
    Start start;
    start.program = "/bin/sh";
    start.arguments = {"-c", "PATH=$PATH:/sbin:/usr/sbin; ip " + words};
    start.in_child = [&space] { return space.enter(); };
    return run_nupa(start).status == 0;
  }
  Said on_second(Words words) const {
    Start start = net(std::move(words), &second);
    start.environment["NUPA_RUNTIME_DIR"] = elsewhere;
    return run_nupa(start);
  }
  /// A node of the second host, which asks the first one.
  std::unique_ptr<Program> up_there(int number, const std::string& name) const {
    Start start = net(
        {"up", "lab", "--node", name, "--addr", "10.77.0." + std::to_string(number) + "/24", "--peer", "10.118.0.1"},
        &second);
    start.environment["NUPA_RUNTIME_DIR"] = elsewhere;
    auto program = std::make_unique<Program>(start);
    EXPECT_TRUE(program->await_out("is up\n")) << program->err();
    return program;
  }

  const std::string elsewhere = folder / "elsewhere";
};

TEST_F(CliNetHosts, Node_WithANodesName_IsRefused) {
  const auto one = up(first, 1);
  const auto other = up_there(9, "n1");
  std::string said;
  EXPECT_TRUE(await([&] { return has(said = on_second({"status"}).out, "refused: there is a node n1 already"); }))
      << said;
  EXPECT_EQ(status("n1")["peers"], json::array());
}

TEST_F(CliNetHosts, Node_ThatComesAgainUnnoticed_TakesItsOldPlace) {
  const auto one = up(first, 1);
  auto other = up_there(2, "n2");
  EXPECT_TRUE(await([&] { return peer("n1", "n2")["state"] == "up"; }));
  EXPECT_EQ(peer("n1", "n2")["transport"], "roce");
  EXPECT_FALSE(peer("n1", "n2").contains("transport_alias"));
  const auto sends = datagrams_at(first, "10.77.0.1");
  {
    const auto takes = datagrams_at(second, "10.77.0.2");
    send_datagram(sends, "10.77.0.2", 100);
    EXPECT_TRUE(comes(takes, 100));
  }
  // Nothing is sent meanwhile, so that the first one does not find out.
  other->send(SIGKILL);
  EXPECT_EQ(other->wait(), 1000 + SIGKILL);
  other = up_there(2, "n2");
  EXPECT_TRUE(await([&] { return peer("n1", "n2").value("connections", 0) == 2; })) << on_second({"status"}).out;
  EXPECT_EQ(peer("n1", "n2")["state"], "up");
  const auto takes = datagrams_at(second, "10.77.0.2");
  send_datagram(sends, "10.77.0.2", 200);
  EXPECT_TRUE(comes(takes, 200));
  EXPECT_EQ(peer("n1", "n2")["sent"]["packets"], 2);
}

TEST_F(CliNetNodes, Door_AnswersWhatItUnderstands) {
  const auto one = up(first, 1);
  const auto ask = [](const std::string& question) {
    const auto answer = netdev::Door::ask("lab", "n1", question, 20'000);
    return answer ? json::parse(*answer, nullptr, false) : json();
  };
  for (const char* question : {"", "{", R"({"do":"what"})", R"({"do":1})", R"({"do":["down"]})", R"("down")"})
    if (*question != '\0') {
      EXPECT_EQ(ask(question), json({{"error", "not understood"}})) << question;
    }
  const json who = ask(R"({"do":"who"})");
  EXPECT_EQ(who["network"], "lab");
  EXPECT_EQ(who["node"], "n1");
  EXPECT_EQ(who["interface"], "nupa0");
  EXPECT_EQ(who["pid"], one->pid());
  EXPECT_EQ(ask(R"({"do":"status"})")["node"], "n1");
  EXPECT_EQ(ask(R"({"do":"down"})")["node"], "n1");
  EXPECT_EQ(one->wait(), 0);
  EXPECT_TRUE(netdev::Door::list("lab").empty());
}

TEST_F(CliNetNodes, Down_EndsTheNodeOfThisNamespaceOrTheNamedOne) {
  const auto one = up(first, 1);
  const auto other = up(second, 2);
  const auto away = up(third, 3);
  EXPECT_TRUE(has(refusal_of({"down", "office"}, &first), "there is no such node here"));
  EXPECT_TRUE(has(refusal_of({"down", "--node", "n9"}, &first), "there is no such node here"));
  EXPECT_EQ(run_nupa(net({"down"}, &first)).status, 0);
  EXPECT_EQ(one->wait(), 0);
  first.run([] { EXPECT_EQ(if_nametoindex("nupa0"), 0u); });
  EXPECT_EQ(other->wait(std::chrono::seconds(0)), -1);
  EXPECT_EQ(run_nupa(net({"down", "--node", "n2"}, &first)).status, 0);
  EXPECT_EQ(other->wait(), 0);
  EXPECT_TRUE(has(refusal_of({"down"}, &first), "there is no such node here"));
  EXPECT_EQ(away->wait(std::chrono::seconds(0)), -1);
  EXPECT_EQ(run_nupa(net({"down", "--all"}, &first)).status, 0);
  EXPECT_EQ(away->wait(), 0);
}

TEST_F(CliNetNodes, Up_Detached_GoesOnAndIsThereAtOnce) {
  const Said said = run_nupa(net({"up", "lab", "--node", "n1", "--addr", "10.77.0.1/24", "--detach"}, &first));
  EXPECT_EQ(said.status, 0) << said.err;
  const json found = status("n1");
  ASSERT_TRUE(found.is_object());
  EXPECT_FALSE(is_gone(found["pid"]));
  EXPECT_EQ(getsid(found["pid"]), found["pid"].get<pid_t>()) << "it ends with the session that it was started in";
  const Said twice = run_nupa(net({"up", "lab", "--node", "n1", "--addr", "10.77.0.1/24", "--detach"}, &first));
  EXPECT_EQ(twice.status, 1);
  EXPECT_TRUE(has(twice.err, "a node of this name")) << twice.err;
  EXPECT_EQ(run_nupa(net({"down"}, &first)).status, 0);
  EXPECT_TRUE(await([&] { return is_gone(found["pid"]); }));
}

}  // namespace
}  // namespace nupa::test
