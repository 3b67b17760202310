// SPDX-License-Identifier: Apache-2.0
// Connections between processes of this host: services and who has them, questions that are asked again, fork and the
// end of a process.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <nupa/connection_manager.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <barrier>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cm/engine/probe.h"
#include "cm/connections.h"
#include "core/process.h"
#include "transport/roce/port/port.h"
#include "../host/fixture.h"

namespace nupa::core {
namespace {

constexpr int kSoonMs = 20'000;  // a sanitizer on a busy machine
constexpr uint64_t kIpTcp = 0x0000000001060000;
constexpr uint64_t kPlain = 0x1000000000abcd;

Gid loopback(uint8_t last = 1) {
  Gid gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 127;
  gid.raw[15] = last;
  return gid;
}

/// NUPA_TRANSPORT for as long as it lives.
class Transport {
 public:
  explicit Transport(const char* wanted) {
    if (const char* found = getenv("NUPA_TRANSPORT"); found != nullptr) before_ = found;
    setenv("NUPA_TRANSPORT", wanted, 1);
  }
  ~Transport() { before_.empty() ? unsetenv("NUPA_TRANSPORT") : setenv("NUPA_TRANSPORT", before_.c_str(), 1); }
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

 private:
  std::string before_;
};

enum class Told { kRequest, kReply, kEstablished, kRejected, kUnreachable, kDisconnected, kDatagramReply };
struct Event {
  Told what;
  uint64_t owner;       ///< of a request: the listener
  uint64_t detail = 0;  ///< a reason, a status, or whether it was silent
  ConnectionId id = 0;
};

/// Writes down what it is told. Requests get owners from 100 on.
class Sink final : public ConnectionSink {
 public:
  /// Called with the manager's lock held.
  std::function<void()> at_request;
  uint64_t on_request(uint64_t owner, ConnectionId id, const ConnectionRequest&) override {
    if (at_request) at_request();
    tell({Told::kRequest, owner, 0, id});
    return ++last_owner_;
  }
  uint64_t on_datagram_request(uint64_t, ConnectionId, const DatagramRequest&) override { return 0; }
  void on_reply(uint64_t owner, const ConnectionReply&) override { tell({Told::kReply, owner}); }
  void on_established(uint64_t owner, const PrivateData<224>&) override { tell({Told::kEstablished, owner}); }
  void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>&) override {
    tell({Told::kRejected, owner, reason});
  }
  void on_unreachable(uint64_t owner) override { tell({Told::kUnreachable, owner}); }
  void on_disconnected(uint64_t owner, bool silent) override { tell({Told::kDisconnected, owner, silent ? 1u : 0u}); }
  void on_time_wait_exit(uint64_t) override {}
  void on_datagram_reply(uint64_t owner, const DatagramReply& reply) override {
    tell({Told::kDatagramReply, owner, static_cast<uint64_t>(reply.status)});
  }

  /// The next event; of owner 0: none came.
  Event next() {
    std::unique_lock lock(mutex_);
    if (!came_.wait_for(lock, std::chrono::milliseconds(kSoonMs), [this] { return taken_ < events_.size(); }))
      return {Told::kUnreachable, 0};
    return events_[taken_++];
  }
  bool nothing_more() {
    std::lock_guard lock(mutex_);
    return taken_ == events_.size();
  }

