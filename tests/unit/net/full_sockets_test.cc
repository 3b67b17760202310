// SPDX-License-Identifier: Apache-2.0
/// Tests of full sockets: which packets wait, which are lost, and in which order queue pairs send.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../roce/engine_fixture.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "cm/connections.h"
#include "net/udp_socket.h"
#include "own_network.h"
#include "transport/roce/datagram_endpoint.h"
#include "transport/roce/endpoint.h"
#include "transport/roce/port/port.h"
#include "transport/roce/wire/wire.h"

namespace nupa::net::own_network_test {
namespace {

constexpr uint32_t kFullBytes = 1400;

class FullSockets : public OwnNetwork {
 protected:
  /// Each socket has room for one message to 10.1.0.77, which open_way() lets out.
  void within_full(const std::function<void()>& body) {
    within({"addr add 10.1.0.1/24 dev a0", "link set a0 gso_max_segs 1",
            "ntable change name arp_cache dev a0 retrans 600000"},
           body);
  }
  static void open_way() {
    EXPECT_EQ(0, std::system("ip neigh replace 10.1.0.77 lladdr 02:00:00:00:00:77 dev a0 nud permanent"));
  }
  static void leave_room_for_one(const UdpSocket& socket) {
    constexpr int kLeast = 1;
    ASSERT_EQ(0, setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &kLeast, sizeof kLeast));
  }

  /// Reads what comes out of a0.
  class Wire {
   public:
    Wire() : fd_(socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_IP))) {
      sockaddr_ll address{};
      address.sll_family = AF_PACKET;
      address.sll_protocol = htons(ETH_P_IP);
      address.sll_ifindex = static_cast<int>(index("a1"));
      EXPECT_EQ(0, bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
    }
    /// The UDP payloads since the last call, of our own datagrams.
    std::vector<std::string> take() {
      constexpr size_t kHeaders = 20 + 8;
      std::vector<std::string> came;
      std::string packet(2048, '\0');
      for (ssize_t length; (length = recv(fd_.get(), packet.data(), packet.size(), 0)) >= 0;)
        if (static_cast<size_t>(length) > kHeaders && packet[9] == IPPROTO_UDP)
          came.push_back(packet.substr(kHeaders, static_cast<size_t>(length) - kHeaders));
      return came;
    }
    /// Until something is there, for a millisecond at most: what is awaited may need the caller's next turn.
    void wait() const {
      pollfd arrived{fd_.get(), POLLIN, 0};
      poll(&arrived, 1, 1);
    }

   private:
    base::UniqueFd fd_;
  };
};

TEST_F(FullSockets, Flush_SocketIsFull_KeepsMessagesAndSendsInOrder) {
  within_full([] {
    const auto from = UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(from);
    leave_room_for_one(*from);
    Wire wire;
    UdpBatch batch;
    UdpBacklog backlog;
    int error = 0;
    constexpr uint64_t kMany = UdpBatch::kMaxMessages;
    std::vector<std::string> texts;
    for (uint64_t i = 0; i < 2 * kMany; ++i) texts.emplace_back(kFullBytes, static_cast<char>('!' + i));
    for (uint64_t i = 0; i < 2 * kMany; ++i) {
      batch.begin(i + 1, at("10.1.0.77"), gid("10.1.0.1"), 0, {}, kFullBytes);
      batch.add(texts[i].data(), kFullBytes / 2);
      batch.add(texts[i].data(), kFullBytes / 2);  // the same bytes again, as another part
      if (batch.has_room(2) && i + 1 != 2 * kMany) continue;
      EXPECT_EQ(0u, batch.flush(*from, &error, &backlog));
    }
    EXPECT_FALSE(backlog.empty());
    uint32_t lost = 0;
    EXPECT_FALSE(backlog.flush(*from, &lost, &error)) << "there is no room";
    std::vector<std::string> sent = texts;
    for (std::string& text : texts) text.assign(kFullBytes, '?');  // the caller's memory is its own again
    open_way();
    // There is room, and others were before.
    sent.emplace_back(kFullBytes, 'z');
    batch.begin(1, at("10.1.0.77"), gid("10.1.0.1"), 0, {}, kFullBytes);
    batch.add(sent.back().data(), kFullBytes);
    EXPECT_EQ(0u, batch.flush(*from, &error, &backlog));
    std::vector<std::string> came;
    for (int waited_ms = 0; came.size() < sent.size() && waited_ms < kSoonMs; ++waited_ms) {
      backlog.flush(*from, &lost, &error);
      for (std::string& text : wire.take()) came.push_back(std::move(text));
      if (came.size() < sent.size()) wire.wait();
    }
    EXPECT_EQ(came, sent);
    EXPECT_TRUE(backlog.empty());
    EXPECT_EQ(0u, lost);
  });
}

