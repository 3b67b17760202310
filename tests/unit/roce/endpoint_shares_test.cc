// SPDX-License-Identifier: Apache-2.0
/// Tests of socket room that queue pairs share: how much each may have under way, and the wait queue.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "../core/shm_fixture.h"
#include "base/clock.h"
#include "endpoint_fixture.h"
#include "engine_fixture.h"
#include "transport/roce/datagram_endpoint.h"
#include "transport/roce/endpoint.h"

namespace nupa::roce::test {
namespace {

class RoceShares : public RoceConnected {
 protected:
  void SetUp() override {
    connect();
    start();
    process = port->peer_at(host_gid(2), kPeerPort);
  }
  /// Nothing is left in the other one's socket.
  void fill() { process->window.take(UINT64_MAX, 0); }
  void post_read(uint32_t bytes) {
    const Sge sge{kBase, bytes, kKey};
    SendWr wr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = Opcode::kRdmaRead;
    wr.remote_addr = kBase;
    wr.rkey = kKey;
    endpoint->post({wr, nullptr, nullptr, 0, 8, 0, WcStatus::kSuccess});
  }
  /// Another queue pair in the wait queue.
  QpReceiver& other_waiter() { return *reinterpret_cast<QpReceiver*>(&place); }

  std::shared_ptr<Peer> process;
  uint64_t place = 0;
};

TEST_F(RoceShares, RequestUnderWay_TakesRoomUntilItIsAnswered) {
  post();
  transmit();
  EXPECT_EQ(process->window.used(), kBthBytes + 8 + kIcrcBytes);
  Packet ack = packet(opcode_of(Service::kRc, Operation::kAcknowledge), kFirstPsn, 0);
  ack.syndrome = syndrome(AckKind::kAck, kAckUnlimited);
  deliver(ack);
  ASSERT_EQ(host.done.size(), 1u);
  transmit();
  EXPECT_EQ(process->window.used(), 0u);
}

TEST_F(RoceShares, ReadResponses_TakeRoomOfThisProcess) {
  post_read(1000);
  transmit();
  EXPECT_GE(port->response_window()->used(), 1000u);
  EXPECT_LT(port->response_window()->used(), 2000u);
  endpoint->flush();
  EXPECT_EQ(port->response_window()->used(), 0u);
  EXPECT_EQ(process->window.used(), 0u);
}

TEST_F(RoceShares, DestroyedQueuePair_GivesItsRoomBack) {
  post();
  post_read(1000);
  transmit();
  EXPECT_GT(process->window.used(), 0u);
  endpoint->withdraw();
  endpoint.reset();
  EXPECT_EQ(process->window.used(), 0u);
  EXPECT_EQ(port->response_window()->used(), 0u);
}

TEST_F(RoceShares, NoRoom_QueuePair_WaitsInTheQueueOnce) {
  fill();
  post();
  for (int i = 0; i < 3; ++i) transmit();
  EXPECT_EQ(process->window.waiters(), 1u);
  EXPECT_EQ(process->window.used(), process->window.size());
  process->window.give_back(process->window.used());
  port->poller().poll();
  const int64_t until = base::now_ns() + 10'000'000'000;
  while (process->window.has_waiters() && base::now_ns() < until) port->poller().poll();
  EXPECT_FALSE(process->window.has_waiters());
  EXPECT_EQ(process->window.used(), kBthBytes + 8 + kIcrcBytes) << "its turn came";
  EXPECT_TRUE(host.done.empty());
}

TEST_F(RoceShares, OtherWaiters_QueuePair_SendsAfterThem) {
  process->window.wait(other_waiter());
  post();
  transmit();
  EXPECT_EQ(process->window.used(), 0u);
  EXPECT_EQ(process->window.waiters(), 2u);
  process->window.forget(other_waiter());
  transmit();
  EXPECT_EQ(process->window.waiters(), 0u) << "the first in line need not be called";
  EXPECT_EQ(process->window.used(), kBthBytes + 8 + kIcrcBytes);
}

TEST_F(RoceShares, QueuePairThatWaitsAlthoughThereIsRoom_IsServedAtOnce) {
  fill();
  post();
  transmit();
  ASSERT_EQ(process->window.waiters(), 1u);
  EXPECT_GT(port->wanted_at(), base::now_ns()) << "who makes room calls it";
  process->window.give_back(process->window.used());
  process->window.forget(*endpoint);
  process->window.wait(other_waiter());
  transmit();
  process->window.forget(other_waiter());
  EXPECT_EQ(process->window.used(), 0u);
  EXPECT_LE(port->wanted_at(), base::now_ns()) << "no other waiter does";
}

TEST_F(RoceShares, QueuePairWithNothingToSend_LeavesTheWaitQueue) {
  fill();
  post();
  transmit();
  ASSERT_EQ(process->window.waiters(), 1u);
  endpoint->flush();
  EXPECT_EQ(process->window.waiters(), 0u);
  start();
  post();
  transmit();
  ASSERT_EQ(process->window.waiters(), 1u);
  endpoint->withdraw();
  EXPECT_EQ(process->window.waiters(), 0u);
}

TEST_F(RoceShares, PeerChangesItsPort_QueuePairLeavesTheOldWaitQueue) {
  fill();
  const uint64_t full = process->window.used();
  post();
  transmit();
  ASSERT_EQ(process->window.waiters(), 1u);
  Packet other = send_of(kFirstPsn);
  other.mark = 0;  // a standard peer: it is at the standard's port
  deliver(other);
  EXPECT_EQ(process->window.waiters(), 0u);
  EXPECT_EQ(process->window.used(), full);
  const std::shared_ptr<Peer> now = port->peer_at(host_gid(2), kUdpPort);
  EXPECT_EQ(now->window.size(), UINT64_MAX) << "nothing is known of its room";
  transmit();
  EXPECT_GT(now->window.used(), 0u);
  EXPECT_EQ(process->window.used(), full);
}

TEST_F(RoceShares, PeerChangesItsPort_QueuePairGivesItsRoomBack) {
  post();
  transmit();
  ASSERT_GT(process->window.used(), 0u);
  Packet other = send_of(kFirstPsn);
  other.mark = 0;
  deliver(other);
  EXPECT_EQ(process->window.used(), 0u);
}

TEST_F(RoceShares, LostPackets_AreResentWithoutRoomAndWithoutWaiting) {
  constexpr uint64_t kPacket = kBthBytes + 8 + kIcrcBytes;
  for (int i = 0; i < 4; ++i) post();
  transmit();
  Packet first = packet(kSelectiveAck, kFirstPsn, 0);
  first.syndrome = syndrome(AckKind::kAck, kAckUnlimited);
  first.window = 1 << 20;
  deliver(first);
  ASSERT_EQ(host.done.size(), 1u);
  transmit();
  ASSERT_EQ(process->window.used(), 3 * kPacket);
  fill();
  const uint64_t others = process->window.used() - 3 * kPacket;
  process->window.wait(other_waiter());
  const auto expect_sent_again = [&](int64_t after_ns, uint64_t resent) {
    endpoint->on_timer(base::now_ns() + after_ns);
    transmit();
    EXPECT_EQ(wire->resent_timeout, resent);
    EXPECT_EQ(process->window.waiters(), 1u);
    EXPECT_EQ(process->window.used(), others + 3 * kPacket) << "they are under way again";
  };
  expect_sent_again(1'000'000'000, 1);  // the last packets are asked for by one
  expect_sent_again(3'000'000'000, 1 + 3);
  endpoint->flush();
  EXPECT_EQ(process->window.used(), others);
  process->window.forget(other_waiter());
}

TEST_F(RoceShares, UnreliableConnection_NeedsNoRoom) {
  endpoint->withdraw();
  endpoint.reset();
  host.identity().type = QpType::kUc;
  QpAttr attr;
  attr.dest_qp_num = kNupaPeerQpn;
  attr.path_mtu = Mtu::k256;
  endpoint.emplace(*port, end, attr, host_gid(2), WireSettings{});
  start();
  fill();
  post();
  transmit();
  EXPECT_EQ(process->window.waiters(), 0u);
  EXPECT_EQ(process->window.used(), process->window.size());
  EXPECT_EQ(host.done.size(), 1u) << "it is complete once it has left";
}

}  // namespace
}  // namespace nupa::roce::test
