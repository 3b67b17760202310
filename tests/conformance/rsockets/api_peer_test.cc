// SPDX-License-Identifier: Apache-2.0
// What an rsocket sends, message by message, and what it does with messages that no rsocket sends.
#include <netinet/tcp.h>

#include <atomic>
#include <csignal>

#include "api_peer.h"

namespace rsockets = nupa::rsockets;
using namespace nupa::rsockets_test;

namespace {

constexpr uint32_t kVersionTwo = 2;

class RsocketsPeer : public RsocketsApi {
 protected:
  /// The rsocket `server` with the peer as its client; the first message, which grants the second half, is taken.
  void connect_peer(int rnr_retries = 7) {
    listen_now();
    ASSERT_TRUE(peer.connect(address, rnr_retries)) << std::strerror(errno);
    server = raccept(listener, nullptr, nullptr);
    ASSERT_GE(server, 0) << std::strerror(errno);
    first_message = peer.next_message();
    ASSERT_TRUE(first_message.has_value());
  }
  void set_listener(int level, int name, int value) { ASSERT_EQ(set_number(listener, level, name, value), 0); }
  /// Has the rsocket look at what came.
  void progress() { poll_one(server, 0, 0); }
  /// Until it has an error or end to report.
  int wait_for_end() { return poll_one(server, 0, kSoonMs); }
  int make_nonblocking(int fd) { return rfcntl(fd, F_SETFL, O_NONBLOCK); }
  int receive_error() {
    char c;
    return error_of(rrecv(server, &c, 1, 0));
  }

  Peer peer;
  std::optional<uint32_t> first_message;
};

}  // namespace

// Connection data.