 private:
  void tell(const Event& event) {
    std::lock_guard lock(mutex_);
    events_.push_back(event);
    came_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Event> events_;
  size_t taken_ = 0;
  uint64_t last_owner_ = 100;
};

/// A process with connections.
struct Party {
  Sink sink;
  std::shared_ptr<ConnectionManager> manager;
  Party() {
    if (auto opened = ConnectionManager::open(sink)) manager = std::move(*opened);
  }
  int take(uint64_t owner, uint64_t service, const Gid* address = nullptr,
           const std::function<void(ListenerAddress&)>& change = {}) {
    ListenerAddress at;
    at.service_id = service;
    if (address != nullptr) {
      at.any_address = false;
      at.address = *address;
    }
    if (change) change(at);
    return manager->bind(owner, at);
  }
  /// A request for `service`, at the loopback address if it is one of IP.
  int connect(uint64_t owner, uint64_t service, ConnectionId* id, uint8_t address = 1) {
    auto route = manager->find_route(loopback(address), 0, nullptr);
    if (!route) return route.error().code();
    ConnectionRequest request;
    request.service_id = service;
    request.path = route->path;
    request.ca_guid = static_cast<uint64_t>(getpid());
    request.qp_num = static_cast<uint32_t>(owner);
    if (is_ip_service(service)) {
      request.private_data.bytes[1] = std::byte{0x40};
      const Gid to = loopback(address);
      for (size_t i = 0; i < 4; ++i) request.private_data.bytes[32 + i] = static_cast<std::byte>(to.raw[12 + i]);
    }
    request.private_data.length = request.private_data.room();
    return manager->connect(request, *route, owner, id);
  }
};

/// A slot that this process does not have: each process takes one at random.
uint32_t slot_of_another() { return (*Process::acquire())->slot() == 3077 ? 3078 : 3077; }

/// Another process, forked before this one has opened anything; words go to and fro.
class Other {
 public:
  explicit Other(const std::function<void(Other&)>& body) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    pid_ = fork();
    link_ = ends[pid_ == 0 ? 1 : 0];
    ::close(ends[pid_ == 0 ? 0 : 1]);
    if (pid_ != 0) return;
    alarm(3 * kSoonMs / 1000);
    body(*this);
    _exit(0);
  }
  ~Other() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      wait();
    }
    ::close(link_);
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  void say(int word) { ASSERT_EQ(4, send(link_, &word, sizeof word, MSG_NOSIGNAL)); }
  int hear() {
    pollfd one{link_, POLLIN, 0};
    int word = -1;
    if (::poll(&one, 1, kSoonMs) != 1 || recv(link_, &word, sizeof word, 0) != 4) return -1;
    return word;
  }
  int wait() {
    int status = -1;
    EXPECT_EQ(pid_, waitpid(pid_, &status, 0));
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  void kill_it() { kill(pid_, SIGKILL); }

 private:
  pid_t pid_ = 0;
  int link_ = -1;
};

/// The service thread does `what`, and nothing else meanwhile.
void on_service_thread(Process& own, const std::function<void()>& what) {
  ASSERT_TRUE(own.node().loop().call(what, progress::Deadline::in_ms(kSoonMs)));
}
/// The service thread looks at the processes of other hosts as if the time was `now`.
void look_at(Process& own, int64_t now) {
  on_service_thread(own, [&] { cm::Connections::of(own)->watch_peers(now); });
}

// One process.

TEST(CoreConnections, OfAProcessAreOneManagers) {
  Party party;
  ASSERT_NE(nullptr, party.manager);
  Sink second;
  const auto another = ConnectionManager::open(second);
  ASSERT_FALSE(another);
  EXPECT_EQ(EBUSY, another.error().code());
  const auto own = *Process::acquire();  // which stays
  party.manager.reset();
  EXPECT_TRUE(ConnectionManager::open(second));
}

TEST(CoreConnections, TheTableShowsWhatIsListenedFor) {
  Party party;
  ASSERT_NE(nullptr, party.manager);
  const auto own = *Process::acquire();
  const shm::Tables& tables = own->tables();
  const uint32_t before = tables.header->listener_high_water.load();
  EXPECT_EQ(EINVAL, party.manager->listen(1)) << "it has no service";
  const Gid address = loopback();
  ASSERT_EQ(0, party.take(1, kIpTcp + 7001, &address));
  ASSERT_EQ(0, party.take(2, kIpTcp + 7002, nullptr, [](ListenerAddress& at) { at.only_v4 = true; }));
  ASSERT_EQ(0, party.take(3, kIpTcp + 7003, nullptr, [](ListenerAddress& at) { at.only_v6 = true; }));
  ASSERT_EQ(0, party.take(4, kPlain, nullptr, [](ListenerAddress& at) { at.mask = ~uint64_t{0xf}; }));
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(0u, tables.listeners[i].in_use.load()) << "bound is not listening";
  for (uint64_t owner = 1; owner <= 4; ++owner) ASSERT_EQ(0, party.manager->listen(owner));
  EXPECT_EQ(EINVAL, party.manager->listen(1)) << "it listens";
  EXPECT_EQ(std::max(before, 4u), tables.header->listener_high_water.load());
  constexpr uint32_t kFlags[] = {0, shm::kListenAnyAddress | shm::kListenOnlyV4,
                                 shm::kListenAnyAddress | shm::kListenOnlyV6, shm::kListenAnyAddress};
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(1u, tables.listeners[i].in_use.load()) << i;
    EXPECT_EQ(kFlags[i], tables.listeners[i].flags) << i;
    EXPECT_EQ(i == 3 ? kPlain : kIpTcp + 7001 + i, tables.listeners[i].service_id) << i;
    EXPECT_EQ(i == 3 ? ~uint64_t{0xf} : ~uint64_t{0}, tables.listeners[i].mask) << i;
  }
  EXPECT_EQ(address, tables.listeners[0].address);
  party.manager->unbind(2);
  EXPECT_EQ(0u, tables.listeners[1].in_use.load());
  EXPECT_EQ(1u, tables.listeners[2].in_use.load());
  ASSERT_EQ(0, party.take(5, kIpTcp + 7005));
  ASSERT_EQ(0, party.manager->listen(5));
  EXPECT_EQ(kIpTcp + 7005, tables.listeners[1].service_id) << "the first entry that is free";
  EXPECT_EQ(std::max(before, 4u), tables.header->listener_high_water.load());
  party.manager.reset();
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(0u, tables.listeners[i].in_use.load()) << i;
}

TEST(CoreConnections, TwoThatBindAtTheSameMoment_DoNotBothGetTheService) {
  constexpr uint64_t kService = kIpTcp + 7040;
  constexpr int kRounds = 2000;
  Party party;
  ASSERT_NE(nullptr, party.manager);
  const Gid address = loopback();
  std::array<int, 2> errors{};
  int both = 0;
  std::barrier start(2), end(2);
  // Names are of the host: threads of one process meet there as those of two do.
  std::thread other([&] {
    for (int i = 0; i < kRounds; ++i) {
      start.arrive_and_wait();
      errors[1] = party.take(2, kService, &address);
      end.arrive_and_wait();
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    start.arrive_and_wait();
    errors[0] = party.take(1, kService);
    end.arrive_and_wait();
    for (const int error : errors) EXPECT_TRUE(error == 0 || error == EADDRINUSE) << error;
    both += errors[0] == 0 && errors[1] == 0;
    party.manager->unbind(1);
    party.manager->unbind(2);
  }
  other.join();
  EXPECT_EQ(0, both);
}

/// A listener may be on its way: programs agree over TCP, and connect before the other one listens.
constexpr int64_t kListenerOnItsWayNs = 150'000'000;

TEST(CoreConnections, WithoutAListener_TheRefusalComesAfterAWhile) {
  const Transport memory("shm");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  // One that has gone is none.
  ASSERT_EQ(0, party.take(7, kIpTcp + 7010));
  ASSERT_EQ(0, party.manager->listen(7));
  party.manager->unbind(7);
  ConnectionId id = 0;
  const int64_t before = base::now_ns();
  ASSERT_EQ(0, party.connect(1, kIpTcp + 7010, &id));
  const Event event = party.sink.next();
  EXPECT_GE(base::now_ns() - before, kListenerOnItsWayNs);
  EXPECT_EQ(Told::kRejected, event.what);
  EXPECT_EQ(1u, event.owner);
  EXPECT_EQ(static_cast<uint64_t>(RejectReason::kInvalidServiceId), event.detail);
  EXPECT_TRUE(party.sink.nothing_more());
  party.manager->release(id);
}

TEST(CoreConnections, WithoutADatagramService_TheAnswerComesAfterAWhile) {
  const Transport memory("shm");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  const auto route = party.manager->find_route(loopback(), 0, nullptr);
  ASSERT_TRUE(route);
  DatagramRequest request;
  request.service_id = kPlain;
  request.path = route->path;
  ConnectionId id = 0;
  const int64_t before = base::now_ns();
  ASSERT_EQ(0, party.manager->ask_datagram(request, *route, 1, &id));
  const Event event = party.sink.next();
  EXPECT_GE(base::now_ns() - before, kListenerOnItsWayNs);
  EXPECT_EQ(Told::kDatagramReply, event.what);
  EXPECT_EQ(1u, event.owner);
  EXPECT_EQ(static_cast<uint64_t>(DatagramStatus::kUnsupported), event.detail);
  EXPECT_TRUE(party.sink.nothing_more());
  party.manager->release(id);
}

TEST(CoreConnections, AListenerThatComesInTime_IsAsked) {
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, party.take(7, kIpTcp + 7011));
  ConnectionId id = 0;
  const int64_t before = base::now_ns();
  ASSERT_EQ(0, party.connect(1, kIpTcp + 7011, &id));
  ASSERT_EQ(0, party.manager->listen(7));
  const bool in_time = base::now_ns() - before < 100'000'000;
  const Event event = party.sink.next();
  EXPECT_TRUE(!in_time || event.what == Told::kRequest);
  if (event.what != Told::kRequest) return;
  EXPECT_EQ(7u, event.owner);
  EXPECT_EQ(0, party.manager->reject(event.id, RejectReason::kConsumer, {}));
  const Event rejected = party.sink.next();
  EXPECT_EQ(Told::kRejected, rejected.what);
  EXPECT_EQ(static_cast<uint64_t>(RejectReason::kConsumer), rejected.detail) << "another reason is told at once";
  party.manager->release(id);
  party.manager->release(event.id);
}

TEST(CoreConnections, AQuestionThatIsReleased_IsNotAskedAgain) {
  const Transport memory("shm");  // the refusal comes at once
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, party.take(7, kIpTcp + 7012));
  ConnectionId id = 0;
  ASSERT_EQ(0, party.connect(1, kIpTcp + 7012, &id));
  party.manager->release(id);
  ASSERT_EQ(0, party.manager->listen(7));
  ASSERT_EQ(0, party.connect(2, kIpTcp + 7012, &id));
  const Event event = party.sink.next();
  EXPECT_EQ(Told::kRequest, event.what) << "of the second one";
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // for the first one, were it asked again
  EXPECT_TRUE(party.sink.nothing_more());
  party.manager->release(event.id);
  party.manager->release(id);
}

