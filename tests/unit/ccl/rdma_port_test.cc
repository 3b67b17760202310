// SPDX-License-Identifier: Apache-2.0
/// Tests of the RDMA port: what a peer may send on a connection, and what breaks the connection.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <nupa/connect.h>
#include <nupa/device.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "ccl/connect/endpoint.h"
#include "ccl/channel/rdma_port.h"
#include "mail_fixture.h"

namespace nupa::ccl {
namespace {

using namespace mail_test;

/// A wire to rank 5, whose peer is the test.
class CclRdmaPort : public ::testing::Test {
 protected:
  void SetUp() override {
    endpoint = endpoint_here();
    ASSERT_NE(endpoint, nullptr);
    Device& device = endpoint->device();
    auto made = device.alloc_mr(endpoint->pd(), layout.offset(0, ChannelKind::kMessage) * kChannelKinds,
                                access::kLocalWrite | access::kRemoteWrite);
    ASSERT_TRUE(made);
    arena = std::move(*made);
    auto opened = RdmaPort::open(device, layout.rdma_requests(), [this](uint32_t rank) { broken.push_back(rank); });
    ASSERT_TRUE(opened);
    port = std::move(*opened);
    ASSERT_EQ(port->grow(), 0);
    other_cq = std::move(*device.create_cq({.entries = 1024}));
    QpOptions options{.type = QpType::kRc, .send_cq = &port->cq(), .recv_cq = &port->cq()};
    options.cap = {.max_send_wr = layout.rdma_requests(),
                   .max_recv_wr = layout.rdma_requests(),
                   .max_send_sge = 1,
                   .max_recv_sge = 1,
                   .max_inline_data = 0};
    qp = std::move(*device.create_qp(&endpoint->pd(), options));
    options.send_cq = options.recv_cq = other_cq.get();
    peer = std::move(*device.create_qp(&endpoint->pd(), options));
    const auto connect_to = [&](QueuePair& from, const QueuePair& to) {
      return connect(from, {.dgid = endpoint->peer_info().gid,
                            .dest_qp_num = to.number(),
                            .access_flags = access::kRemoteWrite,
                            .sgid_index = endpoint->gid_index()});
    };
    ASSERT_EQ(connect_to(*qp, *peer), 0);
    ASSERT_EQ(connect_to(*peer, *qp), 0);
    RdmaChannel* all[kChannelKinds];
    for (uint32_t i = 0; i < kChannelKinds; ++i) {
      const auto kind = static_cast<ChannelKind>(i);
      auto* const channel = static_cast<std::byte*>(arena->addr()) + layout.offset(0, kind);
      channels[i] = std::make_unique<RdmaChannel>(
          *qp, kind, RdmaChannel::Here{channel, arena->lkey(), endpoint->memory_lkey()},
          RdmaChannel::There{reinterpret_cast<uint64_t>(channel), arena->rkey()}, 5, layout);
      all[i] = channels[i].get();
    }
    ASSERT_EQ(port->add(*qp, 5, all), 0);
  }
  /// Sends a message without data and with this immediate.
  void send_bytes(const ImmediateData& note) {
    SendWr wr{.opcode = Opcode::kRdmaWriteWithImm, .flags = send_flag::kSignaled};
    wr.imm_or_rkey = htonl(note.packed());
    wr.rkey = arena->rkey();
    wr.remote_addr = reinterpret_cast<uint64_t>(arena->addr());
    ASSERT_EQ(peer->post_send(wr), 0);
    WorkCompletion completion;
    ASSERT_TRUE(eventually([&] { return other_cq->poll(&completion, 1) == 1; }));
    ASSERT_EQ(completion.status, WcStatus::kSuccess);
  }
  RdmaChannel& channel(ChannelKind kind) { return *channels[static_cast<uint32_t>(kind)]; }

