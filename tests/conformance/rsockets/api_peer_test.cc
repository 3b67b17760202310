// SPDX-License-Identifier: Apache-2.0
/// How rsockets connect, message by message: connection data, refusals, attempts that end.
#include "api_peer.h"
#include "api_peer_fixture.h"

namespace rsockets = nupa::rsockets;
using namespace nupa::rsockets_test;

namespace {

constexpr uint32_t kVersionTwo = 2;

}  // namespace

// Connection data.

TEST_F(RsocketsPeer, ConnectionData_OfAListener_HasItsBuffersAndCredits) {
  set_listener(SOL_SOCKET, SO_RCVBUF, 8192);
  set_listener(SOL_RDMA, RDMA_RQSIZE, 100);
  set_listener(SOL_RDMA, RDMA_IOMAPSIZE, 5);
  connect_peer();
  EXPECT_EQ(peer.theirs().version, 1);
  EXPECT_EQ(peer.theirs().flags, 2) << "a table of mapped buffers, host byte order";
  EXPECT_EQ(peer.their_credits(), 100);
  EXPECT_EQ(peer.theirs().mappings, 5);
  EXPECT_EQ(peer.their_targets().length, 2u);
  EXPECT_EQ(peer.their_buffer().length, 8192u) << "half of twice what was set";
  EXPECT_EQ(peer.their_targets().addr, peer.their_buffer().addr + 2 * 8192) << "the tables follow the buffer";
  EXPECT_EQ(peer.their_targets().key, peer.their_buffer().key);
  for (const uint8_t byte : peer.theirs().reserved) EXPECT_EQ(byte, 0);
}

TEST_F(RsocketsPeer, ConnectionData_OfAClient_HasItsBuffersAndCredits) {
  const sockaddr_in to = peer.listen();
  client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  ASSERT_EQ(set_number(client, SOL_RDMA, RDMA_RQSIZE, 50), 0);
  EXPECT_EQ(error_of(rconnect(client, as_sockaddr(to), sizeof to)), EINPROGRESS);
  poll_one(client, POLLOUT, 0);
  ASSERT_TRUE(await([&] {
    poll_one(client, POLLOUT, 0);
    return peer.has_event();
  }));
  ASSERT_TRUE(peer.requested());
  EXPECT_EQ(peer.theirs().version, 1);
  EXPECT_EQ(peer.their_credits(), 50);
  EXPECT_EQ(peer.their_targets().length, 2u);
  ASSERT_TRUE(peer.accept());
  EXPECT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT);
  EXPECT_EQ(number_of(client, SOL_SOCKET, SO_ERROR), 0);
  EXPECT_EQ(peer.next_message(), encode(Op::kCredits, 50));
}

TEST_F(RsocketsPeer, Listener_OtherVersionOrEmptyTable_Rejects) {
  listen_now();
  for (int fault = 0; fault < 3; ++fault) {
    Peer strange;
    if (fault == 0) strange.mine.version = kVersionTwo;
    if (fault == 1) strange.mine.version = 0;
    if (fault == 2) strange.mine.targets.length = 0;
    EXPECT_EQ(strange.ask(address), RDMA_CM_EVENT_REJECTED) << fault;
  }
  ASSERT_TRUE(peer.connect(address)) << "the listener goes on";
  server = raccept(listener, nullptr, nullptr);
  EXPECT_GE(server, 0);
}

TEST_F(RsocketsPeer, Client_OtherVersionOrEmptyTable_Rejects) {
  for (int fault = 0; fault < 2; ++fault) {
    Peer strange;
    const sockaddr_in to = strange.listen();
    if (fault == 0) strange.mine.version = kVersionTwo;
    if (fault == 1) strange.mine.targets.length = 0;
    int error = 0;
    std::thread connecting([&] {
      const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
      error = error_of(rconnect(fd, as_sockaddr(to), sizeof to));
      rclose(fd);
    });
    const bool accepted = strange.requested() && strange.accept();
    connecting.join();
    EXPECT_TRUE(accepted);
    EXPECT_EQ(error, EOPNOTSUPP) << fault;
  }
}

TEST_F(RsocketsPeer, FirstMessage_GrantsTheSecondHalf) {
  set_listener(SOL_SOCKET, SO_RCVBUF, 10000);
  set_listener(SOL_RDMA, RDMA_RQSIZE, 100);
  connect_peer();
  EXPECT_EQ(*first_message, encode(Op::kCredits, 100));
  const RemoteBuffer& second = peer.memory().targets[1];
  EXPECT_EQ(second.addr, peer.their_buffer().addr + 10000);
  EXPECT_EQ(second.length, 10000u);
  EXPECT_EQ(second.key, peer.their_buffer().key);
  EXPECT_EQ(peer.memory().targets[0].addr, 0u) << "connection data were the first";
  progress();
  EXPECT_FALSE(peer.message_now().has_value());
}