TEST(CoreConnections, AQuestionThatIsDueLaterThanAReleasedOne_IsAskedAgain) {
  const Transport memory("shm");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  const auto own = *Process::acquire();
  ConnectionId ids[2] = {};
  on_service_thread(*own, [&] {  // which asks nothing meanwhile
    constexpr int64_t kBetween = 3'000'000;
    const int64_t first = base::now_ns();
    ASSERT_EQ(0, party.connect(1, kIpTcp + 7017, &ids[0]));
    while (base::now_ns() - first < kBetween) std::this_thread::yield();
    ASSERT_EQ(0, party.connect(2, kIpTcp + 7017, &ids[1]));
    party.manager->release(ids[0]);
  });
  const Event event = party.sink.next();
  EXPECT_EQ(Told::kRejected, event.what) << "until it has been asked for long enough";
  EXPECT_EQ(2u, event.owner);
  party.manager->release(ids[1]);
}

TEST(CoreConnections, QuestionOfTheServiceThread_WaitsForNoProcess) {
  const host::test::Folder folder;
  const Transport memory("shm");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  const auto own = *Process::acquire();
  const std::string slot = std::to_string(slot_of_another());
  const base::UniqueFd silent = host::test::socket_at(folder.file(slot + ".sock"), host::test::kBacklog);
  ConnectionId id = 0;
  long sleeps = -1;
  on_service_thread(*own, [&] {
    const auto slept = [] {
      rusage used{};
      getrusage(RUSAGE_THREAD, &used);
      return used.ru_nvcsw;
    };
    const long before = slept();
    ASSERT_EQ(0, party.connect(1, kIpTcp + 7018, &id));
    sleeps = slept() - before;
  });
  EXPECT_EQ(sleeps, 0);
  pollfd asked{silent.get(), POLLIN, 0};
  EXPECT_EQ(1, ::poll(&asked, 1, 0)) << "the process was not asked";
  party.manager->release(id);
}

TEST(CoreConnections, QuestionsOfAManagerThatHasGone_AreNotAskedAgain) {
  const host::test::Folder folder;
  const Transport memory("shm");
  auto party = std::make_unique<Party>();
  ASSERT_NE(nullptr, party->manager);
  const auto own = *Process::acquire();  // the process goes on
  const std::string slot = std::to_string(slot_of_another());
  base::UniqueFd later;
  on_service_thread(*own, [&] {
    ConnectionId id = 0;
    ASSERT_EQ(0, party->connect(1, kIpTcp + 7016, &id));
    party->manager.reset();
    // A question that is asked again goes to this process, too.
    later = host::test::socket_at(folder.file(slot + ".sock"), host::test::kBacklog);
    cm::Connections::of(*own)->ask_again(base::now_ns() + 1'000'000'000);
  });
  pollfd asked{later.get(), POLLIN, 0};
  EXPECT_EQ(0, ::poll(&asked, 1, 0));
  EXPECT_TRUE(party->sink.nothing_more());
}

TEST(CoreConnections, WhatAProcessSendsToItself_HasArrivedWhenTheCallReturns) {
  const Transport memory("shm");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, party.take(7, kIpTcp + 7013));
  ASSERT_EQ(0, party.manager->listen(7));
  ConnectionId active = 0;
  ASSERT_EQ(0, party.connect(1, kIpTcp + 7013, &active));
  ASSERT_FALSE(party.sink.nothing_more());
  const Event request = party.sink.next();
  ASSERT_EQ(Told::kRequest, request.what);
  ASSERT_EQ(0, party.manager->accept(request.id, {}));
  ASSERT_FALSE(party.sink.nothing_more());
  EXPECT_EQ(Told::kReply, party.sink.next().what);
  ASSERT_EQ(0, party.manager->establish(active));
  ASSERT_FALSE(party.sink.nothing_more());
  EXPECT_EQ(Told::kEstablished, party.sink.next().what);
  ASSERT_EQ(0, party.manager->disconnect(active));
  for (int end = 0; end < 2; ++end) {  // by the DREQ, and by its answer
    ASSERT_FALSE(party.sink.nothing_more()) << end;
    EXPECT_EQ(Told::kDisconnected, party.sink.next().what);
  }
  party.manager->release(active);
  party.manager->release(request.id);
}

