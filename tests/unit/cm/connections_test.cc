// SPDX-License-Identifier: Apache-2.0
/// Connections within one process, and with a process that the test imitates.
#include <gtest/gtest.h>
#include <nupa/connection_manager.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include "../host/fixture.h"
#include "base/clock.h"
#include "cm/connections.h"
#include "connections_fixture.h"
#include "core/process.h"
#include "transport/roce/port/port.h"

namespace nupa::core {
namespace {

/// A slot that this process does not have: each process takes one at random.
uint32_t slot_of_another() { return (*Process::acquire())->slot() == 3077 ? 3078 : 3077; }

// One process.

TEST(CoreConnections, Open_SecondManagerOfAProcess_FailsWithEbusy) {
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

TEST(CoreConnections, Listen_Services_AreInTheTable) {
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

TEST(CoreConnections, Bind_TwoThreadsAtOnce_OnlyOneGetsTheService) {
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

TEST(CoreConnections, Connect_WithoutAListener_IsRejectedAfterTheWait) {
  const ChosenTransport memory("shm");
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
  EXPECT_EQ(EventKind::kRejected, event.what);
  EXPECT_EQ(1u, event.owner);
  EXPECT_EQ(static_cast<uint64_t>(RejectReason::kInvalidServiceId), event.detail);
  EXPECT_TRUE(party.sink.is_empty());
  party.manager->release(id);
}

TEST(CoreConnections, DatagramRequest_WithoutAService_IsAnsweredAfterTheWait) {
  const ChosenTransport memory("shm");
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
  EXPECT_EQ(EventKind::kDatagramReply, event.what);
  EXPECT_EQ(1u, event.owner);
  EXPECT_EQ(static_cast<uint64_t>(DatagramStatus::kUnsupported), event.detail);
  EXPECT_TRUE(party.sink.is_empty());
  party.manager->release(id);
}

TEST(CoreConnections, Connect_ListenerStartsInTime_GetsTheRequest) {
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, party.take(7, kIpTcp + 7011));
  ConnectionId id = 0;
  const int64_t before = base::now_ns();
  ASSERT_EQ(0, party.connect(1, kIpTcp + 7011, &id));
  ASSERT_EQ(0, party.manager->listen(7));
  const bool in_time = base::now_ns() - before < 100'000'000;
  const Event event = party.sink.next();
  EXPECT_TRUE(!in_time || event.what == EventKind::kRequest);
  if (event.what != EventKind::kRequest) return;
  EXPECT_EQ(7u, event.owner);
  EXPECT_EQ(0, party.manager->reject(event.id, RejectReason::kConsumer, {}));
  const Event rejected = party.sink.next();
  EXPECT_EQ(EventKind::kRejected, rejected.what);
  EXPECT_EQ(static_cast<uint64_t>(RejectReason::kConsumer), rejected.detail) << "another reason is told at once";
  party.manager->release(id);
  party.manager->release(event.id);
}

TEST(CoreConnections, Release_WaitingRequest_IsNotSentAgain) {
  const ChosenTransport memory("shm");  // the refusal comes at once
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, party.take(7, kIpTcp + 7012));
  ConnectionId id = 0;
  ASSERT_EQ(0, party.connect(1, kIpTcp + 7012, &id));
  party.manager->release(id);
  ASSERT_EQ(0, party.manager->listen(7));
  ASSERT_EQ(0, party.connect(2, kIpTcp + 7012, &id));
  const Event event = party.sink.next();
  EXPECT_EQ(EventKind::kRequest, event.what) << "of the second one";
  // sleep: the first question would come within that time, were it asked again
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_TRUE(party.sink.is_empty());
  party.manager->release(event.id);
  party.manager->release(id);
}

TEST(CoreConnections, Release_EarlierRequest_LaterOneIsSentAgain) {
  const ChosenTransport memory("shm");
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
  EXPECT_EQ(EventKind::kRejected, event.what) << "until it has been asked for long enough";
  EXPECT_EQ(2u, event.owner);
  party.manager->release(ids[1]);
}

TEST(CoreConnections, Connect_OnTheServiceThread_WaitsForNoProcess) {
  const host::test::Folder folder;
  const ChosenTransport memory("shm");
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

TEST(CoreConnections, ManagerIsDestroyed_ItsRequestsAreNotSentAgain) {
  const host::test::Folder folder;
  const ChosenTransport memory("shm");
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
  EXPECT_TRUE(party->sink.is_empty());
}

TEST(CoreConnections, Connect_ToItsOwnProcess_ArrivesBeforeTheCallReturns) {
  const ChosenTransport memory("shm");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, party.take(7, kIpTcp + 7013));
  ASSERT_EQ(0, party.manager->listen(7));
  ConnectionId active = 0;
  ASSERT_EQ(0, party.connect(1, kIpTcp + 7013, &active));
  ASSERT_FALSE(party.sink.is_empty());
  const Event request = party.sink.next();
  ASSERT_EQ(EventKind::kRequest, request.what);
  ASSERT_EQ(0, party.manager->accept(request.id, {}));
  ASSERT_FALSE(party.sink.is_empty());
  EXPECT_EQ(EventKind::kReply, party.sink.next().what);
  ASSERT_EQ(0, party.manager->establish(active));
  ASSERT_FALSE(party.sink.is_empty());
  EXPECT_EQ(EventKind::kEstablished, party.sink.next().what);
  ASSERT_EQ(0, party.manager->disconnect(active));
  for (int end = 0; end < 2; ++end) {  // by the DREQ, and by its answer
    ASSERT_FALSE(party.sink.is_empty()) << end;
    EXPECT_EQ(EventKind::kDisconnected, party.sink.next().what);
  }
  party.manager->release(active);
  party.manager->release(request.id);
}

TEST(CoreConnections, AfterNotifications_IsCalledWithTheManagerUnlocked) {
  const ChosenTransport memory("shm");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, party.take(7, kIpTcp + 7014));
  ASSERT_EQ(0, party.manager->listen(7));
  int calls = 0;
  party.sink.after = [&] {
    ++calls;
    EXPECT_FALSE(party.sink.is_empty()) << "the notification comes first";
    std::thread([&] { party.manager->release(12345); }).join();
  };
  ConnectionId active = 0;
  ASSERT_EQ(0, party.connect(1, kIpTcp + 7014, &active));
  EXPECT_EQ(calls, 1);
  party.manager->release(12345);
  EXPECT_EQ(calls, 1) << "nothing was told";
}

TEST(CoreConnections, AfterNotifications_IsRunning_DestructionWaitsForIt) {
  const ChosenTransport memory("shm");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, party.take(7, kIpTcp + 7015));
  ASSERT_EQ(0, party.manager->listen(7));
  std::barrier inside(2);
  std::barrier leave(2);
  std::atomic<bool> left{false};
  party.sink.after = [&] {
    inside.arrive_and_wait();
    leave.arrive_and_wait();
    left = true;
  };
  const std::shared_ptr<ConnectionManager> manager = party.manager;
  ConnectionId active = 0;
  std::thread caller([&] { EXPECT_EQ(0, party.connect(1, kIpTcp + 7015, &active)); });
  inside.arrive_and_wait();
  cm::Connections& connections = *cm::Connections::of(**Process::acquire());
  std::thread detaches([&] {
    connections.detach();
    EXPECT_TRUE(left);
  });
  // Another sink is let in when the first one is detached, although the other thread still waits.
  Sink second;
  std::shared_ptr<ConnectionManager> next;
  while (next == nullptr)
    if (auto opened = ConnectionManager::open(second)) next = std::move(*opened);
  leave.arrive_and_wait();
  caller.join();
  detaches.join();
}

TEST(CoreConnections, Rejection_OtherThanNoService_IsReportedAtOnce) {
  const ChosenTransport memory("shm");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, party.take(7, kIpTcp + 7015));
  ASSERT_EQ(0, party.manager->listen(7));
  ConnectionId active = 0;
  ASSERT_EQ(0, party.connect(1, kIpTcp + 7015, &active));
  ASSERT_FALSE(party.sink.is_empty());
  const Event request = party.sink.next();
  ASSERT_EQ(EventKind::kRequest, request.what);
  ASSERT_EQ(0, party.manager->reject(request.id, RejectReason::kConsumer, {}));
  ASSERT_FALSE(party.sink.is_empty()) << "the listener is not asked again";
  const Event refusal = party.sink.next();
  EXPECT_EQ(EventKind::kRejected, refusal.what);
  EXPECT_EQ(static_cast<uint64_t>(RejectReason::kConsumer), refusal.detail);
  party.manager->release(active);
  party.manager->release(request.id);
}