TEST_F(RsocketsPeer, ConnectionDataOfAListenerNamesItsBuffersAndCredits) {
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

TEST_F(RsocketsPeer, ConnectionDataOfAClientAreTheSame) {
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

TEST_F(RsocketsPeer, ListenerRejectsOtherVersionsAndEmptyTables) {
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

TEST_F(RsocketsPeer, ClientRejectsOtherVersionsAndEmptyTables) {
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

TEST_F(RsocketsPeer, FirstMessageGrantsTheSecondHalf) {
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

TEST_F(RsocketsPeer, TargetTableIsWrittenRoundAndRoundAsLongAsItIs) {
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

TEST_F(RsocketsPeer, TargetEntriesAreInThePeersByteOrder) {
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

// Credits.

TEST_F(RsocketsPeer, CreditsComeWhenHalfOfThemAreUsedAndCountFromTheStart) {
  set_listener(SOL_RDMA, RDMA_RQSIZE, 32);
  connect_peer();
  for (uint32_t round = 1; round <= 3; ++round) {
    for (uint32_t i = 0; i < 15; ++i) {
      ASSERT_EQ(peer.send_data("x", (round - 1) * 16 + i), IBV_WC_SUCCESS);
      progress();
    }
    // These take no credit.
    ASSERT_EQ(peer.send(encode(Control::kKeepalive)), IBV_WC_SUCCESS);
    ASSERT_EQ(peer.send(encode(Op::kCredits, 400)), IBV_WC_SUCCESS);
    progress();
    EXPECT_FALSE(peer.message_now().has_value()) << "15 of 32 used";
    ASSERT_EQ(peer.send(encode(Op::kMapping, 0)), IBV_WC_SUCCESS);
    progress();
    EXPECT_EQ(peer.next_message(), encode(Op::kCredits, 16 * round + 32));
    EXPECT_FALSE(peer.message_now().has_value());
  }
}

TEST_F(RsocketsPeer, KeepalivesFindASilentPeerWhereTheyAreAskedFor) {
  peer.retries = 0;
  connect_peer();
  peer.fall_silent();
  ASSERT_EQ(set_number(server, IPPROTO_TCP, TCP_KEEPIDLE, 1), 0);
  EXPECT_EQ(poll_one(server, POLLIN, 2500), 0) << "their time alone is no wish for them";
  ASSERT_EQ(set_number(server, SOL_SOCKET, SO_KEEPALIVE, 1), 0);
  EXPECT_NE(poll_one(server, POLLIN, kSoonMs) & (POLLERR | POLLHUP), 0);
}

TEST_F(RsocketsPeer, EachCreditIsAReceiveThatIsPosted) {
  constexpr uint32_t kRequests = 18;  // half of it is no multiple of the receives that are posted together
  set_listener(SOL_RDMA, RDMA_RQSIZE, kRequests);
  constexpr int kNoRetry = 0;
  connect_peer(kNoRetry);
  uint16_t allowed = peer.their_credits();
  ASSERT_EQ(allowed, kRequests);
  uint16_t sent = 0;
  const auto send_one = [&] {
    ASSERT_EQ(peer.send_data("x", sent), IBV_WC_SUCCESS) << "message " << sent << " of " << allowed;
    ++sent;
  };
  for (int round = 0; round < 12; ++round) {
    // The rsocket looks after each message until it gives credits, then not before all of them are used.
    const uint16_t before = allowed;
    while (allowed == before) {
      ASSERT_NE(sent, allowed);
      ASSERT_NO_FATAL_FAILURE(send_one());
      progress();
      if (const auto message = peer.message_now()) allowed = static_cast<uint16_t>(rsockets::value_of(*message));
    }
    while (sent != allowed) ASSERT_NO_FATAL_FAILURE(send_one());
    progress();
    const auto message = peer.next_message();
    ASSERT_TRUE(message.has_value());
    allowed = static_cast<uint16_t>(rsockets::value_of(*message));
  }
}

TEST_F(RsocketsPeer, SendsAsManyMessagesAsThePeerHasCredits) {
  peer.mine.credits = htobe16(3);
  connect_peer();
  ASSERT_EQ(make_nonblocking(server), 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(rsend(server, "abc" + i, 1, 0), 1) << i;
    EXPECT_EQ(peer.next_message(), encode(Op::kData, 1));
  }
  EXPECT_EQ(error_of(rsend(server, "d", 1, 0)), EAGAIN);
  EXPECT_EQ(poll_one(server, POLLOUT, 0), 0);
  ASSERT_EQ(peer.send(encode(Op::kCredits, 5)), IBV_WC_SUCCESS);
  EXPECT_EQ(poll_one(server, POLLOUT, kSoonMs), POLLOUT);
  ASSERT_EQ(rsend(server, "d", 1, 0), 1);
  ASSERT_EQ(rsend(server, "e", 1, 0), 1);
  EXPECT_EQ(error_of(rsend(server, "f", 1, 0)), EAGAIN);
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 1));
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 1));
  EXPECT_FALSE(peer.message_now().has_value());
  EXPECT_EQ(std::string(peer.memory().data, 5), "abcde");
}

TEST_F(RsocketsPeer, SendsAsMuchAsTheTargetBufferHoldsThenIntoTheNext) {
  peer.mine.first.length = htobe32(10);
  connect_peer();
  ASSERT_EQ(make_nonblocking(server), 0);
  ASSERT_EQ(rsend(server, "0123456789abcdefghijklmno", 25, 0), 10) << "a part";
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 10));
  EXPECT_EQ(error_of(rsend(server, "abc", 3, 0)), EAGAIN);
  EXPECT_EQ(peer.memory().data[10], 0);
  ASSERT_EQ(peer.write_target(1, {peer.data_addr() + 1000, peer.key(), 3}), IBV_WC_SUCCESS);
  ASSERT_EQ(poll_one(server, POLLOUT, kSoonMs), POLLOUT);
  ASSERT_EQ(rsend(server, "abcdefgh", 8, 0), 3);
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 3));
  EXPECT_EQ(std::string(peer.memory().data + 1000, 4), std::string("abc\0", 4));
  EXPECT_EQ(error_of(rsend(server, "d", 1, 0)), EAGAIN) << "an entry is used once";
  ASSERT_EQ(peer.write_target(0, {peer.data_addr() + 2000, peer.key(), 8}), IBV_WC_SUCCESS);
  ASSERT_EQ(poll_one(server, POLLOUT, kSoonMs), POLLOUT);
  ASSERT_EQ(rsend(server, "defg", 4, 0), 4);
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 4));
  EXPECT_EQ(std::string(peer.memory().data + 2000, 4), "defg");
}