TEST(CoreConnections, ARefusalForAnotherReasonThanNoService_IsToldAtOnce) {
  const Transport memory("shm");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, party.take(7, kIpTcp + 7015));
  ASSERT_EQ(0, party.manager->listen(7));
  ConnectionId active = 0;
  ASSERT_EQ(0, party.connect(1, kIpTcp + 7015, &active));
  ASSERT_FALSE(party.sink.nothing_more());
  const Event request = party.sink.next();
  ASSERT_EQ(Told::kRequest, request.what);
  ASSERT_EQ(0, party.manager->reject(request.id, RejectReason::kConsumer, {}));
  ASSERT_FALSE(party.sink.nothing_more()) << "the listener is not asked again";
  const Event refusal = party.sink.next();
  EXPECT_EQ(Told::kRejected, refusal.what);
  EXPECT_EQ(static_cast<uint64_t>(RejectReason::kConsumer), refusal.detail);
  party.manager->release(active);
  party.manager->release(request.id);
}

TEST(CoreConnections, FamiliesOfAddressesMeetWithinThemselves) {
  Party party;
  ASSERT_NE(nullptr, party.manager);
  constexpr uint64_t kService = kIpTcp + 7014;
  const Gid four = loopback(), six{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  const auto only_v4 = [](ListenerAddress& at) { at.only_v4 = true; };
  const auto only_v6 = [](ListenerAddress& at) { at.only_v6 = true; };
  ASSERT_EQ(0, party.take(1, kService));
  EXPECT_EQ(EADDRINUSE, party.take(2, kService, nullptr, only_v4));
  EXPECT_EQ(EADDRINUSE, party.take(2, kService, nullptr, only_v6));
  EXPECT_EQ(EADDRINUSE, party.take(2, kService, &four));
  EXPECT_EQ(EADDRINUSE, party.take(2, kService, &six));
  party.manager->unbind(1);
  ASSERT_EQ(0, party.take(1, kService, nullptr, only_v4));
  EXPECT_EQ(EADDRINUSE, party.take(2, kService, &four));
  EXPECT_EQ(EADDRINUSE, party.take(2, kService));
  EXPECT_EQ(0, party.take(2, kService, &six));
  party.manager->unbind(2);
  EXPECT_EQ(0, party.take(2, kService, nullptr, only_v6));
  EXPECT_EQ(EADDRINUSE, party.take(3, kService, &six));
  party.manager->unbind(1);
  EXPECT_EQ(0, party.take(3, kService, &four));
}

// A process that is played.

class CoreConnectionsPlayed : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(nullptr, party_.manager);
    own_ = *Process::acquire();
    ASSERT_NE(0u, own_->devices().size());
    enter(process_);
    ASSERT_TRUE(host::test::soon([&] { return own_->node().find(slot_) != nullptr; }));
  }
  /// The process has this one's addresses, and says hello.
  void enter(host::test::FakeProcess& process) {
    process.header().device_count = own_->tables().header->device_count;
    for (uint32_t i = 0; i < shm::kMaxDevices; ++i) process.header().devices[i] = own_->tables().header->devices[i];
    sockets_.push_back(host::test::connect_to(folder_.file(std::to_string(own_->slot()) + ".sock")));
    ASSERT_TRUE(process.say_hello(sockets_.back().get()));
    ASSERT_TRUE(host::wait_readable(sockets_.back().get(), kSoonMs));
    ASSERT_TRUE(host::receive_message(sockets_.back().get()));
  }
  shm::ListenerShared& listener(uint32_t index = 0) { return process_.tables().listeners[index]; }
  /// It listens for the service at one address, or at all.
  void listens(uint64_t service, const Gid* address) {
    listener().service_id = service;
    listener().mask = ~uint64_t{0};
    listener().flags = address == nullptr ? shm::kListenAnyAddress : 0;
    if (address != nullptr) listener().address = *address;
    listener().in_use.store(1);
    process_.header().listener_high_water.store(1);
  }
  /// Whether a request for the service reaches it.
  bool asked(uint64_t service, uint8_t address = 1) {
    ConnectionId id = 0;
    EXPECT_EQ(0, party_.connect(++owner_, service, &id, address));
    const auto received = host::receive_message(sockets_[0].get());
    const bool is = received && received->message.kind == static_cast<uint32_t>(host::MessageKind::kPayload) &&
                    cm::read_envelope(received->payload)->attribute == cm::Attribute::kReq;
    party_.manager->release(id);
    while (host::receive_message(sockets_[0].get())) {
    }
    return is;
  }

  const host::test::Folder folder_;
  const Transport memory_{"shm"};
  Party party_;
  std::shared_ptr<Process> own_;
  const uint32_t slot_ = slot_of_another();
  host::test::FakeProcess process_{slot_};
  std::vector<base::UniqueFd> sockets_;
  uint64_t owner_ = 0;
};

TEST_F(CoreConnectionsPlayed, WhoeverListensIsAsked) {
  EXPECT_FALSE(asked(kIpTcp + 7060));
  listens(kIpTcp + 7060, nullptr);
  EXPECT_TRUE(asked(kIpTcp + 7060));
  EXPECT_FALSE(asked(kIpTcp + 7061)) << "another service";
  listener().in_use.store(0);
  EXPECT_FALSE(asked(kIpTcp + 7060)) << "it listens no more";
  const Gid two = loopback(2);
  listens(kIpTcp + 7060, &two);
  EXPECT_FALSE(asked(kIpTcp + 7060, 1)) << "another address";
  EXPECT_TRUE(asked(kIpTcp + 7060, 2));
  listener().flags = shm::kListenAnyAddress | shm::kListenOnlyV6;
  EXPECT_FALSE(asked(kIpTcp + 7060)) << "another family";
  listener().flags = shm::kListenAnyAddress | shm::kListenOnlyV4;
  EXPECT_TRUE(asked(kIpTcp + 7060));
  listener().mask = ~uint64_t{0xff};
  EXPECT_TRUE(asked((kIpTcp + 7060) ^ 1)) << "a range of services";
  process_.header().listener_high_water.store(0);
  EXPECT_FALSE(asked(kIpTcp + 7060)) << "entries at and above the mark were never used";
  process_.header().listener_high_water.store(UINT32_MAX);
  EXPECT_TRUE(asked(kIpTcp + 7060)) << "a mark beyond the table is not believed";
}