TEST(CoreConnections, Bind_Ipv4AndIpv6_ConflictWithinTheirFamilyOnly) {
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
    ASSERT_TRUE(process.send_hello(sockets_.back().get()));
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
  const ChosenTransport memory_{"shm"};
  Party party_;
  std::shared_ptr<Process> own_;
  const uint32_t slot_ = slot_of_another();
  host::test::FakeProcess process_{slot_};
  std::vector<base::UniqueFd> sockets_;
  uint64_t owner_ = 0;
};

TEST_F(CoreConnectionsPlayed, Connect_MatchingListener_GetsTheRequest) {
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

TEST_F(CoreConnectionsPlayed, Message_ForADeadProcess_DoesNotReachTheNextInItsSlot) {
  listens(kIpTcp + 7062, nullptr);
  ConnectionId id = 0;
  ASSERT_EQ(0, party_.connect(1, kIpTcp + 7062, &id));
  host::test::FakeProcess next(slot_, process_.header().instance + 1);
  enter(next);
  ASSERT_TRUE(host::test::soon([&] {
    const host::PeerRef now = own_->node().find(slot_);
    return now != nullptr && now->instance() == next.header().instance;
  }));
  party_.manager->release(id);  // sends a message to the peer
  const auto nothing = host::receive_message(sockets_[1].get());
  ASSERT_FALSE(nothing);
  EXPECT_EQ(EAGAIN, nothing.error().code());
}

TEST_F(CoreConnectionsPlayed, LastProcessWithTheAddressEnds_ItsRejectionIsReported) {
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
      EXPECT_EQ(EventKind::kRejected, event.what);
      EXPECT_EQ(static_cast<uint64_t>(RejectReason::kInvalidServiceId), event.detail);
    } else {
      EXPECT_EQ(2u, event.owner);
      EXPECT_EQ(EventKind::kDatagramReply, event.what);
      EXPECT_EQ(static_cast<uint64_t>(DatagramStatus::kUnsupported), event.detail);
    }
  }
  EXPECT_TRUE(party_.sink.is_empty());
  EXPECT_EQ(nullptr, own_->node().find(slot_));
  for (const ConnectionId id : ids) party_.manager->release(id);
}

}  // namespace
}  // namespace nupa::core
