// SPDX-License-Identifier: Apache-2.0
/// Connections between processes of this host, and how the end of a process ends them.
#include <gtest/gtest.h>
#include <nupa/connection_manager.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <thread>

#include "../host/fixture.h"
#include "cm/connections.h"
#include "connections_fixture.h"
#include "core/process.h"
#include "transport/roce/port/port.h"

namespace nupa::core {
namespace {

TEST(CoreConnectionsProcesses, Bind_ServiceOfAnotherProcess_FailsInEitherOrder) {
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
      self.send_word(error);
      if (self.receive_word() != 1) _exit(2);
      party.manager->unbind(1);
      self.send_word(0);
    }
  });
  Party party;
  ASSERT_NE(nullptr, party.manager);
  for (uint32_t i = 0; i < std::size(kCases); ++i) {
    const uint64_t service = kIpTcp + 7020 + i;
    ASSERT_EQ(0, other.receive_word()) << i;
    const Gid address = loopback(kCases[i].second_address);
    const Gid* const at = kCases[i].second_any ? nullptr : &address;
    EXPECT_EQ(kCases[i].error, party.take(5, service, at)) << i;
    EXPECT_TRUE(kCases[i].error == 0 || party.manager->listen(5) == EINVAL) << "it has nothing";
    party.manager->unbind(5);
    other.send_word(1);
    ASSERT_EQ(0, other.receive_word());
    EXPECT_EQ(0, party.take(5, service, at)) << "the other one has given it back";
    party.manager->unbind(5);
  }
  EXPECT_EQ(0, other.wait());
}

TEST(CoreConnectionsProcesses, Bind_ServiceAtAnIpv4Address_LeavesAllIpv6AddressesFree) {
  constexpr uint64_t kService = kIpTcp + 7031;
  Other other([](Other& self) {
    Party party;
    const Gid address = loopback();
    self.send_word(party.manager == nullptr ? 1 : party.take(1, kService, &address));
    self.receive_word();
  });
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, other.receive_word());
  EXPECT_EQ(EADDRINUSE, party.take(5, kService));
  EXPECT_EQ(EADDRINUSE, party.take(5, kService, nullptr, [](ListenerAddress& at) { at.only_v4 = true; }));
  EXPECT_EQ(0, party.take(5, kService, nullptr, [](ListenerAddress& at) { at.only_v6 = true; }));
  other.send_word(1);
  EXPECT_EQ(0, other.wait());
}

TEST(CoreConnectionsProcesses, Bind_ServiceOfAProcessThatDied_Succeeds) {
  Other other([](Other& self) {
    Party party;
    self.send_word(party.manager == nullptr ? 1 : party.take(1, kIpTcp + 7030));
    if (fork() == 0) {  // a child holds no name whose owner is gone
      alarm(kSoonMs / 1000);
      self.send_word(7);
      for (;;) pause();
    }
    self.receive_word();
  });
  Party party;
  ASSERT_NE(nullptr, party.manager);
  ASSERT_EQ(0, other.receive_word());
  ASSERT_EQ(7, other.receive_word());
  EXPECT_EQ(EADDRINUSE, party.take(5, kIpTcp + 7030));
  other.kill_it();
  EXPECT_EQ(1000 + SIGKILL, other.wait());
  EXPECT_EQ(0, party.take(5, kIpTcp + 7030));
}

TEST(CoreConnectionsProcesses, Fork_LockHeldInTheParent_ChildDoesNotWaitForIt) {
  const ChosenTransport memory("shm");
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
    self.send_word(1);
    const Event request = party->sink.next();
    if (request.what != EventKind::kRequest || party->manager->accept(request.id, {}) != 0) _exit(2);
    if (party->sink.next().what != EventKind::kEstablished) _exit(3);
    self.send_word(2);
    more(self, *party, request.id);
  };
}

class CoreConnectionsPair : public ::testing::Test {
 protected:
  /// Connects to the other process; `party_` is this one.
  void connect(Other& other, uint64_t service) {
    ASSERT_NE(nullptr, party().manager);
    ASSERT_EQ(1, other.receive_word());
    ASSERT_EQ(0, party().connect(1, service, &id_));
    ASSERT_EQ(EventKind::kReply, party().sink.next().what);
    ASSERT_EQ(0, party().manager->establish(id_));
    ASSERT_EQ(2, other.receive_word());
  }
  Party& party() {
    if (party_ == nullptr) party_ = std::make_unique<Party>();
    return *party_;
  }
  void expect_disconnected(bool silent) {
    const Event event = party().sink.next();
    EXPECT_EQ(EventKind::kDisconnected, event.what);
    EXPECT_EQ(1u, event.owner);
    EXPECT_EQ(silent ? 1u : 0u, event.detail);
  }
  std::unique_ptr<Party> party_;
  ConnectionId id_ = 0;
};