TEST_F(CoreConnectionsPlayed, AMessageForADeadProcess_DoesNotReachTheNextInItsSlot) {
  listens(kIpTcp + 7062, nullptr);
  ConnectionId id = 0;
  ASSERT_EQ(0, party_.connect(1, kIpTcp + 7062, &id));
  host::test::FakeProcess next(slot_, process_.header().instance + 1);
  enter(next);
  ASSERT_TRUE(host::test::soon([&] {
    const host::PeerRef now = own_->node().find(slot_);
    return now != nullptr && now->instance() == next.header().instance;
  }));
  party_.manager->release(id);  // tells the other end
  const auto nothing = host::receive_message(sockets_[1].get());
  ASSERT_FALSE(nothing);
  EXPECT_EQ(EAGAIN, nothing.error().code());
}

TEST_F(CoreConnectionsPlayed, WhenTheLastProcessWithTheAddressEnds_ItsRefusalIsTold) {
  Gid foreign = loopback();
  for (const size_t i : {12, 13, 14}) foreign.raw[i] = static_cast<uint8_t>(180 + i);
  shm::GidTableShared& theirs = process_.header().devices[0];
  theirs.count = std::min(theirs.count, shm::kMaxGids - 1);
  theirs.gids[theirs.count++] = foreign;
  auto route = party_.manager->find_route(loopback(), 0, nullptr);
  ASSERT_TRUE(route);
  route->path.remote = foreign;
  ConnectionRequest connection;
  connection.service_id = kPlain;
  DatagramRequest datagrams;
  datagrams.service_id = kPlain + 1;
  connection.path = datagrams.path = route->path;
  ConnectionId ids[2] = {};
  // The service thread sees the end of the process after it has asked both, and before it asks again.
  on_service_thread(*own_, [&] {
    sockets_[0].reset();
    ASSERT_EQ(0, party_.manager->connect(connection, *route, 1, &ids[0]));
    ASSERT_EQ(0, party_.manager->ask_datagram(datagrams, *route, 2, &ids[1]));
  });
  for (int i = 0; i < 2; ++i) {
    const Event event = party_.sink.next();
    if (event.owner == 1) {
      EXPECT_EQ(Told::kRejected, event.what);
      EXPECT_EQ(static_cast<uint64_t>(RejectReason::kInvalidServiceId), event.detail);
    } else {
      EXPECT_EQ(2u, event.owner);
      EXPECT_EQ(Told::kDatagramReply, event.what);
      EXPECT_EQ(static_cast<uint64_t>(DatagramStatus::kUnsupported), event.detail);
    }
  }
  EXPECT_TRUE(party_.sink.nothing_more());
  EXPECT_EQ(nullptr, own_->node().find(slot_));
  for (const ConnectionId id : ids) party_.manager->release(id);
}

// Two processes.

TEST(CoreConnectionsProcesses, OneHasAService_InEitherOrder) {
  struct Case {
    bool first_any, second_any;
    uint8_t first_address, second_address;
    int error;
  };
  constexpr Case kCases[] = {{true, true, 0, 0, EADDRINUSE},
                             {true, false, 0, 1, EADDRINUSE},
                             {false, true, 1, 0, EADDRINUSE},
                             {false, false, 1, 1, EADDRINUSE},
                             {false, false, 1, 2, 0}};
  Other other([&](Other& self) {
    Party party;
    if (party.manager == nullptr) _exit(1);
    for (uint32_t i = 0; i < std::size(kCases); ++i) {
      const Gid address = loopback(kCases[i].first_address);
      const int error = party.take(1, kIpTcp + 7020 + i, kCases[i].first_any ? nullptr : &address);
      self.say(error);
      if (self.hear() != 1) _exit(2);
      party.manager->unbind(1);
      self.say(0);
    }
  });
  Party party;
  ASSERT_NE(nullptr, party.manager);
  for (uint32_t i = 0; i < std::size(kCases); ++i) {
    const uint64_t service = kIpTcp + 7020 + i;
    ASSERT_EQ(0, other.hear()) << i;
    const Gid address = loopback(kCases[i].second_address);
    const Gid* const at = kCases[i].second_any ? nullptr : &address;
    EXPECT_EQ(kCases[i].error, party.take(5, service, at)) << i;
    EXPECT_TRUE(kCases[i].error == 0 || party.manager->listen(5) == EINVAL) << "it has nothing";
    party.manager->unbind(5);
    other.say(1);
    ASSERT_EQ(0, other.hear());
    EXPECT_EQ(0, party.take(5, service, at)) << "the other one has given it back";
    party.manager->unbind(5);
  }
  EXPECT_EQ(0, other.wait());
}

TEST(CoreConnectionsProcesses, AServiceAtAnIpv4Address_LeavesAllIpv6AddressesFree) {
  constexpr uint64_t kService = kIpTcp + 7031;
  Other other([](Other& self) {
    Party party;
    const Gid address = loopback();
    self.say(party.manager == nullptr ? 1 : party.take(1, kService, &address));
    self.hear();
  });
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, other.hear());
  EXPECT_EQ(EADDRINUSE, party.take(5, kService));
  EXPECT_EQ(EADDRINUSE, party.take(5, kService, nullptr, [](ListenerAddress& at) { at.only_v4 = true; }));
  EXPECT_EQ(0, party.take(5, kService, nullptr, [](ListenerAddress& at) { at.only_v6 = true; }));
  other.say(1);
  EXPECT_EQ(0, other.wait());
}

