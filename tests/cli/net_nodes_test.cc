// SPDX-License-Identifier: Apache-2.0
/// nupa net: the status of a node, nodes that are refused, and the end of a node.
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "json/json.h"
#include "net_nodes.h"
#include "netdev/control_socket.h"
#include "netdev/prefix.h"
#include "program.h"

namespace nupa::test {
namespace {

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

TEST_F(CliNetNodes, UnknownPeer_WithAnotherKey_IsCountedAndGetsNoAnswer) {
  const auto one = up(first, 1);
  const std::string key = folder.write("other.key", run_nupa(net({"key"})).out);
  const auto other = up(second, 2, {"--key-file", key});
  EXPECT_TRUE(await([&] { return status("n1")["unknown_peers"].get<uint64_t>() > 0; }));
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
    const std::string refused = "refused: address 10.77.0.1 belongs to node n1\n";
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
  EXPECT_TRUE(await([&] { return has(said = on_second({"status"}).out, "refused: the node name n1 is in use"); }))
      << said;
  EXPECT_EQ(status("n1")["peers"], json::array());
}

TEST_F(CliNetHosts, Node_ThatRestartsUnnoticed_ReplacesItsOldEntry) {
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

TEST_F(CliNetNodes, ControlSocket_AnswersKnownRequests) {
  const auto one = up(first, 1);
  const auto ask = [](const std::string& question) {
    const auto answer = netdev::ControlSocket::ask("lab", "n1", question, 20'000);
    return answer ? parse_json(*answer).value_or(json()) : json();
  };
  for (const char* question : {"", "{", R"({"do":"what"})", R"({"do":1})", R"({"do":["down"]})", R"("down")"})
    if (*question != '\0') {
      EXPECT_EQ(ask(question), json({{"error", "unknown request"}})) << question;
    }
  const json who = ask(R"({"do":"who"})");
  EXPECT_EQ(who["network"], "lab");
  EXPECT_EQ(who["node"], "n1");
  EXPECT_EQ(who["interface"], "nupa0");
  EXPECT_EQ(who["pid"], one->pid());
  EXPECT_EQ(ask(R"({"do":"status"})")["node"], "n1");
  EXPECT_EQ(ask(R"({"do":"down"})")["node"], "n1");
  EXPECT_EQ(one->wait(), 0);
  EXPECT_TRUE(netdev::ControlSocket::list("lab").empty());
}

TEST_F(CliNetNodes, Down_EndsTheNodeOfThisNamespaceOrTheNamedOne) {
  const auto one = up(first, 1);
  const auto other = up(second, 2);
  const auto away = up(third, 3);
  EXPECT_TRUE(
      has(refusal_of({"down", "office"}, &first), "no such node of network office in this network namespace ("));
  EXPECT_TRUE(has(refusal_of({"down", "--node", "n9"}, &first), "no such node: n9 ("));
  EXPECT_EQ(run_nupa(net({"down"}, &first)).status, 0);
  EXPECT_EQ(one->wait(), 0);
  first.run([] { EXPECT_EQ(if_nametoindex("nupa0"), 0u); });
  EXPECT_EQ(other->wait(std::chrono::seconds(0)), -1);
  EXPECT_EQ(run_nupa(net({"down", "--node", "n2"}, &first)).status, 0);
  EXPECT_EQ(other->wait(), 0);
  EXPECT_TRUE(has(refusal_of({"down"}, &first), "no such node in this network namespace ("));
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
