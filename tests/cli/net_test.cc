// SPDX-License-Identifier: Apache-2.0
/// nupa net: options and keys that are refused, and the interface that a node makes.
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "net_nodes.h"
#include "netdev/prefix.h"
#include "program.h"

namespace nupa::test {
namespace {

bool has_ipv6() { return std::filesystem::exists("/proc/self/net/if_inet6"); }

TEST_F(CliNet, Key_IsSixtyFourRandomDigits) {
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
    EXPECT_TRUE(has(refusal(folder.write("key", key, mode)), "the key file is open to other users: chmod 600 it"))
        << mode;
  EXPECT_TRUE(has(refusal(folder.write("key", key.substr(1))), "64 hexadecimal digits"));
  EXPECT_TRUE(has(refusal(folder.write("key", "")), "64 hexadecimal digits"));
  EXPECT_TRUE(has(refusal(folder / "missing"), "cannot read the key file"));
}

TEST_F(CliNet, Up_OptionsThatCannotBe_AreRefused) {
  EXPECT_TRUE(has(refusal_of({"up", "lab"}), "the node has no address (use --addr, for example --addr 10.77.0.1/24)"));
  EXPECT_TRUE(has(usage_error_of({"up", "lab", "--addr", "10.77.0.1/33"}), "'10.77.0.1/33': "));
  EXPECT_TRUE(has(usage_error_of({"up", "lab", "--addr", "224.0.0.1"}), "'224.0.0.1': "));
  EXPECT_TRUE(has(usage_error_of({"up", "lab", "--addr", "10.77.0.1/24", "--peer", "host"}), "'host': "));
  const std::string key = folder.write("key", run_nupa(net({"key"})).out);
  EXPECT_TRUE(
      has(usage_error_of({"up", "no/name", "--addr", "10.77.0.1/24", "--key-file", key}), "names have letters"));
  EXPECT_TRUE(has(usage_error_of({"up", "lab", "--node", ".hidden", "--addr", "10.77.0.1/24"}), "names have letters"));
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
    EXPECT_TRUE(has(said.err, "HOME is not set (use --key-file FILE)")) << said.err;
  }
}

TEST_F(CliNet, Config_ThatIsNotOfThisNode_IsRefused) {
  const auto refusal = [&](const std::string& text, const std::string& node = "n1") {
    return refusal_of({"up", "lab", "--node", node, "--config", folder.write("lab.json", text)});
  };
  EXPECT_TRUE(has(refusal("{"), "not valid JSON: "));
  EXPECT_TRUE(has(refusal("[]"), "does not describe a network"));
  EXPECT_TRUE(has(refusal(R"({"nodes":[]})"), "does not describe a network"));
  EXPECT_TRUE(has(refusal(R"({"network":"office","nodes":{"n1":{"addresses":["10.77.0.1/24"]}}})"),
                  "describes network office"));
  EXPECT_TRUE(has(refusal(R"({"nodes":{"n1":{"addresses":["10.77.0.1/24"]}}})", "n2"), "has no node 'n2'"));
  EXPECT_TRUE(has(refusal(R"({"nodes":{"n1":{}}})"), "lab.json: "));
  EXPECT_TRUE(has(refusal(R"({"nodes":{"n1":{"addresses":["10.77.0/24"]}}})"), "'10.77.0/24': "));
  EXPECT_TRUE(has(refusal(R"({"nodes":{"n1":{"addresses":["10.77.0.1/24"]},"n2":{"hosts":["h"]}}})"), "'h': "));
}

TEST_F(CliNet, Config_UnknownKey_IsAUsageErrorWithKeyAndLine) {
  const auto refusal = [&](const std::string& text) {
    return refusal_of({"up", "lab", "--node", "n1", "--config", folder.write("lab.json", text)}, nullptr, 2);
  };
  EXPECT_TRUE(has(refusal("{\n \"nodes\": {\"n1\": {}},\n \"keyfile\": \"k\"}"),
                  "lab.json: line 3: unknown key \"keyfile\" (expected network, key_file, mtu, nodes)"));
  EXPECT_TRUE(has(refusal("{\n \"nodes\": {\n  \"n1\": {\"adresses\": [\"10.77.0.1/24\"]}}}"),
                  "lab.json: line 3: unknown key \"adresses\" (expected addresses, hosts, interface, mtu)"));
  EXPECT_TRUE(has(refusal("{\"nodes\": {\"n1\": {\"addresses\": []},\n\n \"n2\": {\"mtu\": 9000, \"port\": 1}}}"),
                  "line 3: unknown key \"port\""))
      << "of another node";
  EXPECT_TRUE(has(refusal("{\"mtu\": {\"a\": 1}, \"nodes\": {},\n \"x\": {\"y\": 1}}"), "line 2: unknown key \"x\""));
}

TEST_F(CliNet, Config_MtuThatCannotBe_IsRefusedWithItsValue) {
  const auto refusal = [&](const std::string& network_mtu, const std::string& node_mtu) {
    const auto as_field = [](const std::string& mtu) { return mtu.empty() ? "" : "\"mtu\":" + mtu + ","; };
    const std::string text = "{" + as_field(network_mtu) + "\"nodes\":{\"n1\":{" + as_field(node_mtu) +
                             "\"addresses\":[\"10.77.0.1/24\"]}}}";
    return refusal_of({"up", "lab", "--node", "n1", "--config", folder.write("lab.json", text)});
  };
  for (const std::string mtu : {"1279", "65521", "0", "-1500", "1500.5", "4294968796", "\"9000\"", "null", "[9000]"}) {
    const std::string wanted = "lab.json: mtu is " + mtu + "; expected a number from 1280 to 65520";
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
    EXPECT_TRUE(has(usage_error_of({"up", network, "--addr", "10.77.0.1/24"}), "names have letters")) << network;
  EXPECT_TRUE(has(usage_error_of({"up", "lab", "--node", "no/name", "--addr", "10.77.0.1/24"}), "names have letters"));
  EXPECT_EQ(run_nupa(net({"key", "lab"})).status, 2) << "the command prints a key and takes no name";
  EXPECT_EQ(folders_files(), before);
}

TEST_F(CliNet, WithoutNodes_DownFailsAndStatusReportsIt) {
  EXPECT_TRUE(has(refusal_of({"down"}), "no such node in this network namespace ("));
  const Said said = run_nupa(net({"status"}));
  EXPECT_EQ(said.status, 0);
  EXPECT_EQ(said.out, "no node is running\n");
  EXPECT_EQ(run_nupa(net({"status", "--json"})).out, "[]\n");
  EXPECT_EQ(refusal_of({"status", "office"}),
            "nupa: net: no node of network office answers (nupa net status lists all networks)\n");
  const Said named = run_nupa(net({"status", "office", "--json"}));
  EXPECT_EQ(named.status, 1);
  EXPECT_EQ(named.out, "[]\n");
}

TEST_F(CliNetNodes, Up_MissingKeyFile_IsMadeForItsUserAlone) {
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

TEST_F(CliNetNodes, Up_Interface_HasTheReportedSettings) {
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
  EXPECT_TRUE(has(refusal("lo"), "an interface of this name already exists: lo"));
  EXPECT_TRUE(has(refusal_of({"up", "lab", "--addr", "::1/128"}, &first),
                  "cannot set the MTU and the addresses of interface nupa0"));
  EXPECT_TRUE(has(up(first, 1, {"--interface", "fifteen-letters"})->out(), "interface fifteen-letters is up"));
  const auto one = up(first, 1);
  EXPECT_TRUE(has(refusal_of({"up", "lab", "--node", "n1", "--addr", "10.77.0.9/24", "--interface", "other"}, &first),
                  "a node of this name is already running: n1 in network lab"));
  EXPECT_TRUE(has(refusal_of({"up", "office", "--node", "n1", "--addr", "10.77.0.9/24", "--queues", "2"}, &first),
                  "an interface of this name already exists"));
}

TEST_F(CliNetNodes, Config_Values_ApplyUnlessTheCommandLineHasThem) {
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

}  // namespace
}  // namespace nupa::test