TEST(CoreConnectionsProcesses, TheServiceOfOneThatDied_IsFree) {
  Other other([](Other& self) {
    Party party;
    self.say(party.manager == nullptr ? 1 : party.take(1, kIpTcp + 7030));
    if (fork() == 0) {  // a child holds no name whose owner is gone
      alarm(kSoonMs / 1000);
      self.say(7);
      for (;;) pause();
    }
    self.hear();
  });
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, other.hear());
  ASSERT_EQ(7, other.hear());
  EXPECT_EQ(EADDRINUSE, party.take(5, kIpTcp + 7030));
  other.kill_it();
  EXPECT_EQ(1000 + SIGKILL, other.wait());
  EXPECT_EQ(0, party.take(5, kIpTcp + 7030));
}

TEST(CoreConnectionsProcesses, AChildDoesNotWaitForALockOfItsParent) {
  const Transport memory("shm");
  std::promise<void> locked, seen;
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, party.take(7, kIpTcp + 7032));
  ASSERT_EQ(0, party.manager->listen(7));
  party.sink.at_request = [&] {
    locked.set_value();
    seen.get_future().wait();
  };
  ConnectionId id = 0;
  std::thread caller([&] { EXPECT_EQ(0, party.connect(1, kIpTcp + 7032, &id)); });
  locked.get_future().wait();
  EXPECT_EQ(0, host::test::in_child([&] {
              alarm(kSoonMs / 1000);
              party.manager->unbind(7);
              party.manager->release(id);
              EXPECT_EQ(ENODEV, party.take(8, kIpTcp + 7033));
              EXPECT_EQ(ENODEV, party.manager->listen(7));
              EXPECT_EQ(ENODEV, party.manager->disconnect(id));
              return 0;
            }));
  seen.set_value();
  caller.join();
}

/// A process that listens, accepts the one who comes, says so and then does `more`.
auto accepting(uint64_t service, std::function<void(Other&, Party&, ConnectionId)> more) {
  return [service, more](Other& self) {
    auto* party = new Party;
    if (party->manager == nullptr || party->take(1, service) != 0 || party->manager->listen(1) != 0) _exit(1);
    self.say(1);
    const Event request = party->sink.next();
    if (request.what != Told::kRequest || party->manager->accept(request.id, {}) != 0) _exit(2);
    if (party->sink.next().what != Told::kEstablished) _exit(3);
    self.say(2);
    more(self, *party, request.id);
  };
}

class CoreConnectionsPair : public ::testing::Test {
 protected:
  /// Connects to the other process; `party_` is this one.
  void connect(Other& other, uint64_t service) {
    ASSERT_NE(nullptr, party().manager);
    ASSERT_EQ(1, other.hear());
    ASSERT_EQ(0, party().connect(1, service, &id_));
    ASSERT_EQ(Told::kReply, party().sink.next().what);
    ASSERT_EQ(0, party().manager->establish(id_));
    ASSERT_EQ(2, other.hear());
  }
  Party& party() {
    if (party_ == nullptr) party_ = std::make_unique<Party>();
    return *party_;
  }
  void expect_disconnected(bool silent) {
    const Event event = party().sink.next();
    EXPECT_EQ(Told::kDisconnected, event.what);
    EXPECT_EQ(1u, event.owner);
    EXPECT_EQ(silent ? 1u : 0u, event.detail);
  }
  std::unique_ptr<Party> party_;
  ConnectionId id_ = 0;
};

TEST_F(CoreConnectionsPair, WhenAProcessExits_ItsConnectionsEnd) {
  Other other(accepting(kIpTcp + 7040, [](Other& self, Party&, ConnectionId) {
    self.hear();
    exit(0);
  }));
  connect(other, kIpTcp + 7040);
  other.say(1);
  expect_disconnected(false);
  EXPECT_EQ(0, other.wait());
}

TEST_F(CoreConnectionsPair, WhenAProcessExitsInASignalHandlerWithTheManagersLock_ItEnds_AndItsConnectionsToo) {
  Other other(accepting(kIpTcp + 7046, [](Other& self, Party& party, ConnectionId) {
    self.hear();
    signal(SIGTERM, [](int) { exit(3); });
    party.sink.at_request = [] { raise(SIGTERM); };
    ConnectionId id = 0;
    if (party.take(2, kIpTcp + 7047) != 0 || party.manager->listen(2) != 0) _exit(4);
    party.connect(3, kIpTcp + 7047, &id);
  }));
  connect(other, kIpTcp + 7046);
  other.say(1);
  EXPECT_EQ(3, other.wait()) << "its alarm ended it";
  EXPECT_EQ(Told::kDisconnected, party().sink.next().what);
}

TEST_F(CoreConnectionsPair, WhenAManagerGoes_ItsConnectionsEnd) {
  Other other(accepting(kIpTcp + 7044, [](Other& self, Party& party, ConnectionId) {
    self.say(party.sink.next().what == Told::kDisconnected ? 5 : 6);
  }));
  connect(other, kIpTcp + 7044);
  const auto own = *Process::acquire();  // the process goes on
  party().manager.reset();
  EXPECT_EQ(5, other.hear());
}

TEST_F(CoreConnectionsPair, WhenAProcessIsKilled_ItsConnectionsEndSilently) {
  Other other(accepting(kIpTcp + 7041, [](Other& self, Party&, ConnectionId) { self.hear(); }));
  connect(other, kIpTcp + 7041);
  other.kill_it();
  expect_disconnected(true);
}

TEST_F(CoreConnectionsPair, WhenAProcessIsKilled_ItsChildHoldsNoConnection) {
  Other other(accepting(kIpTcp + 7042, [](Other& self, Party&, ConnectionId) {
    if (fork() == 0) {
      alarm(kSoonMs / 1000);
      self.say(3);
      for (;;) pause();
    }
    self.hear();
  }));
  connect(other, kIpTcp + 7042);
  ASSERT_EQ(3, other.hear());
  other.kill_it();
  expect_disconnected(true);
}