TEST_F(RsocketsPeer, ALongSendBeginsWithShortMessages) {
  connect_peer();
  std::string data(300'000, ' ');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 >> 3);
  ASSERT_EQ(rsend(server, data.data(), data.size(), 0), static_cast<ssize_t>(data.size()));
  uint32_t sum = 0;
  uint32_t longest = 2048;
  while (sum < data.size()) {
    const auto message = peer.next_message();
    ASSERT_TRUE(message.has_value());
    ASSERT_EQ(rsockets::op_of(*message), Op::kData);
    const uint32_t length = rsockets::value_of(*message);
    EXPECT_LE(length, longest);
    if (sum == 0) {
      EXPECT_EQ(length, 2048u);
    }
    longest = std::min(2 * longest, 65536u);
    sum += length;
  }
  EXPECT_EQ(sum, data.size());
  EXPECT_EQ(std::memcmp(peer.memory().data, data.data(), data.size()), 0);
}

TEST_F(RsocketsPeer, AMessageIsNoLongerThanTheSendBuffer) {
  constexpr uint32_t kSendBuffer = 4096;
  set_listener(SOL_SOCKET, SO_SNDBUF, kSendBuffer / 2);
  connect_peer();
  ASSERT_EQ(number_of(server, SOL_SOCKET, SO_SNDBUF), static_cast<int>(kSendBuffer));
  std::string data(3 * kSendBuffer, ' ');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 >> 3);
  ASSERT_EQ(rsend(server, data.data(), data.size(), 0), static_cast<ssize_t>(data.size()));
  uint32_t sum = 0;
  while (sum < data.size()) {
    const auto message = peer.next_message();
    ASSERT_TRUE(message.has_value());
    EXPECT_LE(rsockets::value_of(*message), kSendBuffer);
    sum += rsockets::value_of(*message);
  }
  EXPECT_EQ(std::memcmp(peer.memory().data, data.data(), data.size()), 0);
}

TEST_F(RsocketsPeer, MessagesOfNothingAreNotSent) {
  connect_peer();
  EXPECT_EQ(rsend(server, "", 0, 0), 0);
  EXPECT_EQ(rwritev(server, nullptr, 0), 0);
  ASSERT_EQ(rsend(server, "x", 1, 0), 1);
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 1));
}

// What no rsocket sends.

TEST_F(RsocketsPeer, MoreDataThanWasGrantedBreaksTheConnection) {
  set_listener(SOL_SOCKET, SO_RCVBUF, 4096);
  connect_peer();
  ASSERT_EQ(peer.send(encode(Op::kData, 8192)), IBV_WC_SUCCESS);
  progress();
  EXPECT_EQ(poll_one(server, POLLIN, kSoonMs), POLLIN) << "as much as was granted is good";
  ASSERT_EQ(peer.send(encode(Op::kData, 1)), IBV_WC_SUCCESS);
  char room[8192];
  EXPECT_EQ(wait_for_end(), POLLERR | POLLHUP);
  EXPECT_EQ(rrecv(server, room, sizeof room, MSG_WAITALL), 8192) << "what came before is read";
  EXPECT_EQ(receive_error(), EPROTO);
  EXPECT_EQ(rrecv(server, room, sizeof room, 0), 0) << "reported once";
}

