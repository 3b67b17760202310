// SPDX-License-Identifier: Apache-2.0
/// Messages that no rsocket sends, and how a connection ends, message by message.
#include <atomic>
#include <csignal>

#include "api_peer.h"
#include "api_peer_fixture.h"

namespace rsockets = nupa::rsockets;
using namespace nupa::rsockets_test;

// What no rsocket sends.

TEST_F(RsocketsPeer, Data_MoreThanTheCredits_EndsTheConnection) {
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

TEST_F(RsocketsPeer, UnknownOperations_EndTheConnection) {
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

TEST_F(RsocketsPeer, UnknownControlMessages_AreIgnored) {
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

TEST_F(RsocketsPeer, Close_DeregistersThePeersKeyBeforeTheSendMemory) {
  constexpr uint64_t kPage = 4096;
  connect_peer();
  const RemoteBuffer tables = peer.their_targets();
  const uint64_t tables_end = tables.addr + tables.length * sizeof(RemoteBuffer) +
                              rsockets::scale_up(peer.theirs().mappings) * sizeof(RemoteMapping);
  const uint64_t send_buffer = (tables_end + kPage - 1) / kPage * kPage;
  EXPECT_EQ(peer.write("x", 1, send_buffer - 1, tables.key), IBV_WC_SUCCESS) << "the rest of the tables' page";
  EXPECT_EQ(peer.write("x", 1, send_buffer, tables.key), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RsocketsPeer, Send_PeersKeyIsInvalid_ResetsTheConnection) {
  peer.mine.first.key = htobe32(0x5a5a5a5a);
  connect_peer();
  EXPECT_EQ(rsend(server, "x", 1, 0), 1);
  // A failed request says so whether or not it asked for a completion.
  EXPECT_NE(wait_for_end() & POLLERR, 0);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), ECONNRESET);
  EXPECT_EQ(error_of(rsend(server, "x", 1, 0)), EPIPE);
}

// Ends.

TEST_F(RsocketsPeer, ShutdownForWriting_SendsOneMessage) {
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

TEST_F(RsocketsPeer, Shutdown_AfterThePeers_EndsTheConnection) {
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

TEST_F(RsocketsPeer, DisconnectMessage_EndsBothDirections) {
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

TEST_F(RsocketsPeer, PeerDisconnects_WithoutAMessage_ResetsTheConnection) {
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

TEST_F(RsocketsPeer, PeerDisconnects_WithoutAMessageAfterAShutdown_ResetsTheConnection) {
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

TEST_F(RsocketsPeer, WaitAll_ConnectionEnds_TheNextReceiveHasTheError) {
  connect_peer();
  ASSERT_EQ(peer.send_data("last"), IBV_WC_SUCCESS);
  peer.disconnect();
  ASSERT_EQ(wait_for_end(), POLLERR | POLLHUP);
  char room[8];
  EXPECT_EQ(rrecv(server, room, sizeof room, MSG_WAITALL), 4);
  EXPECT_EQ(receive_error(), ECONNRESET);
  EXPECT_EQ(receive_error(), 0) << "reported once";
}

TEST_F(RsocketsPeer, Send_ConnectionEnds_TheNextSendHasTheError) {
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

TEST_F(RsocketsPeer, SoError_Read_IsCleared) {
  connect_peer();
  peer.disconnect();
  ASSERT_NE(wait_for_end() & POLLERR, 0);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), ECONNRESET);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), 0);
  EXPECT_EQ(poll_one(server, 0, 0), POLLHUP);
  EXPECT_EQ(receive_error(), 0);
}

TEST_F(RsocketsPeer, Send_AfterAReset_ReportsTheErrorOnce) {
  connect_peer();
  peer.disconnect();
  ASSERT_NE(wait_for_end() & POLLERR, 0);
  EXPECT_EQ(error_of(rsend(server, "x", 1, 0)), ECONNRESET);
  EXPECT_EQ(error_of(rsend(server, "x", 1, 0)), EPIPE);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), 0);
}

TEST_F(RsocketsPeer, Close_WithoutLinger_DoesNotWait) {
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

TEST_F(RsocketsPeer, Close_Signal_StillWaitsUntilThePeerHasAllData) {
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

TEST_F(RsocketsPeer, Shutdown_Signal_StillNotifiesThePeer) {
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
