// SPDX-License-Identifier: Apache-2.0
/// Credits of a connection between an rsocket and a peer, and mapped buffers.
#include <netinet/tcp.h>

#include "api_peer.h"
#include "api_peer_fixture.h"

namespace rsockets = nupa::rsockets;
using namespace nupa::rsockets_test;

// Credits.

TEST_F(RsocketsPeer, Credits_HalfAreUsed_AreSentAndCountFromTheStart) {
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

TEST_F(RsocketsPeer, Keepalive_SilentPeer_IsDetectedIfEnabled) {
  peer.retries = 0;
  connect_peer();
  peer.fall_silent();
  ASSERT_EQ(set_number(server, IPPROTO_TCP, TCP_KEEPIDLE, 1), 0);
  EXPECT_EQ(poll_one(server, POLLIN, 2500), 0) << "their time alone is no wish for them";
  ASSERT_EQ(set_number(server, SOL_SOCKET, SO_KEEPALIVE, 1), 0);
  EXPECT_NE(poll_one(server, POLLIN, kSoonMs) & (POLLERR | POLLHUP), 0);
}

TEST_F(RsocketsPeer, Credits_EachHasAPostedReceive) {
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

TEST_F(RsocketsPeer, Send_MoreMessagesThanCredits_SendsThatMany) {
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

TEST_F(RsocketsPeer, Send_TargetBufferIsFull_ContinuesInTheNext) {
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

TEST_F(RsocketsPeer, Send_OfManyBytes_BeginsWithShortMessages) {
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

TEST_F(RsocketsPeer, Send_Message_IsNotLongerThanTheSendBuffer) {
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

TEST_F(RsocketsPeer, Send_OfZeroBytes_SendsNoMessage) {
  connect_peer();
  EXPECT_EQ(rsend(server, "", 0, 0), 0);
  EXPECT_EQ(rwritev(server, nullptr, 0), 0);
  ASSERT_EQ(rsend(server, "x", 1, 0), 1);
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 1));
}

// Mapped buffers.

TEST_F(RsocketsPeer, IomapWrite_BeyondTheBuffer_IsRefused) {
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

TEST_F(RsocketsPeer, IomapSize_OfSomeHundreds_LetsThePeerMapThatMany) {
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

TEST_F(RsocketsPeer, IomapWrite_PeerHasNoTable_IsRefused) {
  connect_peer();  // the listener has no table
  ASSERT_EQ(peer.theirs().mappings, 0);
  EXPECT_EQ(static_cast<ssize_t>(riowrite(server, "x", 1, 0, 0)), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(RsocketsPeer, Iomap_IsAnnouncedBeforeTheNextData) {
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