TEST_F(RsocketsPeer, UnknownOperationsBreakTheConnection) {
  for (const uint32_t op : {1u, 2u, 3u, 5u}) {
    Peer other;
    listen_now();
    ASSERT_TRUE(other.connect(address));
    server = raccept(listener, nullptr, nullptr);
    ASSERT_EQ(other.send(op << 29 | 1), IBV_WC_SUCCESS);
    EXPECT_NE(wait_for_end() & POLLERR, 0) << op;
    EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), EPROTO) << op;
    rclose(server);
    server = -1;
  }
}

TEST_F(RsocketsPeer, UnknownControlMessagesAreIgnored) {
  connect_peer();
  for (const uint32_t value : {1u, 3u, 77u}) {
    ASSERT_EQ(peer.send(encode(Op::kControl, value)), IBV_WC_SUCCESS);
  }
  ASSERT_EQ(peer.send_data("x"), IBV_WC_SUCCESS);
  EXPECT_EQ(poll_one(server, POLLIN | POLLRDHUP, kSoonMs), POLLIN);
  char c;
  EXPECT_EQ(rrecv(server, &c, 1, 0), 1);
  EXPECT_EQ(poll_one(server, POLLIN | POLLRDHUP, 0), 0);
}

TEST_F(RsocketsPeer, ThePeersKeyEndsBeforeTheMemoryThatTheRsocketSendsFrom) {
  constexpr uint64_t kPage = 4096;
  connect_peer();
  const RemoteBuffer tables = peer.their_targets();
  const uint64_t tables_end = tables.addr + tables.length * sizeof(RemoteBuffer) +
                              rsockets::scale_up(peer.theirs().mappings) * sizeof(RemoteMapping);
  const uint64_t send_buffer = (tables_end + kPage - 1) / kPage * kPage;
  EXPECT_EQ(peer.write("x", 1, send_buffer - 1, tables.key), IBV_WC_SUCCESS) << "the rest of the tables' page";
  EXPECT_EQ(peer.write("x", 1, send_buffer, tables.key), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RsocketsPeer, AKeyThatThePeerDoesNotHaveResetsTheConnection) {
  peer.mine.first.key = htobe32(0x5a5a5a5a);
  connect_peer();
  EXPECT_EQ(rsend(server, "x", 1, 0), 1);
  // A failed request says so whether or not it asked for a completion.
  EXPECT_NE(wait_for_end() & POLLERR, 0);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), ECONNRESET);
  EXPECT_EQ(error_of(rsend(server, "x", 1, 0)), EPIPE);
}

// Ends.

TEST_F(RsocketsPeer, ShutdownForWritingIsOneMessage) {
  connect_peer();
  ASSERT_EQ(rshutdown(server, SHUT_RD), 0);
  EXPECT_FALSE(peer.message_now().has_value()) << "the peer need not know";
  rclose(server);
  server = -1;
  EXPECT_EQ(peer.next_message(), encode(Control::kDisconnect));

  Peer other;
  ASSERT_TRUE(other.connect(address));
  server = raccept(listener, nullptr, nullptr);
  ASSERT_TRUE(other.next_message().has_value());
  ASSERT_EQ(rshutdown(server, SHUT_WR), 0);
  EXPECT_EQ(other.next_message(), encode(Control::kShutdown));
  ASSERT_EQ(rshutdown(server, SHUT_WR), 0);
  progress();
  EXPECT_FALSE(other.message_now().has_value()) << "once";
  ASSERT_EQ(rshutdown(server, SHUT_RD), 0);
  EXPECT_EQ(other.next_message(), encode(Control::kDisconnect)) << "now both directions";
}