TEST_F(CoreConnectionsPair, ProcessExits_ItsConnectionsEnd) {
  Other other(accepting(kIpTcp + 7040, [](Other& self, Party&, ConnectionId) {
    self.receive_word();
    exit(0);
  }));
  connect(other, kIpTcp + 7040);
  other.send_word(1);
  expect_disconnected(false);
  EXPECT_EQ(0, other.wait());
}

TEST_F(CoreConnectionsPair, ProcessExitsInASignalHandlerWithTheManagersLock_ItsConnectionsEnd) {
  Other other(accepting(kIpTcp + 7046, [](Other& self, Party& party, ConnectionId) {
    self.receive_word();
    signal(SIGTERM, [](int) { exit(3); });
    party.sink.at_request = [] { raise(SIGTERM); };
    ConnectionId id = 0;
    if (party.take(2, kIpTcp + 7047) != 0 || party.manager->listen(2) != 0) _exit(4);
    party.connect(3, kIpTcp + 7047, &id);
  }));
  connect(other, kIpTcp + 7046);
  other.send_word(1);
  EXPECT_EQ(3, other.wait()) << "its alarm ended it";
  EXPECT_EQ(EventKind::kDisconnected, party().sink.next().what);
}

TEST_F(CoreConnectionsPair, ManagerIsDestroyed_ItsConnectionsEnd) {
  Other other(accepting(kIpTcp + 7044, [](Other& self, Party& party, ConnectionId) {
    self.send_word(party.sink.next().what == EventKind::kDisconnected ? 5 : 6);
  }));
  connect(other, kIpTcp + 7044);
  const auto own = *Process::acquire();  // the process goes on
  party().manager.reset();
  EXPECT_EQ(5, other.receive_word());
}

TEST_F(CoreConnectionsPair, ProcessIsKilled_ItsConnectionsEndWithoutAMessage) {
  Other other(accepting(kIpTcp + 7041, [](Other& self, Party&, ConnectionId) { self.receive_word(); }));
  connect(other, kIpTcp + 7041);
  other.kill_it();
  expect_disconnected(true);
}

TEST_F(CoreConnectionsPair, ProcessIsKilled_ItsChildHoldsNoConnection) {
  Other other(accepting(kIpTcp + 7042, [](Other& self, Party&, ConnectionId) {
    if (fork() == 0) {
      alarm(kSoonMs / 1000);
      self.send_word(3);
      for (;;) pause();
    }
    self.receive_word();
  }));
  connect(other, kIpTcp + 7042);
  ASSERT_EQ(3, other.receive_word());
  other.kill_it();
  expect_disconnected(true);
}

TEST_F(CoreConnectionsPair, ChildExits_ConnectionsOfItsParentStay) {
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
      if (waitpid(child, &status, 0) != child || status != 0) self.send_word(WEXITSTATUS(status) + 1000);
    }
    self.send_word(4);
    self.receive_word();
    party.manager->disconnect(id);
    self.receive_word();
  }));
  connect(other, kIpTcp + 7043);
  EXPECT_EQ(4, other.receive_word());
  EXPECT_TRUE(party().sink.is_empty());
  EXPECT_EQ(EADDRINUSE, party().take(5, kIpTcp + 7043)) << "the parent still has its service";
  other.send_word(1);
  expect_disconnected(false);
}

TEST_F(CoreConnectionsPair, ChildUnbinds_ServiceOfItsParentStaysReachable) {
  const ChosenTransport memory("shm");  // packets would find the listener without the table
  Other other([](Other& self) {
    Party party;
    if (party.manager == nullptr || party.take(1, kIpTcp + 7045) != 0 || party.manager->listen(1) != 0) _exit(1);
    EXPECT_EQ(0, host::test::in_child([&] {
                alarm(kSoonMs / 1000);
                party.manager->unbind(1);
                return 0;
              }));
    self.send_word(::testing::Test::HasFailure() ? 0 : 1);
    const Event request = party.sink.next();
    if (request.what == EventKind::kRequest) party.manager->reject(request.id, RejectReason::kConsumer, {});
    self.receive_word();
  });
  ASSERT_NE(nullptr, party().manager);
  ASSERT_EQ(1, other.receive_word());
  ASSERT_EQ(0, party().connect(1, kIpTcp + 7045, &id_));
  const Event answer = party().sink.next();
  EXPECT_EQ(EventKind::kRejected, answer.what);
  EXPECT_EQ(static_cast<uint64_t>(RejectReason::kConsumer), answer.detail) << "the parent has been asked";
}

}  // namespace
}  // namespace nupa::core