TEST_F(CoreConnectionsPair, WhenAChildExits_TheConnectionsOfItsParentStay) {
  Other other(accepting(kIpTcp + 7043, [](Other& self, Party& party, ConnectionId id) {
    for (const bool calls : {false, true}) {
      const pid_t child = fork();
      if (child == 0) {
        ConnectionId none = 0;
        if (calls) {
          // What it inherits is its parent's.
          if (party.manager->disconnect(id) != ENODEV) _exit(11);
          if (party.manager->accept(id, {}) != ENODEV) _exit(12);
          if (party.connect(9, kIpTcp + 7099, &none) != ENODEV) _exit(13);
          if (party.take(9, kIpTcp + 7098) != ENODEV) _exit(14);
          party.manager->release(id);
          party.manager->unbind(1);
        }
        exit(0);
      }
      int status = -1;
      if (waitpid(child, &status, 0) != child || status != 0) self.say(WEXITSTATUS(status) + 1000);
    }
    self.say(4);
    self.hear();
    party.manager->disconnect(id);
    self.hear();
  }));
  connect(other, kIpTcp + 7043);
  EXPECT_EQ(4, other.hear());
  EXPECT_TRUE(party().sink.nothing_more());
  EXPECT_EQ(EADDRINUSE, party().take(5, kIpTcp + 7043)) << "the parent still has its service";
  other.say(1);
  expect_disconnected(false);
}

TEST_F(CoreConnectionsPair, WhenAChildUnbinds_OthersStillReachTheServiceOfItsParent) {
  const Transport memory("shm");  // packets would find the listener without the table
  Other other([](Other& self) {
    Party party;
    if (party.manager == nullptr || party.take(1, kIpTcp + 7045) != 0 || party.manager->listen(1) != 0) _exit(1);
    EXPECT_EQ(0, host::test::in_child([&] {
                alarm(kSoonMs / 1000);
                party.manager->unbind(1);
                return 0;
              }));
    self.say(::testing::Test::HasFailure() ? 0 : 1);
    const Event request = party.sink.next();
    if (request.what == Told::kRequest) party.manager->reject(request.id, RejectReason::kConsumer, {});
    self.hear();
  });
  ASSERT_NE(nullptr, party().manager);
  ASSERT_EQ(1, other.hear());
  ASSERT_EQ(0, party().connect(1, kIpTcp + 7045, &id_));
  const Event answer = party().sink.next();
  EXPECT_EQ(Told::kRejected, answer.what);
  EXPECT_EQ(static_cast<uint64_t>(RejectReason::kConsumer), answer.detail) << "the parent has been asked";
}

// Packets.

uint16_t port_of(const Process& own) { return roce::Port::port_of_slot(own.slot()); }

TEST(CoreConnectionsPackets, AProbeIsAnsweredWithTheInstance_AndAnEchoIsNot) {
  const Transport packets("roce");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  const auto own = *Process::acquire();
  auto socket = roce::ManagementSocket::open(0);
  ASSERT_TRUE(socket);
  const auto ask = [&](bool is_echo, uint32_t port) {
    MadDatagram question;
    question.bytes = cm::write_probe({is_echo, port, 5});
    question.local = loopback();
    question.remote = {loopback(), port_of(*own)};
    socket->send(question);
  };
  ask(true, 111);
  ask(false, 4711);
  std::vector<cm::Probe> answers;
  while (answers.empty()) {
    pollfd one{socket->fd(), POLLIN, 0};
    ASSERT_EQ(1, ::poll(&one, 1, kSoonMs));
    socket->receive([&](const MadDatagram& datagram) {
      const auto probe = cm::read_probe(datagram.bytes);
      ASSERT_TRUE(probe);
      EXPECT_TRUE(datagram.of_nupa);
      answers.push_back(*probe);
    });
  }
  ASSERT_EQ(1u, answers.size());
  EXPECT_TRUE(answers[0].is_echo);
  EXPECT_EQ(4711u, answers[0].port) << "the port that was asked";
  EXPECT_EQ(own->node().self().instance(), answers[0].instance);
}

/// A NUPA process of another host, as this process sees it: packets come from a port of its own.
class FarProcess {
 public:
  explicit FarProcess(uint64_t guid) : guid_(guid), socket_(*roce::ManagementSocket::open(0)) {}
  /// A connection to the service of `party`, made by this process.
  void connect(Party& party, uint16_t port, uint64_t service, ConnectionId* id) {
    ConnectionRequest request;
    request.service_id = service;
    request.ca_guid = guid_;
    request.path.local = request.path.remote = loopback();
    send(port, cm::write({cm::Attribute::kReq, 1, kId, 0}, request));
    const Event asked = party.sink.next();
    ASSERT_EQ(Told::kRequest, asked.what);
    ASSERT_EQ(0, party.manager->accept(asked.id, {}));
    send(port, cm::write({cm::Attribute::kRtu, 1, kId, asked.id}, cm::Readiness{}));
    ASSERT_EQ(Told::kEstablished, party.sink.next().what);
    *id = asked.id;
  }
  /// Waits until somebody asks whether it lives.
  bool asked_whether_it_lives() {
    bool asked = false;
    while (!asked) {
      pollfd one{socket_.fd(), POLLIN, 0};
      if (::poll(&one, 1, kSoonMs) != 1) return false;
      socket_.receive([&](const MadDatagram& datagram) {
        const auto probe = cm::read_probe(datagram.bytes);
        asked = asked || (probe && !probe->is_echo);
      });
    }
    return true;
  }

 private:
  static constexpr uint32_t kId = 5;
  void send(uint16_t port, const cm::Mad& mad) {
    MadDatagram datagram;
    datagram.bytes = mad;
    datagram.local = loopback();
    datagram.remote = {loopback(), port};
    socket_.send(datagram);
  }
  const uint64_t guid_;
  roce::ManagementSocket socket_;
};

TEST(CoreConnectionsPackets, AfterTheLastConnectionToOtherHosts_ProcessesOfLaterOnesAreWatchedAgain) {
  const Transport packets("roce");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  const auto own = *Process::acquire();
  const uint16_t port = port_of(*own);
  ASSERT_EQ(0, party.take(1, kPlain));
  ASSERT_EQ(0, party.manager->listen(1));
  FarProcess first(0x11), second(0x22);
  ConnectionId id = 0;
  ASSERT_NO_FATAL_FAILURE(first.connect(party, port, kPlain, &id));
  ASSERT_TRUE(first.asked_whether_it_lives());
  party.manager->release(id);
  // The pause between two questions ends, and no connection is left.
  ASSERT_NO_FATAL_FAILURE(look_at(*own, base::now_ns() + 2 * cm::PeerPulse::kPauseNs));
  ASSERT_NO_FATAL_FAILURE(second.connect(party, port, kPlain, &id));
  EXPECT_TRUE(second.asked_whether_it_lives());
  party.manager->release(id);
}