TEST_F(RsocketsPeer, ShutdownAfterThePeersEndsTheConnection) {
  for (const bool peer_first : {true, false}) {
    Peer other;
    listen_now();
    ASSERT_TRUE(other.connect(address));
    server = raccept(listener, nullptr, nullptr);
    ASSERT_TRUE(other.next_message().has_value());
    if (!peer_first) {
      ASSERT_EQ(rshutdown(server, SHUT_WR), 0);
      EXPECT_EQ(other.next_message(), encode(Control::kShutdown));
    }
    ASSERT_EQ(other.send(encode(Control::kShutdown)), IBV_WC_SUCCESS);
    ASSERT_TRUE(await([&] { return (poll_one(server, POLLRDHUP, 0) & POLLRDHUP) != 0; }));
    if (peer_first) {
      EXPECT_EQ(poll_one(server, POLLRDHUP | POLLOUT, 0), POLLRDHUP | POLLOUT) << "it may still send";
      ASSERT_EQ(rsend(server, "x", 1, 0), 1);
      EXPECT_EQ(other.next_message(), encode(Op::kData, 1));
      ASSERT_EQ(rshutdown(server, SHUT_WR), 0);
      EXPECT_EQ(other.next_message(), encode(Control::kDisconnect));
    }
    EXPECT_NE(poll_one(server, POLLIN, 0) & POLLHUP, 0);
    EXPECT_EQ(receive_error(), 0);
    EXPECT_EQ(rclose(server), 0);
    server = -1;
    EXPECT_EQ(other.next_event(), RDMA_CM_EVENT_DISCONNECTED);
    if (!peer_first) {
      EXPECT_FALSE(other.message_now().has_value()) << "both have said their end";
    }
  }
}

TEST_F(RsocketsPeer, ADisconnectMessageEndsBothDirections) {
  connect_peer();
  ASSERT_EQ(peer.send_data("last"), IBV_WC_SUCCESS);
  ASSERT_EQ(peer.send(encode(Control::kDisconnect)), IBV_WC_SUCCESS);
  EXPECT_EQ(wait_for_end(), POLLHUP);
  EXPECT_EQ(poll_one(server, POLLIN, 0), POLLIN) << "data first";
  EXPECT_EQ(error_of(rsend(server, "x", 1, 0)), EPIPE);
  EXPECT_EQ(read_all(server), "last");
  EXPECT_EQ(poll_one(server, POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), 0);
}

TEST_F(RsocketsPeer, APeerThatLeavesWithoutAWordResetsTheConnection) {
  connect_peer();
  ASSERT_EQ(peer.send_data("last"), IBV_WC_SUCCESS);
  peer.disconnect();
  EXPECT_EQ(wait_for_end(), POLLERR | POLLHUP);
  EXPECT_EQ(poll_one(server, POLLOUT, 0), POLLOUT | POLLERR | POLLHUP);
  char room[8];
  EXPECT_EQ(rrecv(server, room, sizeof room, 0), 4) << "what came before is read";
  EXPECT_EQ(receive_error(), ECONNRESET);
  EXPECT_EQ(rrecv(server, room, sizeof room, 0), 0) << "reported once";
  EXPECT_EQ(poll_one(server, POLLIN, 0), POLLIN | POLLHUP);
  EXPECT_EQ(error_of(rsend(server, "x", 1, 0)), EPIPE);
}

TEST_F(RsocketsPeer, APeerThatLeavesWithoutAWordAfterThisSidesShutdownResetsTheConnection) {
  connect_peer();
  ASSERT_EQ(rshutdown(server, SHUT_WR), 0);
  ASSERT_EQ(peer.next_message(), encode(Control::kShutdown));
  ASSERT_EQ(peer.send_data("part"), IBV_WC_SUCCESS);
  peer.disconnect();
  EXPECT_EQ(wait_for_end(), POLLERR | POLLHUP);
  char room[8];
  EXPECT_EQ(rrecv(server, room, sizeof room, 0), 4);
  EXPECT_EQ(receive_error(), ECONNRESET) << "the peer may have had more to send";
}

TEST_F(RsocketsPeer, AReceiveOfAllThatIsCutShortLeavesTheErrorToTheNext) {
  connect_peer();
  ASSERT_EQ(peer.send_data("last"), IBV_WC_SUCCESS);
  peer.disconnect();
  ASSERT_EQ(wait_for_end(), POLLERR | POLLHUP);
  char room[8];
  EXPECT_EQ(rrecv(server, room, sizeof room, MSG_WAITALL), 4);
  EXPECT_EQ(receive_error(), ECONNRESET);
  EXPECT_EQ(receive_error(), 0) << "reported once";
}