TEST_F(FullSockets, Flush_SocketIsFullWithoutABacklog_LosesMessages) {
  within_full([] {
    const auto from = UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(from);
    leave_room_for_one(*from);
    UdpBatch batch;
    const std::string text(kFullBytes, 'x');
    for (uint64_t place = 1; place <= UdpBatch::kMaxMessages; ++place) {
      batch.begin(place, at("10.1.0.77"), gid("10.1.0.1"), 0, {}, kFullBytes);
      batch.add(text.data(), kFullBytes);
    }
    int error = 0;
    EXPECT_GT(batch.flush(*from, &error), UdpBatch::kMaxMessages / 2);
    EXPECT_EQ(EAGAIN, error);
    EXPECT_TRUE(batch.empty());
  });
}

TEST_F(FullSockets, Flush_BacklogIsFull_LosesFurtherMessages) {
  within_full([] {
    const auto from = UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(from);
    leave_room_for_one(*from);
    UdpBacklog backlog;
    UdpBatch batch;
    const std::string text(kFullBytes, 'x');
    int error = 0;
    uint32_t lost = 0;
    uint32_t messages = 0;
    for (; lost == 0 && messages < UdpBacklog::kMostBytes; ++messages) {
      batch.begin(1, at("10.1.0.77"), gid("10.1.0.1"), 0, {}, kFullBytes);
      batch.add(text.data(), kFullBytes);
      lost = batch.flush(*from, &error, &backlog);
    }
    EXPECT_EQ(1u, lost);
    EXPECT_LE(messages, UdpBacklog::kMostBytes / kFullBytes + 8);
  });
}

/// A queue pair whose packets leave to 10.1.0.77, and the port of its process, which has two sockets.
class FullPort : public FullSockets {
 protected:
  static constexpr uint32_t kNumber = shm::number_of(1, 5), kPeer = shm::number_of(2, 7);

  void open_port() {
    auto socket = UdpSocket::open(0, 1 << 18);
    ASSERT_TRUE(socket);
    auto opened = roce::Port::open(std::move(*socket), 2);
    ASSERT_TRUE(opened);
    port = std::move(*opened);
    for (const UdpSocket& each : port->sockets()) leave_room_for_one(each);
    shared.state.store(shm::pack_state(1, QpState::kRts));
    host.identity().shared = &shared;
    host.identity().statistics = &block;
    host.identity().number = kNumber;
    host.identity().cap = {16, 16, 2, 2, 64};
    end.context = &host;
    end.max_datagram = kFullBytes;
  }
  /// The packets that have come out, by their numbers.
  ::testing::AssertionResult psns_come(Wire& wire, const std::vector<uint32_t>& wanted) {
    std::vector<uint32_t> came;
    for (int waited_ms = 0; came.size() < wanted.size() && waited_ms < kSoonMs; ++waited_ms) {
      port->poller().poll();
      for (const std::string& bytes : wire.take())
        came.push_back(roce::name_in(reinterpret_cast<const std::byte*>(bytes.data())).psn);
      if (came.size() < wanted.size()) wire.wait();
    }
    if (came == wanted) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << ::testing::PrintToString(came);
  }
  /// By the second socket.
  bool others_leave() {
    auto far = UdpSocket::open(0, 1 << 16);
    if (!far) return false;
    roce::Destination destination;
    destination.place = 1;
    destination.to = {gid("10.1.0.1"), far->port(), 0};
    destination.from = gid("10.1.0.1");
    destination.socket = 1;
    roce::Packet packet;
    packet.opcode = roce::opcode_of(roce::Service::kRc, roce::Operation::kAcknowledge);
    roce::TransmitBatch* const batch = port->batch();
    batch->aim(&destination);
    const bool taken = batch->send(0, packet, nullptr, 0) == roce::Sent::kYes;
    batch->flush();
    std::byte buffer[128];
    UdpSocket::Received received;
    return taken && far->receive(buffer, sizeof buffer, &received);
  }