  const ChannelLayout layout{4096};
  std::shared_ptr<Endpoint> endpoint;
  std::unique_ptr<MemoryRegion> arena;
  std::vector<uint32_t> broken;
  std::unique_ptr<RdmaPort> port;
  std::unique_ptr<CompletionQueue> other_cq;
  std::unique_ptr<QueuePair> qp;
  std::unique_ptr<QueuePair> peer;
  std::unique_ptr<RdmaChannel> channels[kChannelKinds];
};

TEST_F(CclRdmaPort, Fragment_GoesToTheChannelThatItNames) {
  const auto size = static_cast<uint32_t>(layout.fragment_bytes());
  send_bytes({ChannelKind::kMessage, false, size});
  EXPECT_TRUE(eventually([&] {
    port->poll();
    return channel(ChannelKind::kMessage).can_receive().is_over();
  }));
  EXPECT_EQ(channel(ChannelKind::kMessage).front_bytes(), size);
  EXPECT_FALSE(channel(ChannelKind::kCollective).can_receive().is_over());
  for (uint32_t i = 0; i < layout.fragments(); ++i) channel(ChannelKind::kCollective).send(0);
  EXPECT_FALSE(channel(ChannelKind::kCollective).can_send().is_over());
  send_bytes({ChannelKind::kCollective, true, 1});
  EXPECT_TRUE(eventually([&] {
    port->poll();
    return channel(ChannelKind::kCollective).can_send().is_over();
  }));
  EXPECT_TRUE(broken.empty());
}

TEST_F(CclRdmaPort, Fragment_LongerThanASlot_BreaksTheConnection) {
  send_bytes({ChannelKind::kCollective, false, static_cast<uint32_t>(layout.fragment_bytes()) + 1});
  EXPECT_TRUE(eventually([&] {
    port->poll();
    return !broken.empty();
  }));
  EXPECT_EQ(broken, (std::vector<uint32_t>{5}));
  EXPECT_FALSE(channel(ChannelKind::kCollective).can_receive().is_over());
}

TEST_F(CclRdmaPort, Receives_MoreMessagesThanReceives_AreReposted) {
  for (uint32_t i = 1; i <= 3 * layout.rdma_requests(); ++i) {
    send_bytes({ChannelKind::kCollective, true, 0});
    if (i % layout.fragments() == 0) port->poll();
  }
  send_bytes({ChannelKind::kMessage, false, 3});
  EXPECT_TRUE(eventually([&] {
    port->poll();
    return channel(ChannelKind::kMessage).can_receive().is_over();
  }));
  EXPECT_TRUE(broken.empty());
}

TEST_F(CclRdmaPort, Grow_CompletionsOfEachConnection_FitIntoTheQueue) {
  constexpr uint32_t kMore = 7;  // whose completions have no room in the queue of one wire
  QpOptions options{.type = QpType::kRc, .send_cq = &port->cq(), .recv_cq = &port->cq()};
  options.cap = {.max_send_wr = 1, .max_recv_wr = layout.rdma_requests(), .max_send_sge = 1, .max_recv_sge = 1};
  std::vector<std::unique_ptr<QueuePair>> more;
  QpAttr attr;
  for (uint32_t wire = 0; wire < kMore; ++wire) {
    ASSERT_EQ(port->grow(), 0);
    more.push_back(std::move(*endpoint->device().create_qp(&endpoint->pd(), options)));
    attr.state = QpState::kInit;
    ASSERT_EQ(more.back()->modify(attr, qp_attr::kState | qp_attr::kPkeyIndex | qp_attr::kPort | qp_attr::kAccessFlags),
              0);
    for (uint32_t i = 0; i < layout.rdma_requests(); ++i) ASSERT_EQ(more.back()->post_recv({}), 0);
  }
  // In the error state all receives complete, and nobody polls.
  attr.state = QpState::kErr;
  for (const auto& wire : more) ASSERT_EQ(wire->modify(attr, qp_attr::kState), 0);
  uint32_t came = 0;
  EXPECT_TRUE(eventually([&] {
    WorkCompletion completion;
    const int count = port->cq().poll(&completion, 1);
    if (count > 0) ++came;
    return count < 0 || came == kMore * layout.rdma_requests();
  }));
  EXPECT_EQ(came, kMore * layout.rdma_requests());
}

TEST_F(CclRdmaPort, Grow_UpTo200Connections_QueueHasRoomForAllRequests) {
  // What probes take first exceeds what rounding up the queue's length leaves at 127 wires.
  constexpr uint32_t kMost = 200;
  for (uint32_t wires = 2; wires <= kMost; ++wires) {
    ASSERT_EQ(port->grow(), 0);
    ASSERT_GE(port->cq().entries(), wires * (port->sends() + port->receives())) << wires;
  }
}

TEST_F(CclRdmaPort, Poll_TwoConnectionsBreakBetweenTwoPolls_ReportsBoth) {
  QpOptions options{.type = QpType::kRc, .send_cq = &port->cq(), .recv_cq = &port->cq()};
  options.cap = {.max_send_wr = 1, .max_recv_wr = layout.rdma_requests(), .max_send_sge = 1, .max_recv_sge = 1};
  ASSERT_EQ(port->grow(), 0);
  const auto second = std::move(*endpoint->device().create_qp(&endpoint->pd(), options));
  QpAttr attr;
  attr.state = QpState::kInit;
  ASSERT_EQ(second->modify(attr, qp_attr::kState | qp_attr::kPkeyIndex | qp_attr::kPort | qp_attr::kAccessFlags), 0);
  std::vector<std::unique_ptr<RdmaChannel>> second_channels;
  RdmaChannel* all[kChannelKinds];
  for (uint32_t i = 0; i < kChannelKinds; ++i) {
    second_channels.push_back(std::make_unique<RdmaChannel>(*second, static_cast<ChannelKind>(i), RdmaChannel::Here{},
                                                            RdmaChannel::There{}, 6, layout));
    all[i] = second_channels.back().get();
  }
  ASSERT_EQ(port->add(*second, 6, all), 0);
  attr.state = QpState::kErr;
  for (QueuePair* const wire : {qp.get(), second.get()}) ASSERT_EQ(wire->modify(attr, qp_attr::kState), 0);
  port->poll();
  std::sort(broken.begin(), broken.end());
  EXPECT_EQ(broken, (std::vector<uint32_t>{5, 6}));
}

TEST_F(CclRdmaPort, Poll_ConnectionThatThisRankDropped_IsNotReported) {
  QpAttr attr;
  attr.state = QpState::kErr;
  port->drop(*qp);
  ASSERT_EQ(qp->modify(attr, qp_attr::kState), 0);
  port->poll();
  EXPECT_TRUE(broken.empty());
}

TEST_F(CclRdmaPort, Sleep_ConnectionBreaks_ReportsItsRank) {
  QpAttr attr;
  attr.state = QpState::kErr;
  ASSERT_EQ(qp->modify(attr, qp_attr::kState), 0);
  EXPECT_TRUE(eventually([&] {
    port->sleep(kNsPerMs);
    return !broken.empty();
  }));
  EXPECT_EQ(broken[0], 5u);
  port->poll();
}

TEST_F(CclRdmaPort, Poll_BreakAfterTheLastFragment_IsNoFailure) {
  channel(ChannelKind::kCollective).send(0);
  send_bytes({ChannelKind::kCollective, false, 0});
  EXPECT_TRUE(eventually([&] {
    port->poll();
    return channel(ChannelKind::kCollective).can_receive().is_over();
  }));
  channel(ChannelKind::kCollective).pop_last();
  QpAttr attr;
  attr.state = QpState::kErr;
  ASSERT_EQ(qp->modify(attr, qp_attr::kState), 0);
  EXPECT_TRUE(eventually([&] {
    port->poll();
    return channel(ChannelKind::kCollective).all_arrived().is_over();
  }));
  EXPECT_TRUE(broken.empty());
}

}  // namespace
}  // namespace nupa::ccl