TEST(CoreConnectionsPackets, AProcessThatWasStoppedForLong_KeepsItsConnections) {
  const Transport packets("roce");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  const auto own = *Process::acquire();
  ASSERT_EQ(0, party.take(1, kPlain));
  ASSERT_EQ(0, party.manager->listen(1));
  FarProcess other(0x33);
  ConnectionId id = 0;
  ASSERT_NO_FATAL_FAILURE(other.connect(party, port_of(*own), kPlain, &id));
  ASSERT_TRUE(other.asked_whether_it_lives());
  // The time has gone on, and nobody was asked in it.
  ASSERT_NO_FATAL_FAILURE(look_at(*own, base::now_ns() + 100 * cm::PeerPulse::kPauseNs));
  EXPECT_TRUE(party.sink.nothing_more());
  EXPECT_TRUE(other.asked_whether_it_lives());
  party.manager->release(id);
}

/// The process with the port where standard peers look, and what they send there. Another process of the host is a name
/// that takes what is passed on.
class CoreConnectionsRelay : public ::testing::Test {
 protected:
  static constexpr uint64_t kService = kIpTcp + 7200;
  static constexpr uint64_t kGuid = 0x1122334455667788;

  void SetUp() override {
    ASSERT_NE(nullptr, party.manager);
    own = *Process::acquire();
    auto opened = roce::ManagementSocket::open(0, false);
    ASSERT_TRUE(opened);
    socket.emplace(std::move(*opened));
    auto taken = cm::MadName::take(cm::MadName::of_service(kService, cm::MadName::Family::kIpv4));
    ASSERT_TRUE(taken) << taken.error().what();
    other.emplace(std::move(*taken));
  }
  void send(const cm::Mad& mad) {
    MadDatagram datagram;
    datagram.bytes = mad;
    datagram.local = loopback();
    datagram.remote = {loopback(), port_of(*own)};
    socket->send(datagram);
  }
  /// `says_address`: with the header of IP, which says for which address it is.
  void send_request(uint32_t id, uint64_t guid = kGuid, bool says_address = true) {
    ConnectionRequest request;
    request.service_id = kService;
    request.ca_guid = guid;
    request.path.local = request.path.remote = loopback();
    request.private_data.bytes[1] = std::byte{0x40};
    for (size_t i = 0; i < 4; ++i) request.private_data.bytes[32 + i] = static_cast<std::byte>(loopback().raw[12 + i]);
    if (says_address) request.private_data.length = 36;
    send(cm::write({cm::Attribute::kReq, 9, id, 0}, request));
  }
  void send_rejection(uint32_t id, RejectReason reason = RejectReason::kTimeout, uint64_t guid = kGuid) {
    cm::Rejection rejection;
    rejection.answered = cm::Answered::kOther;
    rejection.reason = static_cast<uint16_t>(reason);
    rejection.ca_guid = guid;
    send(cm::write({cm::Attribute::kRej, 9, id, 0}, rejection));
  }
  /// What the other process gets next: attribute and sender's id. What comes later has come after it.
  std::optional<std::pair<cm::Attribute, uint32_t>> passed() {
    pollfd one{other->fd(), POLLIN, 0};
    if (::poll(&one, 1, kSoonMs) != 1) return std::nullopt;
    const auto relayed = other->receive();
    const auto envelope = relayed ? cm::read_envelope(relayed->mad) : std::nullopt;
    if (!envelope) return std::nullopt;
    return std::pair{envelope->attribute, envelope->local_id};
  }
  using Passed = std::pair<cm::Attribute, uint32_t>;

  const Transport packets{"roce"};
  Party party;
  std::shared_ptr<Process> own;
  std::optional<roce::ManagementSocket> socket;
  std::optional<cm::MadName> other;
};

TEST_F(CoreConnectionsRelay, RejectionOfAnEndThatGaveUp_GoesWhereItsRequestWent) {
  send_request(5);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kReq, 5}));
  send_rejection(5);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kRej, 5}));
}

TEST_F(CoreConnectionsRelay, RequestThatSaysNoAddress_GoesToWhoListensOnAll) {
  send_request(5, kGuid, false);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kReq, 5}));
}

TEST_F(CoreConnectionsRelay, RejectionOfAnotherEnd_GoesNowhere) {
  send_request(5);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kReq, 5}));
  send_rejection(6);
  send_rejection(5, RejectReason::kTimeout, kGuid + 1);
  send_rejection(5, RejectReason::kTimeout, kGuid - 1);
  send_rejection(5, RejectReason::kConsumer);
  send_request(7);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kReq, 7})) << "none of them";
}

TEST_F(CoreConnectionsRelay, RepeatsTakeOnePlaceOfThoseThatAreKnown) {
  send_request(1);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kReq, 1}));
  constexpr uint32_t kMost = 256;
  // With those it would be forgotten, were each of them another one.
  for (uint32_t i = 0; i < kMost; ++i) {
    send_request(2);
    ASSERT_EQ(passed(), (Passed{cm::Attribute::kReq, 2}));
  }
  send_rejection(1);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kRej, 1}));
  for (uint32_t i = 0; i < kMost; ++i) {
    send_request(3 + i);
    ASSERT_EQ(passed(), (Passed{cm::Attribute::kReq, 3 + i}));
  }
  send_rejection(1);
  send_rejection(2 + kMost);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kRej, 2 + kMost})) << "the first one is forgotten";
}

TEST_F(CoreConnectionsRelay, RequestOfAStandardPeer_IsAnsweredAtTheStandardsPort) {  // annex A17
  send_request(5);
  pollfd one{other->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&one, 1, kSoonMs), 1);
  const auto relayed = other->receive();
  ASSERT_TRUE(relayed);
  EXPECT_FALSE(relayed->way.of_nupa);
  EXPECT_EQ(roce::kUdpPort, relayed->way.port);
}

}  // namespace
}  // namespace nupa::core