TEST_F(RsocketsPeer, ASendThatIsCutShortLeavesTheErrorToTheNext) {
  constexpr uint32_t kRoom = 10;
  peer.mine.first.length = htobe32(kRoom);
  connect_peer();
  ssize_t sent = -1;
  std::thread sending([&] { sent = rsend(server, "0123456789abcdef", 16, 0); });
  EXPECT_EQ(peer.next_message(), encode(Op::kData, kRoom));
  peer.disconnect();
  sending.join();
  EXPECT_EQ(sent, kRoom);
  EXPECT_EQ(error_of(rsend(server, "x", 1, 0)), ECONNRESET);
  EXPECT_EQ(error_of(rsend(server, "x", 1, 0)), EPIPE) << "reported once";
}

TEST_F(RsocketsPeer, ReadingSoErrorClearsIt) {
  connect_peer();
  peer.disconnect();
  ASSERT_NE(wait_for_end() & POLLERR, 0);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), ECONNRESET);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), 0);
  EXPECT_EQ(poll_one(server, 0, 0), POLLHUP);
  EXPECT_EQ(receive_error(), 0);
}

TEST_F(RsocketsPeer, ASendReportsTheErrorOnce) {
  connect_peer();
  peer.disconnect();
  ASSERT_NE(wait_for_end() & POLLERR, 0);
  EXPECT_EQ(error_of(rsend(server, "x", 1, 0)), ECONNRESET);
  EXPECT_EQ(error_of(rsend(server, "x", 1, 0)), EPIPE);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), 0);
}

TEST_F(RsocketsPeer, ClosingWithoutLingerDoesNotWait) {
  for (const bool lingers : {true, false}) {
    Peer other;
    listen_now();
    ASSERT_TRUE(other.connect(address));
    server = raccept(listener, nullptr, nullptr);
    const linger given{lingers ? 0 : 1, 0};
    ASSERT_EQ(rsetsockopt(server, SOL_SOCKET, SO_LINGER, &given, sizeof given), 0);
    ASSERT_EQ(rclose(server), 0);
    server = -1;
  }
}

namespace {

/// Signals a thread whenever it sleeps in a call, ten times or until the call has come back.
void interrupt(std::thread* thread, const std::atomic<pid_t>& number, const std::atomic<bool>& back) {
  static std::atomic<int> handled{0};
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ++handled; };
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  ASSERT_TRUE(await([&] { return number != 0; }));
  for (int i = 0; i < 10 && !back; ++i) {
    const int handled_before = handled;
    if (!await_sleep(number)) break;
    pthread_kill(thread->native_handle(), SIGUSR1);
    EXPECT_TRUE(await([&] { return handled != handled_before; }));
  }
  sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace

TEST_F(RsocketsPeer, Close_WhenASignalComes_StillWaitsUntilThePeerHasItAll) {
  peer.receives = 1;
  connect_peer();
  ASSERT_EQ(rsend(server, "abc", 3, 0), 3);
  ASSERT_EQ(rsend(server, "def", 3, 0), 3);
  std::atomic<pid_t> number{0};
  std::atomic<bool> back{false};
  std::atomic<bool> read{false};
  std::thread closing([&] {
    number = gettid();
    EXPECT_EQ(rclose(server), 0);
    back = true;
    EXPECT_TRUE(await([&] { return read.load(); }));  // until then it can be signalled
  });
  interrupt(&closing, number, back);
  EXPECT_FALSE(back) << "the peer has no receive yet";
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 3));
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 3));
  EXPECT_EQ(peer.next_message(), encode(Control::kDisconnect));
  EXPECT_EQ(std::string(peer.memory().data, 6), "abcdef");
  read = true;
  closing.join();
  server = -1;
}