TEST_F(RsocketsPeer, TargetTable_OfAnyLength_IsWrittenAsARing) {
  for (const uint32_t entries : {1u, 2u, 3u}) {
    Peer other;
    other.mine.targets.length = htobe32(entries);
    set_listener(SOL_SOCKET, SO_RCVBUF, 4096);
    listen_now();
    ASSERT_TRUE(other.connect(address));
    server = raccept(listener, nullptr, nullptr);
    ASSERT_EQ(other.next_message(), encode(Op::kCredits, 384));
    const uint64_t base = other.their_buffer().addr;
    for (uint32_t grant = 1; grant < 8; ++grant) {
      // The first half is of the connection data; each grant alternates between the halves.
      const RemoteBuffer& entry = other.memory().targets[grant % entries];
      ASSERT_EQ(entry.addr, base + grant % 2 * 4096) << entries << " entries, grant " << grant;
      ASSERT_EQ(entry.length, 4096u);
      std::memset(&other.memory().targets, 0, sizeof other.memory().targets);
      const std::string data(4096, static_cast<char>('a' + grant));
      ASSERT_EQ(other.send_data(data, (grant - 1) % 2 * 4096), IBV_WC_SUCCESS);
      std::string got(data.size(), ' ');
      ASSERT_EQ(rrecv(server, got.data(), got.size(), MSG_WAITALL), static_cast<ssize_t>(got.size()));
      EXPECT_EQ(got, data);
      ASSERT_TRUE(other.next_message().has_value());
    }
    rclose(server);
    server = -1;
  }
}

TEST_F(RsocketsPeer, TargetEntries_AreInThePeersByteOrder) {
  peer.mine.flags |= rsockets::kConnectBigEndian;
  peer.mine.targets.length = htobe32(Peer::kTargetEntries);
  set_listener(SOL_SOCKET, SO_RCVBUF, 10000);
  connect_peer();
  const RemoteBuffer second = rsockets::from_network(peer.memory().targets[1]);
  EXPECT_EQ(second.addr, peer.their_buffer().addr + 10000);
  EXPECT_EQ(second.length, 10000u);
  EXPECT_EQ(second.key, peer.their_buffer().key);
  char buffer[100];
  ASSERT_EQ(riomap(server, buffer, sizeof buffer, PROT_WRITE, 0, 700), 700);
  ASSERT_EQ(rsend(server, "x", 1, 0), 1);
  ASSERT_EQ(peer.next_message(), encode(Op::kMapping, 0));
  const RemoteMapping& mapping = peer.memory().mappings[0];
  EXPECT_EQ(be64toh(mapping.offset), 700u);
  EXPECT_EQ(rsockets::from_network(mapping.buffer).length, sizeof buffer);
}

// Connecting.

TEST_F(RsocketsPeer, Calls_WhileItConnects_ReportIt) {
  const sockaddr_in to = peer.listen();
  client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  EXPECT_EQ(error_of(rconnect(client, as_sockaddr(to), sizeof to)), EINPROGRESS);
  ASSERT_TRUE(await([&] {
    poll_one(client, POLLOUT, 0);
    return peer.has_event();
  }));
  ASSERT_TRUE(peer.requested());
  EXPECT_EQ(poll_one(client, POLLIN | POLLOUT, 0), 0);
  EXPECT_EQ(error_of(rconnect(client, as_sockaddr(to), sizeof to)), EALREADY);
  char c = 0;
  EXPECT_EQ(error_of(rsend(client, &c, 1, 0)), EAGAIN);
  EXPECT_EQ(error_of(rrecv(client, &c, 1, 0)), EAGAIN);
  EXPECT_EQ(number_of(client, SOL_SOCKET, SO_ERROR), 0);
  sockaddr_in name{};
  socklen_t length = sizeof name;
  EXPECT_EQ(error_of(rgetpeername(client, reinterpret_cast<sockaddr*>(&name), &length)), ENOTCONN);
  EXPECT_EQ(error_of(rlisten(client, 1)), EINVAL);
  EXPECT_EQ(error_of(rbind(client, as_sockaddr(loopback(0)), sizeof to)), EINVAL);
  EXPECT_EQ(set_number(client, SOL_RDMA, RDMA_SQSIZE, 20), EINVAL) << "the queue pair is made";
  ASSERT_TRUE(peer.accept());
  EXPECT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT);
  EXPECT_EQ(error_of(rconnect(client, as_sockaddr(to), sizeof to)), EISCONN);
  EXPECT_EQ(rgetpeername(client, reinterpret_cast<sockaddr*>(&name), &length), 0);
  EXPECT_EQ(name.sin_port, to.sin_port);
}

