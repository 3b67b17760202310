// SPDX-License-Identifier: Apache-2.0
/// Datagrams and management datagrams over a pool.
#include "core/seam/grh.h"
#include "core/seam/group_address.h"
#include "progress/descriptors.h"
#include "transport/pool/mads.h"
#include "world.h"

namespace nupa::pool::test {
namespace {

/// A UD queue pair of a host.
struct Datagrams {
  Datagrams(Host& owner, uint32_t index, GroupReach groups = GroupReach::kAll)
      : host(owner),
        context(shm::number_of(1u + owner.pool.host(), index), QpType::kUd,
                {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 4, .max_recv_sge = 4}) {
    GidEntry entry;
    entry.gid = gid_of_host(owner.pool.host());
    endpoint.emplace(*owner.engine, context.host, std::vector<GidEntry>{entry}, groups);
  }
  ~Datagrams() { endpoint->withdraw(); }

  uint32_t number() { return context.host.number(); }
  std::optional<WcStatus> send(const AddressVector& vector, uint32_t to, uint32_t length, uint32_t qkey = 0x1234) {
    SendWr wr;
    wr.remote_qpn = to;
    wr.remote_qkey = qkey;
    const base::Piece piece{context.host.memory.data(), length};
    return endpoint->send({wr, &vector, &piece, length > 0 ? 1u : 0u, length, 0, WcStatus::kSuccess});
  }

  Host& host;
  Context context;
  std::optional<DatagramEndpoint> endpoint;
};

class PoolDatagrams : public PoolEngine {
 protected:
  Datagrams a{*hosts[0], 1};
  Datagrams b{*hosts[1], 2};