TEST_F(RsocketsPeer, Shutdown_WhenASignalComes_StillTellsThePeer) {
  constexpr int kControls = 4;
  set_listener(SOL_RDMA, RDMA_RQSIZE, 16);
  peer.receives = 1;
  connect_peer();
  const uint32_t each = static_cast<uint32_t>(peer.their_credits()) / 2;
  // As many credits as there may be control messages under way, for which the peer has one receive.
  for (uint32_t i = 0; i < each * (kControls + 1); ++i) {
    ASSERT_EQ(peer.send(encode(Op::kMapping, 0)), IBV_WC_SUCCESS);
    progress();
  }
  std::atomic<pid_t> number{0};
  std::atomic<bool> back{false};
  std::atomic<bool> read{false};
  std::thread ending([&] {
    number = gettid();
    EXPECT_EQ(rshutdown(server, SHUT_WR), 0);
    back = true;
    EXPECT_TRUE(await([&] { return read.load(); }));
  });
  interrupt(&ending, number, back);
  EXPECT_FALSE(back) << "there is no room for one more";
  std::optional<uint32_t> message;
  do message = peer.next_message();
  while (message && rsockets::op_of(*message) == Op::kCredits);
  EXPECT_EQ(message, encode(Control::kShutdown));
  read = true;
  ending.join();
}

// Connecting.

