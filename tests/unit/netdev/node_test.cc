// SPDX-License-Identifier: Apache-2.0
// A whole node in a process of its own. The test plays the other nodes and those that are none.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "json/json.h"
#include "netdev/node.h"
#include "../host/fixture.h"
#include "packet_loop_fixture.h"
#include "session_fixture.h"

namespace nupa::netdev {
namespace {

using namespace session_test;

constexpr std::chrono::seconds kNodeLimit{12};
constexpr int kNodeAnswersMs = 10'000;
// Of node.cc.
constexpr int64_t kHandshakeTimeoutNs = 5 * progress::kNsPerSecond;
constexpr int64_t kMeasureNs = 100 * progress::kNsPerMs;

/// The calling thread enters a network namespace that has the loopback only.
bool enter_own_network() {
  if (unshare(CLONE_NEWNET) != 0) return false;
  const base::UniqueFd asks(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  loopback.ifr_name[0] = 'l';
  loopback.ifr_name[1] = 'o';
  loopback.ifr_flags = IFF_UP | IFF_LOOPBACK | IFF_RUNNING;
  return ioctl(asks.get(), SIOCSIFFLAGS, &loopback) == 0;
}

/// A time that stands still until the test moves it. A node in another process has it too, whose loop looks at it each
/// time that it is woken, as by a question.
class SharedClock final : public progress::Clock {
 public:
  SharedClock()
      : at_(new (mmap(nullptr, sizeof *at_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                std::atomic<int64_t>(progress::kNsPerSecond)) {}
  ~SharedClock() override { munmap(at_, sizeof *at_); }
  int64_t now_ns() const override { return *at_; }
  void advance(int64_t ns) { *at_ += ns; }

 private:
  std::atomic<int64_t>* const at_;
};

class NodeProcess {
 public:
  /// Forks: the calling process has no other thread yet. The node starts with begin().
  explicit NodeProcess(const NodeOptions& options) {
    host::test::Ends ends = host::test::make_pair(0);
    pid_ = fork();
    if (pid_ == 0) {
      ends.one.reset();
      _exit(run(options, ends.other.get()));
    }
    link_ = std::move(ends.one);
  }
  ~NodeProcess() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  NodeProcess(const NodeProcess&) = delete;
  NodeProcess& operator=(const NodeProcess&) = delete;

  void begin() { EXPECT_EQ(1, ::send(link_.get(), "", 1, MSG_NOSIGNAL)); }
  /// Ends the node and returns the exit status; 1000 + the signal that ended the process.
  int end() {
    link_.reset();
    int status = -1;
    EXPECT_EQ(pid_, waitpid(pid_, &status, 0));
    return status_of(status);
  }
  /// The same once it has ended by itself; -1: it has not.
  int own_end() {
    int status = -1;
    const bool has_ended = host::test::soon([&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    return has_ended ? status_of(status) : -1;
  }

 private:
  int status_of(int status) {
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  static int run(const NodeOptions& options, int link) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char word;
    if (recv(link, &word, 1, 0) != 1) return 1;
    auto node = Node::start(options);
    return node ? (*node)->run(link, [] {}) : 1;
  }

  pid_t pid_ = 0;
  base::UniqueFd link_;
};

/// Node n1 of network "lab", which has two queues, in a network namespace of the test.
class NetdevNode : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0 || ::access("/dev/net/tun", R_OK | W_OK) != 0) GTEST_SKIP() << "needs root and /dev/net/tun";
    before.reset(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(before);
    if (!enter_own_network()) GTEST_SKIP() << "needs network namespaces";
    setenv("NUPA_TRANSPORT", "auto", 1);
    key = *new_key();
  }
  void TearDown() override {
    client.reset();
    manager.reset();
    pd.reset();
    device.reset();
    process.reset();
    unsetenv("NUPA_TRANSPORT");
    if (before) {
      EXPECT_EQ(0, setns(before.get(), CLONE_NEWNET));
    }
  }
  /// `peers`: addresses at which the node asks for other nodes, whose requests come to `events`.
  void start(const std::vector<Gid>& peers, const progress::Clock& time = progress::system_clock()) {
    NodeOptions options;
    options.clock = &time;
    options.network = "lab";
    options.node = "n1";
    options.addresses = {*Prefix::parse("10.77.0.1/24")};
    options.queues = 2;
    options.key = key;
    options.peers = peers;
    process = std::make_unique<NodeProcess>(options);
    auto opened = open_device("nupa0");
    ASSERT_TRUE(opened) << opened.error().what();
    device = std::move(*opened);
    pd = std::move(*device->alloc_pd());
    auto managed = ConnectionManager::open(events);
    ASSERT_TRUE(managed) << managed.error().what();
    manager = std::move(*managed);
    if (!peers.empty()) {
      ListenerAddress listener;
      listener.service_id = service_of("lab");
      ASSERT_EQ(0, manager->bind(kListener, listener));
      ASSERT_EQ(0, manager->listen(kListener));
    }
    process->begin();
    ASSERT_TRUE(host::test::soon([] { return !ask("who").empty(); })) << "the node does not start";
  }
  /// Empty: the node does not answer.
  static std::string ask(const std::string& what) {
    const auto answer = ControlSocket::ask("lab", "n1", R"({"do":")" + what + R"("})", kNodeAnswersMs);
    return answer ? *answer : "";
  }
  /// The status once it has this in it; the last one if it never has.
  static std::string status_with(const std::string& wanted) {
    const auto until = std::chrono::steady_clock::now() + kNodeLimit;
    std::string status;
    while ((status = ask("status")).find(wanted) == status.npos && std::chrono::steady_clock::now() < until)
      usleep(1000);  // sleep: the pause between two looks
    return status;
  }
  /// The status of a node in simulated time that has connections.
  std::string status_in_time() {
    return answer_in_time(ControlSocket::begin_to_ask("lab", "n1", R"({"do":"status"})"));
  }
  std::string answer_in_time(const Result<base::UniqueFd>& asked) {
    if (!asked) return asked.error().what();
    // It is answered behind the other question, so that it is measured by now.
    if (ask("who").empty()) return "the node does not answer";
    clock.advance(kMeasureNs);
    const bool has_come = host::test::soon([&] { return is_readable(asked->get()) || ask("who").empty(); });
    if (!has_come) return "the status does not come";
    const auto answer = ControlSocket::take_answer(asked->get());
    return answer ? *answer : answer.error().what();
  }
  static bool is_readable(int fd) {
    pollfd ready{fd, POLLIN, 0};
    return poll(&ready, 1, 0) == 1;
  }
  std::optional<ConnectionRoute> route_to_node() const {
    const auto there = address_from(ControlSocket::field(ask("who"), "gid"));
    if (!there) return std::nullopt;
    auto route = manager->find_address(*there);
    if (!route) return std::nullopt;
    route->path.remote = *there;
    return *route;
  }
  /// A node that has asked the node and has told its card.
  std::unique_ptr<Household> ask_node(const std::string& name, uint64_t instance,
                                      const char* address = "10.77.0.2/24") {
    auto made = make_household(*device, *pd, *manager, key, name, address);
    made->world->self.instance = instance;
    const auto route = route_to_node();
    if (!route) return nullptr;
    auto session = Session::ask(*made->world, kAsks, service_of("lab", "n1"), *route);
    if (!session) return nullptr;
    made->session = std::move(*session);
    made->session->on_reply(events.next(Happened::kReply).reply);
    return made;
  }
  /// A node that the node has asked by this request, and whose card it has told.
  std::unique_ptr<Household> answer_node(const std::string& name, uint64_t instance, const Happened& asked) {
    auto made = make_household(*device, *pd, *manager, key, name, "10.77.0.2/24");
    made->world->self.instance = instance;
    auto session = Session::answer(*made->world, kAnswers, asked.id, asked.request);
    if (!session) return nullptr;
    made->session = std::move(*session);
    const bool shown = host::test::soon([&] {
      made->turn();
      return made->session->has_new_peer_info();
    });
    return shown ? std::move(made) : nullptr;
  }
  /// Its session is up or over.
  static bool is_decided(Household& client) {
    return host::test::soon([&] {
      client.turn();
      return client.session->state() == Session::State::kUp || client.session->state() == Session::State::kOver;
    });
  }
  /// Another run of a node, which has asked the node and is connected.
  std::unique_ptr<Household> connect_client(uint64_t instance, const std::string& name = "n2",
                                            const char* address = "10.77.0.2/24") {
    auto made = ask_node(name, instance, address);
    if (made == nullptr) return nullptr;
    const bool shown = host::test::soon([&] {
      made->turn();
      return made->session->has_new_peer_info();
    });
    if (!shown) return nullptr;
    made->session->accept();
    made->session->activate();
    return made;
  }

  const host::test::Folder folder;
  const Gid loopback = *address_from("127.0.0.1");
  SharedClock clock;
  base::UniqueFd before;  ///< the network namespace of this thread
  Key key{};
  SessionEvents events;
  std::unique_ptr<NodeProcess> process;
  std::unique_ptr<Device> device;
  std::unique_ptr<ProtectionDomain> pd;
  std::shared_ptr<ConnectionManager> manager;
  std::unique_ptr<Household> client;
};

TEST(NetdevNodeOptions, Start_MoreAddressesThanPeersTake_IsRefused) {
  // Behind the addresses the names are looked at: this one is none, so that nothing is started.
  const auto why = [](const char* first, size_t count, const char* further = nullptr) {
    NodeOptions options;
    options.network = "no/name";
    Prefix prefix = *Prefix::parse(first);
    for (size_t i = 0; i < count; ++i, ++prefix.address.raw[15]) options.addresses.push_back(prefix);
    if (further != nullptr) options.addresses.push_back(*Prefix::parse(further));
    const auto node = Node::start(options);
    EXPECT_FALSE(node);
    EXPECT_EQ(EINVAL, node ? 0 : node.error().code());
    return node ? std::string() : std::string(node.error().what());
  };
  const std::string too_many = "a node has at most 16 addresses", name = "names have letters";
  EXPECT_EQ(0u, why("10.77.0.1/24", 1).find(name));
  EXPECT_EQ(0u, why("10.77.0.1/24", 16).find(name));
  EXPECT_EQ(0u, why("10.77.0.1/24", 17).find(too_many));
  // With the link-local one.
  EXPECT_EQ(0u, why("fd77::1/64", 15).find(name));
  EXPECT_EQ(0u, why("fd77::1/64", 16).find(too_many));
  EXPECT_EQ(0u, why("10.77.0.1/24", 14, "fd77::1/64").find(name));
  EXPECT_EQ(0u, why("10.77.0.1/24", 15, "fd77::1/64").find(too_many));
}

TEST_F(NetdevNode, PeerThatSendsNothing_IsDisconnectedAfterFiveSeconds) {
  ASSERT_NO_FATAL_FAILURE(start({}, clock));
  // One of several: the others stay.
  client = connect_client(2);
  ASSERT_TRUE(client);
  std::string status;
  const bool is_up = host::test::soon([&] {
    status = status_in_time();
    return status.find("\"connections\":1,") != status.npos;
  });
  ASSERT_TRUE(is_up) << status;
  const auto cq = std::move(*device->create_cq({.entries = 4}));
  const auto qp = std::move(*device->create_qp(
      pd.get(), {.send_cq = cq.get(),
                 .recv_cq = cq.get(),
                 .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}}));
  // A request that proves the key, as somebody has seen it who does not have the key and so cannot go on.
  PeerAuthentication authentication(key, "lab");
  HandshakeData handshake;
  handshake.qp_num = qp->number();
  handshake.nonce = *new_nonce();
  authentication.set_asking(handshake.nonce);
  handshake.mac = authentication.asks(handshake.covered());
  const auto route = route_to_node();
  ASSERT_TRUE(route);
  ConnectionRequest request;
  request.service_id = service_of("lab", "n1");
  request.path = route->path;
  request.qp_num = handshake.qp_num;
  request.private_data.set(&handshake, sizeof handshake);
  ConnectionId id = 0;
  ASSERT_EQ(0, manager->connect(request, *route, kAsks, &id));
  ASSERT_EQ(kAsks, events.next(Happened::kReply).owner);
  ASSERT_EQ(0, manager->establish(id));
  clock.advance(kHandshakeTimeoutNs - 1);
  EXPECT_FALSE(ask("who").empty());
  EXPECT_FALSE(ask("who").empty());
  EXPECT_EQ(0u, events.next(Happened::kOther, std::chrono::nanoseconds(0)).owner) << "the node holds it five seconds";
  clock.advance(1);
  EXPECT_FALSE(ask("who").empty());
  EXPECT_EQ(kAsks, events.next(Happened::kOther).owner) << "the node still holds the connection";
  manager->release(id);
  const std::string after = status_in_time();
  EXPECT_NE(after.npos, after.find("\"state\":\"up\"")) << after;
  EXPECT_EQ(0, process->end());
}

TEST_F(NetdevNode, PeerThatIsAway_IsAskedOnceASecondAtLeast) {
  // Pauses that went on doubling from 10 ms would take 80 seconds for so many; these take seven.
  constexpr int kTimes = 14;
  constexpr std::chrono::seconds kAllOfThem{40};
  ASSERT_NO_FATAL_FAILURE(start({loopback}));
  const auto until = std::chrono::steady_clock::now() + kAllOfThem;
  int times = 0;
  for (; times < kTimes; ++times) {
    const Happened asked = events.next(Happened::kRequest, until - std::chrono::steady_clock::now());
    if (asked.owner == 0) break;
    manager->reject(asked.id, RejectReason::kConsumer, {});
    manager->release(asked.id);
  }
  EXPECT_EQ(kTimes, times);
  EXPECT_EQ(0, process->end());
}

TEST_F(NetdevNode, ConnectionReplacedByAnother_IsCountedOnceAndEndsNothing) {
  ASSERT_NO_FATAL_FAILURE(start({}));
  client = connect_client(2);
  ASSERT_TRUE(client);
  std::string status = status_with("\"connections\":1,");
  ASSERT_NE(status.npos, status.find("\"connections\":1,")) << status;
  const packet_loop_test::Frame packet = packet_loop_test::frame(2, 1, 100);
  ASSERT_EQ(static_cast<ssize_t>(packet.size()), ::send(client->sockets[1], packet.data(), packet.size(), 0));
  const auto received = [&] {
    return parse_json(status).value().at("peers").at(0).at("received").at("packets").get<uint64_t>();
  };
  ASSERT_TRUE(host::test::soon([&] {
    status = ask("status");
    return received() == 1;
  })) << status;
  // The node was started again, and asks before the end of its earlier run has been seen.
  const auto next_client = connect_client(3);
  ASSERT_TRUE(next_client);
  status = status_with("\"connections\":2,");
  EXPECT_NE(status.npos, status.find("\"connections\":2,")) << status;
  status = ask("status");  // the node has looked at all connections once more
  EXPECT_NE(status.npos, status.find("\"connections\":2,")) << status;
  EXPECT_NE(status.npos, status.find("\"state\":\"up\"")) << status;
  EXPECT_EQ(1u, received());
  EXPECT_EQ(0, process->end());
}

TEST_F(NetdevNode, BothHaveAsked_TheConnectionThatTheLesserNameAskedForStays) {
  ASSERT_NO_FATAL_FAILURE(start({loopback}));
  // The node has asked, and its question is answered only when the connection that n0 asked for is there.
  const Happened asked = events.next(Happened::kRequest);
  ASSERT_EQ(kAnswers, asked.owner);
  client = connect_client(2, "n0");
  ASSERT_TRUE(client);
  std::string status = status_with("\"connections\":1,");
  ASSERT_NE(status.npos, status.find("\"connections\":1,")) << status;
  const auto other = answer_node("n0", 2, asked);
  ASSERT_TRUE(other);
  other->session->accept();
  ASSERT_TRUE(is_decided(*other));
  EXPECT_EQ("refused: the nodes are already connected", other->session->why());
  status = ask("status");
  EXPECT_NE(status.npos, status.find("\"connections\":1,")) << status;
  EXPECT_NE(status.npos, status.find("\"state\":\"up\"")) << status;
  EXPECT_EQ(0, process->end());
}

TEST_F(NetdevNode, NodeThatWasAskedAndStartsAgain_TakesItsOldPlaceByItsOwnQuestion) {
  ASSERT_NO_FATAL_FAILURE(start({loopback}));
  client = answer_node("n2", 2, events.next(Happened::kRequest));
  ASSERT_TRUE(client);
  client->session->accept();
  ASSERT_TRUE(is_decided(*client));
  std::string status = status_with("\"connections\":1,");
  ASSERT_NE(status.npos, status.find("\"connections\":1,")) << status;
  // Of the same run it would be the one too many: of two nodes that ask each other n1's connection stays.
  const auto next_client = connect_client(3);
  ASSERT_TRUE(next_client) << "the new run is refused";
  status = status_with("\"connections\":2,");
  EXPECT_NE(status.npos, status.find("\"connections\":2,")) << status;
  EXPECT_NE(status.npos, status.find("\"state\":\"up\"")) << status;
  EXPECT_EQ(0, process->end());
}

TEST_F(NetdevNode, NodeOfThisHostThatHasEnded_IsNoLongerAsked) {
  // It is there and does not answer.
  const auto loop = progress::Loop::open();
  ASSERT_TRUE(loop);
  auto control_socket = ControlSocket::open(**loop, "lab", "n2", [](const std::string&) { return std::nullopt; });
  ASSERT_TRUE(control_socket) << control_socket.error().what();
  ASSERT_NO_FATAL_FAILURE(start({}));
  std::string status = status_with("\"at\":\"n2\"");
  ASSERT_NE(status.npos, status.find("\"at\":\"n2\"")) << status;
  control_socket->reset();  // its name goes with it
  status = status_with("\"asked\":[]");
  EXPECT_NE(status.npos, status.find("\"asked\":[]")) << status;
  EXPECT_EQ(0, process->end());
}

TEST_F(NetdevNode, TwoNodesOfOneAddressAtOnce_TheSecondOneIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start({}));
  client = ask_node("n2", 2);
  ASSERT_TRUE(client);
  ASSERT_TRUE(host::test::soon([&] {
    client->turn();
    return client->session->has_new_peer_info();
  }));
  // The node has agreed with the first one, which is not ready yet.
  const auto other = ask_node("n3", 3);
  ASSERT_TRUE(other);
  ASSERT_TRUE(host::test::soon([&] {
    other->turn();
    return other->session->has_new_peer_info() || other->session->state() == Session::State::kOver;
  }));
  EXPECT_EQ("refused: address 10.77.0.2 belongs to node n2", other->session->why());
  client->session->accept();
  const std::string status = status_with("\"state\":\"up\"");
  EXPECT_NE(status.npos, status.find("\"state\":\"up\"")) << status;
  EXPECT_EQ(status.npos, status.find("n3")) << status;
  EXPECT_EQ(0, process->end());
}

TEST_F(NetdevNode, RefusalByTheNodeThatHasAsked_IsShown) {
  ASSERT_NO_FATAL_FAILURE(start({}));
  client = ask_node("n2", 2);
  ASSERT_TRUE(client);
  ASSERT_TRUE(host::test::soon([&] {
    client->turn();
    return client->session->has_new_peer_info();
  }));
  client->session->reject("address 10.77.0.1 belongs to node n3");
  const std::string expected = "refused: address 10.77.0.1 belongs to node n3";
  const std::string status = status_with(expected);
  ASSERT_NE(status.npos, status.find(expected)) << status;
  const nlohmann::json peer = parse_json(status).value().at("peers").at(0);
  EXPECT_EQ("n2", peer.at("node"));
  EXPECT_EQ("down", peer.at("state"));
  EXPECT_EQ(0, process->end());
}

TEST_F(NetdevNode, Rejection_IsShownInWords) {
  ASSERT_NO_FATAL_FAILURE(start({loopback}));
  const std::pair<RejectReason, std::string> all[] = {
      {RejectReason::kInvalidServiceId, "no node of this network listens there, or its key differs"},
      {RejectReason::kConsumer, "another key or another version of nupa net"},
      {RejectReason::kNoResources, "no memory or no queue pairs left"},
      {RejectReason::kTimeout, "this node answered too late"},
      {RejectReason::kStaleConnection, "a connection of an earlier run"},
      {RejectReason::kInvalidTransportType, "reason 9 (IBTA 12.6.7.2)"},
  };
  for (const auto& [reason, words] : all) {
    const Happened asked = events.next(Happened::kRequest);
    ASSERT_EQ(kAnswers, asked.owner) << words;
    manager->reject(asked.id, reason, {});
    manager->release(asked.id);
    const std::string status = status_with(words);
    ASSERT_NE(status.npos, status.find(words)) << status;
  }
  EXPECT_EQ(0, process->end());
}

TEST_F(NetdevNode, Status_WordsOfAnotherNodeThatAreNoUtf8_AreReplaced) {
  ASSERT_NO_FATAL_FAILURE(start({loopback}));
  client = answer_node("n2", 2, events.next(Happened::kRequest));
  ASSERT_TRUE(client);
  client->session->reject("no \xff here");
  const std::string expected = "refused: no \xef\xbf\xbd here";
  const std::string status = status_with(expected);
  EXPECT_NE(status.npos, status.find(expected)) << status;
  EXPECT_EQ(0, process->end());
}

TEST_F(NetdevNode, Status_WhileASessionConnects_DelaysNothing) {
  ASSERT_NO_FATAL_FAILURE(start({}, clock));
  client = connect_client(2);
  ASSERT_TRUE(client);
  ASSERT_TRUE(host::test::soon([&] { return status_in_time().find("\"connections\":1,") != std::string::npos; }));
  const auto asked = ControlSocket::begin_to_ask("lab", "n1", R"({"do":"status"})");
  ASSERT_TRUE(asked);
  EXPECT_FALSE(ask("who").empty()) << "the node answers nobody else while it measures";
  // All that a connection takes of the node, while time stands still.
  const auto other = connect_client(3, "n3", "10.77.0.3/24");
  ASSERT_TRUE(other) << "the node does nothing else while it measures";
  EXPECT_FALSE(is_readable(asked->get())) << "the status is measured over a time";
  const std::string status = answer_in_time(asked);
  EXPECT_NE(status.npos, status.find("\"node\":\"n2\"")) << status;
  std::string after;
  const bool both = host::test::soon([&] {
    after = status_in_time();
    return after.find("\"node\":\"n3\"") != after.npos;
  });
  EXPECT_TRUE(both) << after;
  EXPECT_EQ(0, process->end());
}

TEST_F(NetdevNode, InterfaceThatIsRemoved_EndsTheNode) {
  ASSERT_NO_FATAL_FAILURE(start({}));
  ASSERT_EQ(0, std::system("ip link del nupa0"));
  EXPECT_EQ(ENODEV, process->own_end());
}

TEST_F(NetdevNode, Status_Unroutable_IsTheSumOfAllQueues) {
  ASSERT_NO_FATAL_FAILURE(start({}));
  // The kernel chooses the queue by the ports: with so many of them both queues get some.
  constexpr int kPorts = 64;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(4000);
  to.sin_addr.s_addr = htonl(10u << 24 | 77u << 16 | 99u);
  for (int i = 0; i < kPorts; ++i) {
    const base::UniqueFd from(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(1, sendto(from.get(), "", 1, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to)) << errno;
  }
  const std::string expected = "\"unroutable\":" + std::to_string(kPorts) + "}";
  const std::string status = status_with(expected);
  EXPECT_NE(status.npos, status.find(expected)) << status;
  EXPECT_EQ(0, process->end());
}

}  // namespace
}  // namespace nupa::netdev