TEST_F(RsocketsPeer, Connect_Refused_ReportsItsErrorOnce) {
  const sockaddr_in to = peer.listen();
  client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  EXPECT_EQ(error_of(rconnect(client, as_sockaddr(to), sizeof to)), EINPROGRESS);
  ASSERT_TRUE(await([&] {
    poll_one(client, POLLOUT, 0);
    return peer.has_event();
  }));
  ASSERT_TRUE(peer.requested());
  peer.refuse();
  ASSERT_TRUE(await([&] { return poll_one(client, POLLOUT, 0) != 0; }));
  EXPECT_EQ(poll_one(client, POLLIN | POLLOUT, 0), POLLIN | POLLOUT | POLLERR | POLLHUP);
  EXPECT_EQ(number_of(client, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
  EXPECT_EQ(number_of(client, SOL_SOCKET, SO_ERROR), 0);
  EXPECT_EQ(error_of(rconnect(client, as_sockaddr(to), sizeof to)), ECONNABORTED);
  EXPECT_EQ(error_of(rshutdown(client, SHUT_RDWR)), 0);
}

TEST_F(RsocketsPeer, Shutdown_WhileItConnects_EndsTheAttempt) {
  const sockaddr_in to = peer.listen();
  client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  EXPECT_EQ(error_of(rconnect(client, as_sockaddr(to), sizeof to)), EINPROGRESS);
  ASSERT_TRUE(await([&] {
    poll_one(client, POLLOUT, 0);
    return peer.has_event();
  }));
  ASSERT_TRUE(peer.requested());
  EXPECT_EQ(rshutdown(client, SHUT_RDWR), 0);
  EXPECT_EQ(poll_one(client, POLLIN | POLLOUT, 0), POLLIN | POLLOUT | POLLERR | POLLHUP);
  EXPECT_EQ(number_of(client, SOL_SOCKET, SO_ERROR), ECONNRESET);
}

TEST_F(RsocketsPeer, Connect_SendTimeout_Fails) {
  const sockaddr_in to = peer.listen();
  client = rsocket(AF_INET, SOCK_STREAM, 0);
  const timeval limit{0, 20'000};
  ASSERT_EQ(rsetsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(error_of(rconnect(client, as_sockaddr(to), sizeof to)), EINPROGRESS);
  EXPECT_EQ(error_of(rconnect(client, as_sockaddr(to), sizeof to)), EALREADY);
  ASSERT_TRUE(peer.requested());
  ASSERT_TRUE(peer.accept());
  EXPECT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT);
}

TEST_F(RsocketsPeer, Connect_PeerRejects_IsRefused) {
  const sockaddr_in to = peer.listen();
  client = rsocket(AF_INET, SOCK_STREAM, 0);
  int error = 0;
  std::thread connecting([&] { error = error_of(rconnect(client, as_sockaddr(to), sizeof to)); });
  EXPECT_TRUE(peer.requested());
  peer.refuse();
  connecting.join();
  EXPECT_EQ(error, ECONNREFUSED);
  EXPECT_EQ(number_of(client, SOL_SOCKET, SO_ERROR), 0) << "rconnect reported it";
}

TEST_F(RsocketsPeer, Backlog_UnconfirmedConnections_AreCounted) {
  constexpr int kSmallestBacklog = 16;
  listen_now(1);
  std::vector<std::unique_ptr<Peer>> pending;
  for (int i = 0; i < kSmallestBacklog; ++i) {
    pending.push_back(std::make_unique<Peer>());
    ASSERT_EQ(pending.back()->ask(address), RDMA_CM_EVENT_CONNECT_RESPONSE) << i;
  }
  EXPECT_EQ(Peer().ask(address), RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0) << "none is confirmed";
  ASSERT_TRUE(pending[3]->confirm());
  EXPECT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
  EXPECT_EQ(Peer().ask(address), RDMA_CM_EVENT_REJECTED) << "it waits for raccept()";
  server = raccept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0);
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  auto next = std::make_unique<Peer>();
  ASSERT_EQ(next->ask(address), RDMA_CM_EVENT_CONNECT_RESPONSE);
  EXPECT_EQ(Peer().ask(address), RDMA_CM_EVENT_REJECTED);
  // One that is taken back leaves its place.
  EXPECT_EQ(next->reject(), 0);
  ASSERT_TRUE(await([&] { return Peer().ask(address) == RDMA_CM_EVENT_CONNECT_RESPONSE; }));
}