  std::unique_ptr<roce::Port> port;
  shm::QpShared shared{};
  shm::StatisticsShared block{};
  roce::test::RecordingHost host;
  roce::LocalEnd end;
};

TEST_F(FullPort, Connection_SocketWasFull_SendsWithoutATimeout) {
  within_full([this] {
    open_port();
    end.rails = {{gid("10.1.0.1"), 0, 50'000, 0}};
    QpAttr attr;
    attr.dest_qp_num = kPeer;
    attr.rq_psn = roce::test::kFirstPsn;
    attr.path_mtu = Mtu::k4096;
    attr.timeout = 22;  // 17 s
    attr.retry_cnt = attr.rnr_retry = 7;
    roce::ConnectedEndpoint endpoint(*port, end, attr, gid("10.1.0.77"), {});
    endpoint.set_attributes(attr);
    endpoint.start(roce::test::kFirstPsn);
    Wire wire;
    const auto post = [&] {
      const Sge sge{roce::test::kBase, 1024, roce::test::kKey};
      SendWr wr;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      endpoint.post({wr, nullptr, nullptr, 0, 1024, 0, WcStatus::kSuccess});
      endpoint.send();
    };
    constexpr uint32_t kMany = 8;
    for (uint32_t i = 0; i < kMany; ++i) post();
    EXPECT_TRUE(others_leave()) << "what leaves by another socket is not held up";
    EXPECT_LE(port->wanted_at(), base::now_ns() + 1'000'000) << "room is looked for soon";
    EXPECT_LE(endpoint.deadline(), base::now_ns() + 1'000'000);
    open_way();
    std::vector<uint32_t> wanted;
    for (uint32_t i = 0; i < kMany; ++i) wanted.push_back(roce::test::kFirstPsn + i);
    EXPECT_TRUE(psns_come(wire, wanted));
    const auto* const shown = reinterpret_cast<const roce::Statistics*>(block.bytes);
    EXPECT_EQ(0u, shown->resent_timeout + shown->resent_selective + shown->resent_sequence);
    endpoint.withdraw();
  });
}

TEST_F(FullPort, QueuePairs_SocketIsFull_SendInTurns) {
  within_full([this] {
    open_port();
    roce::SendBacklog backlog(port->sockets(), [](int64_t) {});
    constexpr int64_t kTime = 1'000'000;
    const int64_t first = backlog.turn(kTime);
    const int64_t second = backlog.turn(kTime);
    EXPECT_GE(first, kTime);
    EXPECT_GT(second, first);
    EXPECT_GT(backlog.turn(kTime), second) << "the first one again";
    EXPECT_EQ(backlog.turn(2 * kTime), 2 * kTime) << "no queue pair waited for a while";

    end.rails = {{gid("10.1.0.1"), 0, 50'000, 0}};
    QpAttr attr;
    attr.dest_qp_num = kPeer;
    attr.path_mtu = Mtu::k4096;
    roce::ConnectedEndpoint endpoint(*port, end, attr, gid("10.1.0.77"), {});
    endpoint.start(roce::test::kFirstPsn);
    const Sge sge{roce::test::kBase, 1024, roce::test::kKey};
    SendWr wr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    int64_t turn = 0;
    for (int i = 0; i < 12; ++i) {
      endpoint.post({wr, nullptr, nullptr, 0, 1024, 0, WcStatus::kSuccess});
      endpoint.send();
      const int64_t before = std::exchange(turn, endpoint.deadline());
      const bool has_come = before <= base::now_ns();
      if (has_come || i < 4) continue;
      EXPECT_EQ(turn, before) << "it stays where it is in line";
    }
    endpoint.withdraw();
  });
}

TEST_F(FullPort, Stop_AnswersWaitForRoom_AreSentAfterTheOthers) {
  within_full([this] {
    open_port();
    end.rails = {{gid("10.1.0.1"), 0, 50'000, 0}};
    host.receives.assign(8, 2048);
    QpAttr attr;
    attr.dest_qp_num = kPeer;
    attr.rq_psn = roce::test::kFirstPsn;
    attr.path_mtu = Mtu::k1024;
    roce::ConnectedEndpoint endpoint(*port, end, attr, gid("10.1.0.77"), {});
    Wire wire;
    // Each answer that leaves takes room, until there is none.
    UdpSocket::Received from;
    from.from = {gid("10.1.0.77"), roce::Port::port_of_slot(2), 0};
    from.to = gid("10.1.0.1");
    constexpr uint32_t kMany = 64;
    const std::vector<std::byte> payload(8);
    host.receives.assign(kMany, 2048);
    for (uint32_t i = 0; i < kMany; ++i) {
      roce::Packet packet;
      packet.opcode = roce::opcode_of(roce::Service::kRc, roce::Operation::kSendOnly);
      packet.dest_qpn = kNumber;
      packet.psn = roce::test::kFirstPsn + i;
      packet.ack_request = true;
      packet.payload = payload.data();
      packet.payload_length = static_cast<uint32_t>(payload.size());
      endpoint.deliver(packet, from, base::now_ns());
      endpoint.transmit(base::now_ns(), *port->batch(), true);
      port->batch()->flush();
    }
    EXPECT_TRUE(endpoint.owes_answers()) << "the socket is full";
    endpoint.stop();
    EXPECT_FALSE(endpoint.owes_answers());
    endpoint.withdraw();
    open_way();
    const uint32_t last = roce::test::kFirstPsn + kMany - 1;
    bool came = false;
    for (int waited_ms = 0; !came && waited_ms < kSoonMs; ++waited_ms) {
      port->poller().poll();
      for (const std::string& bytes : wire.take())
        came = came || roce::name_in(reinterpret_cast<const std::byte*>(bytes.data())).psn == last;
      if (!came) wire.wait();
    }
    EXPECT_TRUE(came);
  });
}

TEST_F(FullPort, Datagram_SocketWasFull_IsSentWhenPostedAgain) {
  within_full([this] {
    open_port();
    host.identity().type = QpType::kUd;
    roce::Sources sources;
    sources.gids = {{gid("10.1.0.1"), 0}};
    roce::DatagramEndpoint endpoint(*port, end, sources, {});
    Wire wire;
    AddressVector vector;
    vector.dgid = gid("10.1.0.77");
    vector.is_global = true;
    const std::string text(1024, 'x');
    const core::Piece piece{reinterpret_cast<std::byte*>(const_cast<char*>(text.data())), text.size()};
    const auto send = [&] {
      SendWr wr;
      wr.remote_qpn = kPeer;
      return endpoint.send({wr, &vector, &piece, 1, text.size(), 0, WcStatus::kSuccess});
    };
    uint32_t sent = 0;
    while (sent < 64 && send()) ++sent;
    ASSERT_LT(sent, 64u) << "the socket is full";
    ASSERT_GT(sent, 0u);
    open_way();
    std::vector<uint32_t> wanted;
    for (uint32_t i = 0; i < sent; ++i) wanted.push_back(i);
    EXPECT_TRUE(psns_come(wire, wanted));
    EXPECT_TRUE(send());
    EXPECT_TRUE(psns_come(wire, {sent})) << "the number of the one that was refused";
    endpoint.withdraw();
  });
}

}  // namespace
}  // namespace nupa::net::own_network_test