  /// Sends until the channel is open and the datagram has left.
  [[nodiscard]] bool send(Datagrams& from, const AddressVector& vector, uint32_t to, uint32_t length,
                          uint32_t qkey = 0x1234) {
    return until([&] { return from.send(vector, to, length, qkey) == WcStatus::kSuccess; });
  }
  Gid group(uint8_t last) {
    Gid gid;
    gid.raw[0] = 0xff;
    gid.raw[15] = last;
    return gid;
  }
  AddressVector path_to_group(uint8_t last) {
    AddressVector vector;
    vector.is_global = true;
    vector.dgid = group(last);
    return vector;
  }
  void join(Host& host, Datagrams& member, uint8_t last) {
    host.engine->join(member.number(), group(last));
    ASSERT_TRUE(host.engine->describe([&](Description& mine) { mine.groups.push_back(group(last)); }));
  }
};

TEST_F(PoolDatagrams, Send_ToAQueuePair_ArrivesWithItsRouteHeader) {
  b.context.host.receives = {5000};
  std::fill_n(a.context.host.memory.begin(), 1000, std::byte{'x'});
  AddressVector vector = path_to(1);
  vector.traffic_class = 9;
  vector.hop_limit = 3;
  EXPECT_EQ(DatagramEndpoint::Reach::kYes, a.endpoint->leads_to(vector, b.number()));
  ASSERT_TRUE(send(a, vector, b.number(), 1000));
  ASSERT_TRUE(until([&] { return b.context.host.received.size() == 1; }));
  const auto& received = b.context.host.received[0];
  EXPECT_EQ(1040u, received.message.byte_len);
  EXPECT_EQ(a.number(), received.message.src_qp);
  EXPECT_EQ(wc_flag::kGrh, received.message.wc_flags);
  const auto header = core::make_route_header(vector, gid_of_host(0), gid_of_host(1), 1000);
  EXPECT_EQ(0, std::memcmp(header.data(), received.bytes.data(), header.size()));
  EXPECT_EQ(std::string(1000, 'x'), received.bytes.substr(40));
  shm::PortCountsShared& sent = a.context.statistics.port;
  EXPECT_EQ(1000 * sent[shm::PortCount::kXmitPackets], sent[shm::PortCount::kXmitBytes]);
  EXPECT_EQ(0u, sent[shm::PortCount::kMulticastXmit]);
  EXPECT_EQ(1000u, b.context.statistics.port[shm::PortCount::kRcvBytes]);
  EXPECT_EQ(1u, b.context.statistics.port[shm::PortCount::kRcvPackets]);
  EXPECT_EQ(0u, b.context.statistics.port[shm::PortCount::kMulticastRcv]);
}

TEST_F(PoolDatagrams, Send_QueuePairIsDestroyedBeforeTheChannelOpens_Arrives) {
  b.context.host.receives = {5000};
  {
    Datagrams gone(*hosts[0], 7);
    ASSERT_EQ(WcStatus::kSuccess, gone.send(path_to(1), b.number(), 100));
  }
  ASSERT_TRUE(until([&] { return b.context.host.received.size() == 1; }));
  EXPECT_EQ(140u, b.context.host.received[0].message.byte_len);
}

TEST_F(PoolDatagrams, Send_WhileTheChannelOpens_ArriveInOrder) {
  constexpr uint32_t kSent = 40;
  b.context.host.receives.assign(kSent, 5000);
  for (uint32_t i = 0; i < kSent; ++i) {
    ASSERT_EQ(WcStatus::kSuccess, a.send(path_to(1), b.number(), i));
    if (i % 4 == 3) turns();
  }
  ASSERT_TRUE(until([&] { return b.context.host.received.size() == kSent; }));
  for (uint32_t i = 0; i < kSent; ++i) EXPECT_EQ(40 + i, b.context.host.received[i].message.byte_len);
}

TEST_F(PoolDatagrams, Send_ChannelOpensAtAnyLook_ArriveInOrder) {
  constexpr uint32_t kSent = 8;
  for (uint32_t opens_at = 0; opens_at < 3 * kSent; ++opens_at) {
    Medium own(kLines);
    Host here(own, 0);
    Host there(own, 1);
    Datagrams from(here, 1);
    Datagrams to(there, 2);
    to.context.host.receives.assign(kSent, 5000);
    uint32_t looks = 0;
    own.after_look = [&] {
      if (looks++ == opens_at) there.turn();  // answers the offer
    };
    const auto turns_until = [&](const auto& condition) {
      for (int i = 0; i < 100'000 && !condition(); ++i) here.turn(), there.turn();
      return condition();
    };
    for (uint32_t i = 0; i < kSent / 2; ++i) ASSERT_EQ(WcStatus::kSuccess, from.send(path_to(1), to.number(), i));
    here.turn();
    for (uint32_t i = kSent / 2; i < kSent; ++i) ASSERT_EQ(WcStatus::kSuccess, from.send(path_to(1), to.number(), i));
    ASSERT_TRUE(turns_until([&] { return to.context.host.received.size() == kSent; })) << opens_at;
    for (uint32_t i = 0; i < kSent; ++i)
      EXPECT_EQ(40 + i, to.context.host.received[i].message.byte_len) << "opened at look " << opens_at;
  }
}

TEST_F(PoolDatagrams, Mads_ChannelOpensAtAnyLook_ArriveInOrder) {
  constexpr uint8_t kSent = 8;
  for (uint32_t opens_at = 0; opens_at < 3 * kSent; ++opens_at) {
    Medium own(kLines);
    Host here(own, 0);
    Host there(own, 1);
    std::vector<uint8_t> arrived;
    there.engine->set_mad_handler(
        [&](const core::MadDatagram& datagram) { arrived.push_back(std::to_integer<uint8_t>(datagram.bytes[0])); });
    uint32_t looks = 0;
    own.after_look = [&] {
      if (looks++ == opens_at) there.turn();  // answers the offer
    };
    for (uint8_t i = 0; i < kSent; ++i) {
      core::MadDatagram sent;
      sent.bytes[0] = std::byte{i};
      sent.local = gid_of_host(0);
      sent.remote = {gid_of_host(1), 1};
      ASSERT_TRUE(here.engine->send_mad(there.engine->self(), sent, false));
      if (i == kSent / 2) here.turn();
    }
    for (int i = 0; i < 100'000 && arrived.size() < kSent; ++i) here.turn(), there.turn();
    ASSERT_EQ(kSent, arrived.size()) << opens_at;
    EXPECT_TRUE(std::is_sorted(arrived.begin(), arrived.end())) << "opened at look " << opens_at;
  }
}

TEST_F(PoolDatagrams, Mads_ThatWaitForTheirChannel_HoldUpNoOtherPeer) {
  int arrived = 0;
  hosts[1]->engine->set_mad_handler([&](const core::MadDatagram&) { ++arrived; });
  core::MadDatagram sent;
  sent.local = gid_of_host(0);
  sent.remote = {gid_of_host(1), 1};
  ASSERT_TRUE(hosts[0]->engine->send_mad(hosts[1]->engine->self(), sent, false));
  for (int i = 0; i < 100'000 && arrived == 0; ++i) hosts[0]->turn(), hosts[1]->turn();
  ASSERT_EQ(1, arrived);
  sent.remote = {gid_of_host(2), 1};
  ASSERT_TRUE(hosts[0]->engine->send_mad(hosts[2]->engine->self(), sent, false));
  hosts[0]->turn();
  const uint64_t before = hosts[0]->pool.channels[1]->published;
  sent.remote = {gid_of_host(1), 1};
  ASSERT_TRUE(hosts[0]->engine->send_mad(hosts[1]->engine->self(), sent, false));
  EXPECT_EQ(before + 1, hosts[0]->pool.channels[1]->published) << "it waits behind one to another process";
}

TEST_F(PoolDatagrams, MadProcess_PortZero_IsAReceiverForTheHost) {
  const core::MadPeer there{hosts[1]->engine->own_gid(), 0}, here{hosts[0]->engine->own_gid(), 0};
  EXPECT_EQ(std::nullopt, hosts[0]->engine->mad_process(there));
  for (int i : {0, 1})
    ASSERT_TRUE(hosts[i]->engine->describe([](Description& mine) { mine.receives_for_host = true; }));
  EXPECT_EQ(hosts[1]->engine->self(), hosts[0]->engine->mad_process(there));
  EXPECT_EQ(hosts[0]->engine->self(), hosts[0]->engine->mad_process(here));
}

TEST_F(PoolDatagrams, Send_WrongQKeyOrNoReceive_IsDropped) {
  b.context.host.receives = {5000};
  ASSERT_TRUE(send(a, path_to(1), b.number(), 10, 0x999));
  ASSERT_TRUE(send(a, path_to(1), b.number(), 20));
  ASSERT_TRUE(until([&] { return b.context.host.received.size() == 1; }));
  EXPECT_EQ(60u, b.context.host.received[0].message.byte_len);
  ASSERT_TRUE(send(a, path_to(1), b.number(), 10));
  for (int i = 0; i < 20; ++i) turns();
  EXPECT_EQ(1u, b.context.host.received.size());
  EXPECT_TRUE(b.context.host.refusals.empty());
}

TEST_F(PoolDatagrams, Send_ToNoProcess_IsNotForThePool) {
  EXPECT_EQ(DatagramEndpoint::Reach::kNo, a.endpoint->leads_to(path_to(1), shm::number_of(99, 1)));
  EXPECT_EQ(DatagramEndpoint::Reach::kNo, a.endpoint->leads_to(path_to(7), b.number()));
  EXPECT_EQ(WcStatus::kSuccess, a.send(path_to(7), b.number(), 10));
}

TEST_F(PoolDatagrams, Send_ChannelIsFull_IsDropped) {
  ASSERT_TRUE(send(a, path_to(1), b.number(), 0));
  for (int i = 0; i < 5; ++i) turns();
  // Nobody reads.
  for (uint32_t i = 0; i < 2 * kLines; ++i) EXPECT_EQ(WcStatus::kSuccess, a.send(path_to(1), b.number(), 1000));
  b.context.host.receives.assign(4 * kLines, 2000);
  ASSERT_TRUE(send(a, path_to(1), b.number(), 7));
  for (int i = 0; i < 500; ++i) turns();
  EXPECT_GT(b.context.host.received.size(), 10u);
  EXPECT_LT(b.context.host.received.size(), kLines);
}

TEST_F(PoolDatagrams, Group_MembersOfAllProcesses_GetOneEach) {
  Datagrams c(*hosts[1], 3);
  Datagrams d(*hosts[2], 4);
  Datagrams e(*hosts[2], 5);
  for (Datagrams* each : {&a, &b, &c, &d, &e}) each->context.host.receives = {200, 200};
  join(*hosts[0], a, 1);
  join(*hosts[1], b, 1);
  join(*hosts[1], c, 1);
  join(*hosts[2], d, 1);
  join(*hosts[2], e, 2);
  ASSERT_TRUE(send(a, path_to_group(1), core::kGroupQpn, 100));
  ASSERT_TRUE(until([&] { return d.context.host.received.size() == 1 && a.context.host.received.size() == 1; }));
  for (int i = 0; i < 20; ++i) turns();
  for (Datagrams* each : {&a, &b, &c, &d}) EXPECT_EQ(1u, each->context.host.received.size());
  EXPECT_TRUE(e.context.host.received.empty());
  hosts[1]->engine->leave(c.number(), group(1));
  ASSERT_TRUE(send(a, path_to_group(1), core::kGroupQpn, 100));
  ASSERT_TRUE(until([&] { return b.context.host.received.size() == 2; }));
  EXPECT_EQ(1u, c.context.host.received.size());
  shm::PortCountsShared& sent = a.context.statistics.port;
  EXPECT_EQ(sent[shm::PortCount::kXmitPackets], sent[shm::PortCount::kMulticastXmit]);
  EXPECT_EQ(2u, b.context.statistics.port[shm::PortCount::kMulticastRcv]);
}

TEST_F(PoolDatagrams, Group_OfAnotherTransport_IsNotSentHere) {
  Datagrams none(*hosts[0], 5, GroupReach::kNone);
  Datagrams others(*hosts[0], 6, GroupReach::kOtherHosts);
  for (Datagrams* each : {&a, &b}) each->context.host.receives = {200, 200};
  join(*hosts[0], a, 1);
  join(*hosts[1], b, 1);
  ASSERT_TRUE(send(none, path_to_group(1), core::kGroupQpn, 10));
  ASSERT_TRUE(send(others, path_to_group(1), core::kGroupQpn, 20));
  ASSERT_TRUE(until([&] { return b.context.host.received.size() == 1; }));
  EXPECT_EQ(60u, b.context.host.received[0].message.byte_len);
  EXPECT_TRUE(a.context.host.received.empty());
}

TEST_F(PoolDatagrams, Mads_BetweenHosts_ArriveWithTheWayBack) {
  std::vector<core::MadDatagram> arrived;
  hosts[1]->engine->set_mad_handler([&](const core::MadDatagram& datagram) { arrived.push_back(datagram); });
  core::MadDatagram sent;
  sent.bytes.fill(std::byte{7});
  sent.local = gid_of_host(0);
  sent.remote = {gid_of_host(1), 1};
  const auto to = hosts[0]->engine->mad_process(sent.remote);
  ASSERT_TRUE(to);
  ASSERT_TRUE(hosts[0]->engine->send_mad(*to, sent, false));
  ASSERT_TRUE(until([&] { return arrived.size() == 1; }));
  EXPECT_EQ(sent.bytes, arrived[0].bytes);
  EXPECT_EQ(gid_of_host(1), arrived[0].local);
  EXPECT_EQ(gid_of_host(0), arrived[0].remote.address);
  EXPECT_EQ(1, arrived[0].remote.port);
  EXPECT_EQ(core::kPoolInterface, arrived[0].interface);
  EXPECT_TRUE(arrived[0].of_nupa);
  EXPECT_EQ(hosts[0]->engine->self(), *hosts[1]->engine->mad_process(arrived[0].remote));
}

TEST_F(PoolDatagrams, Mads_FromAnAddressThatMeansAnotherHost_ShowThePoolsOwn) {
  std::vector<core::MadDatagram> arrived;
  hosts[1]->engine->set_mad_handler([&](const core::MadDatagram& datagram) { arrived.push_back(datagram); });
  core::MadDatagram sent;
  sent.local.raw[0] = 0xfe;
  sent.local.raw[1] = 0x80;
  sent.remote = {gid_of_host(1), 1};
  ASSERT_TRUE(hosts[0]->engine->send_mad(hosts[1]->engine->self(), sent, false));
  ASSERT_TRUE(until([&] { return arrived.size() == 1; }));
  EXPECT_EQ(gid_of_host(0), arrived[0].remote.address);
}

TEST_F(PoolDatagrams, Probes_AreAnsweredToTheirSocket_OrRefused) {
  auto socket = ProbeSocket::open(*hosts[0]->engine);
  ASSERT_TRUE(socket);
  hosts[1]->engine->set_mad_handler([&](const core::MadDatagram& datagram) {
    core::MadDatagram echo = datagram;
    echo.remote.port = datagram.from_port;
    hosts[1]->engine->send_mad(*hosts[1]->engine->mad_process(echo.remote), echo, false);
  });
  core::MadDatagram probe;
  probe.local = gid_of_host(0);
  probe.remote = {gid_of_host(1), 1};
  (*socket)->send(probe);
  ASSERT_TRUE(until([&] { return progress::is_readable((*socket)->fd()); }));
  int answers = 0;
  (*socket)->receive([&](const core::MadDatagram& datagram) {
    ++answers;
    EXPECT_EQ(gid_of_host(1), datagram.remote.address);
  });
  EXPECT_EQ(1, answers);
  EXPECT_FALSE((*socket)->next_refusal());
  hosts[1]->pool.leave();
  (*socket)->send(probe);
  EXPECT_TRUE(progress::is_readable((*socket)->fd()));
  const auto refusal = (*socket)->next_refusal();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(1, refusal->port);
}

}  // namespace
}  // namespace nupa::pool::test