TEST_F(RsocketsPeer, WhileItConnectsCallsSaySo) {
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

TEST_F(RsocketsPeer, ARefusedConnectionReportsItsErrorOnce) {
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

TEST_F(RsocketsPeer, ABlockingConnectGivesUpAfterTheSendTimeout) {
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

TEST_F(RsocketsPeer, AConnectThatWaitsIsRefusedWhenThePeerRefuses) {
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

TEST_F(RsocketsPeer, ConnectionsThatAreNotConfirmedCountForTheBacklog) {
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

// Mapped buffers.

TEST_F(RsocketsPeer, WritesIntoMappedBuffersStayWithinThem) {
  set_listener(SOL_RDMA, RDMA_IOMAPSIZE, 4);
  connect_peer();
  // Two that follow each other, and one that stands alone; their memory does not follow each other.
  ASSERT_EQ(peer.write_mapping(1, {100, {peer.data_addr() + 5000, peer.key(), 10}}), IBV_WC_SUCCESS);
  ASSERT_EQ(peer.write_mapping(2, {110, {peer.data_addr() + 9000, peer.key(), 6}}), IBV_WC_SUCCESS);
  ASSERT_EQ(peer.write_mapping(3, {1000, {peer.data_addr() + 7000, peer.key(), 4}}), IBV_WC_SUCCESS);
  const auto write = [&](const std::string& text, off_t offset) {
    return static_cast<ssize_t>(riowrite(server, text.data(), text.size(), offset, 0));
  };
  EXPECT_EQ(write("x", 99), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(write("x", 116), -1);
  EXPECT_EQ(write("x", 1004), -1);
  EXPECT_EQ(write("x", -1), -1);
  EXPECT_EQ(write("", 5), 0);
  EXPECT_EQ(write("abcd", 100), 4);
  EXPECT_EQ(write("efghijklmnop", 104), 12) << "through both";
  EXPECT_EQ(write("QRSTUV", 1001), 3) << "up to the end";
  // A message behind them says that they have come.
  ASSERT_EQ(rsend(server, "x", 1, 0), 1);
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 1)) << "the writes have none";
  EXPECT_EQ(std::string(peer.memory().data + 5000, 11), std::string("abcdefghij\0", 11));
  EXPECT_EQ(std::string(peer.memory().data + 9000, 7), std::string("klmnop\0", 7));
  EXPECT_EQ(std::string(peer.memory().data + 7000, 5), std::string("\0QRS\0", 5));
  ASSERT_EQ(rshutdown(server, SHUT_WR), 0);
  EXPECT_EQ(write("x", 100), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST_F(RsocketsPeer, IomapSize_OfSomeHundreds_HasThePeerMapAsMany) {
  constexpr uint32_t kMany = 512;  // more entries than a page has
  set_listener(SOL_RDMA, RDMA_IOMAPSIZE, kMany);
  connect_peer();
  ASSERT_EQ(rsockets::scale_up(peer.theirs().mappings), kMany);
  ASSERT_EQ(peer.write_mapping(kMany - 1, {100, {peer.data_addr() + 5000, peer.key(), 10}}), IBV_WC_SUCCESS);
  EXPECT_EQ(riowrite(server, "abcd", 4, 102, 0), 4u);
  ASSERT_EQ(rsend(server, "x", 1, 0), 1);  // behind it
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 1));
  EXPECT_EQ(std::string(peer.memory().data + 5002, 4), "abcd");
}

TEST_F(RsocketsPeer, MappedBuffersOfNoTableAreNoneToWriteInto) {
  connect_peer();  // the listener has no table
  ASSERT_EQ(peer.theirs().mappings, 0);
  EXPECT_EQ(static_cast<ssize_t>(riowrite(server, "x", 1, 0, 0)), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(RsocketsPeer, MappedBuffersAreAnnouncedBeforeTheNextData) {
  peer.mine.mappings = 2;
  peer.mine.targets.length = htobe32(Peer::kTargetEntries);
  connect_peer();
  char first[100], second[200], third[300];
  const auto map = [&](void* buffer, size_t length, int protection, off_t offset) {
    return riomap(server, buffer, length, protection, 0, offset);
  };
  EXPECT_EQ(map(first, sizeof first, PROT_READ, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(map(third, sizeof third, PROT_NONE, 3), 3) << "of this side alone";
  EXPECT_EQ(map(first, sizeof first, PROT_WRITE, 700), 700);
  EXPECT_EQ(map(second, sizeof second, PROT_WRITE, -1), reinterpret_cast<off_t>(second)) << "its address is its offset";
  EXPECT_EQ(map(third, 5, PROT_WRITE, 9), -1);
  EXPECT_EQ(errno, ENOMEM) << "the peer's table has two";
  EXPECT_FALSE(peer.message_now().has_value());
  ASSERT_EQ(rsend(server, "x", 1, 0), 1);
  EXPECT_EQ(peer.next_message(), encode(Op::kMapping, 0));
  EXPECT_EQ(peer.next_message(), encode(Op::kMapping, 1));
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 1));
  const RemoteMapping* entries = peer.memory().mappings;
  EXPECT_EQ(entries[0].offset, 700u);
  EXPECT_EQ(entries[0].buffer.addr, reinterpret_cast<uintptr_t>(first));
  EXPECT_EQ(entries[0].buffer.length, sizeof first);
  EXPECT_EQ(entries[1].offset, reinterpret_cast<uintptr_t>(second));
  EXPECT_EQ(entries[1].buffer.length, sizeof second);
  ASSERT_EQ(rsend(server, "y", 1, 0), 1);
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 1)) << "each is announced once";
  // The keys are good for writing.
  EXPECT_EQ(peer.write("hello", 5, entries[0].buffer.addr, entries[0].buffer.key), IBV_WC_SUCCESS);
  EXPECT_EQ(std::string(first, 5), "hello");
  EXPECT_EQ(error_of(riounmap(server, first, sizeof first - 1)), EINVAL);
  EXPECT_EQ(error_of(riounmap(server, first + 1, sizeof first)), EINVAL);
  EXPECT_EQ(riounmap(server, first, sizeof first), 0);
  EXPECT_EQ(map(third, 5, PROT_WRITE, 9), 9) << "its entry is free again";
  ASSERT_EQ(rsend(server, "z", 1, 0), 1);
  EXPECT_EQ(peer.next_message(), encode(Op::kMapping, 0));
  EXPECT_EQ(peer.memory().mappings[0].offset, 9u);
}
