// SPDX-License-Identifier: Apache-2.0
// Which datagrams an rsocket sends between queue pairs and which over UDP, and datagrams that no rsocket sends.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "api_datagrams.h"

using namespace nupa::rsockets_test;
using nupa::rsockets::Op;

namespace {

/// A UD queue pair on the device of the loopback, by hand.
class UdPeer {
 public:
  static constexpr uint32_t kSlots = 64;
  static constexpr uint32_t kSlotBytes = 4096;

  UdPeer() : channel_(rdma_create_event_channel()) {
    sockaddr_in to = loopback(htons(1));
    EXPECT_EQ(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_UDP), 0);
    EXPECT_EQ(rdma_resolve_addr(id_, nullptr, reinterpret_cast<sockaddr*>(&to), kSoonMs), 0);
    take_event(RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(rdma_resolve_route(id_, kSoonMs), 0);
    take_event(RDMA_CM_EVENT_ROUTE_RESOLVED);
    EXPECT_EQ(ibv_query_port(id_->verbs, id_->port_num, &port_), 0);
    cq_ = ibv_create_cq(id_->verbs, 2 * kSlots, nullptr, nullptr, 0);
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq_;
    attr.qp_type = IBV_QPT_UD;
    attr.sq_sig_all = 1;
    attr.cap.max_send_wr = attr.cap.max_recv_wr = kSlots;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    EXPECT_EQ(rdma_create_qp(id_, nullptr, &attr), 0);
    const int access = IBV_ACCESS_LOCAL_WRITE;
    region_ = ibv_reg_mr(id_->pd, memory_.data(), memory_.size(), access);
    EXPECT_NE(region_, nullptr);
    for (uint32_t slot = 1; slot < kSlots; ++slot) post_receive(slot);
    ibv_ah_attr address{};
    address.is_global = 1;
    address.grh.dgid = id_->route.path_rec[0].dgid;
    address.grh.hop_limit = 64;
    address.grh.sgid_index = static_cast<uint8_t>(gid_index());
    address.port_num = id_->port_num;
    address_ = ibv_create_ah(id_->pd, &address);
    EXPECT_NE(address_, nullptr);
  }
  ~UdPeer() {
    ibv_destroy_ah(address_);
    rdma_destroy_qp(id_);
    ibv_dereg_mr(region_);
    ibv_destroy_cq(cq_);
    rdma_destroy_id(id_);
    rdma_destroy_event_channel(channel_);
  }
  UdPeer(const UdPeer&) = delete;
  UdPeer& operator=(const UdPeer&) = delete;

  uint32_t number() const { return id_->qp->qp_num; }
  uint32_t mtu() const { return 128u << port_.active_mtu; }

  /// The payload of the next datagram; nothing: none came in time.
  std::string receive() {
    std::string payload = "nothing came";
    await([&] { return take_received(&payload); });
    return payload;
  }
  void send(uint32_t queue_pair, const std::string& payload) {
    std::memcpy(memory_.data(), payload.data(), payload.size());
    ibv_sge piece{reinterpret_cast<uintptr_t>(memory_.data()), static_cast<uint32_t>(payload.size()), region_->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.wr.ud.ah = address_;
    wr.wr.ud.remote_qpn = queue_pair;
    wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
    ibv_send_wr* bad;
    ASSERT_EQ(ibv_post_send(id_->qp, &wr, &bad), 0);
    ibv_wc wc{};
    ASSERT_TRUE(await([&] { return ibv_poll_cq(cq_, 1, &wc) == 1; }));
    ASSERT_EQ(wc.opcode, IBV_WC_SEND);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  }

 private:
  void take_event(rdma_cm_event_type expected) {
    rdma_cm_event* event = nullptr;
    ASSERT_EQ(rdma_get_cm_event(channel_, &event), 0);
    EXPECT_EQ(event->event, expected);
    rdma_ack_cm_event(event);
  }
  int gid_index() const {
    int first = 0;
    for (int i = port_.gid_tbl_len - 1; i >= 0; --i) {
      ibv_gid_entry entry;
      if (ibv_query_gid_ex(id_->verbs, id_->port_num, static_cast<uint32_t>(i), &entry, 0) != 0) continue;
      if (std::memcmp(&entry.gid, &id_->route.path_rec[0].sgid, sizeof entry.gid) != 0) continue;
      if (entry.gid_type == IBV_GID_TYPE_ROCE_V2) return i;
      first = i;
    }
    return first;
  }
  bool take_received(std::string* payload) {
    ibv_wc wc{};
    if (ibv_poll_cq(cq_, 1, &wc) != 1) return false;
    EXPECT_EQ(wc.opcode, IBV_WC_RECV);
    const char* slot = memory_.data() + wc.wr_id * kSlotBytes;
    payload->assign(slot + sizeof(ibv_grh), slot + wc.byte_len);
    post_receive(static_cast<uint32_t>(wc.wr_id));
    return true;
  }
  void post_receive(uint32_t slot) {
    ibv_sge piece{reinterpret_cast<uintptr_t>(memory_.data()) + slot * kSlotBytes, kSlotBytes, region_->lkey};
    ibv_recv_wr wr{};
    wr.wr_id = slot;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    ibv_recv_wr* bad;
    EXPECT_EQ(ibv_post_recv(id_->qp, &wr, &bad), 0);
  }

  rdma_event_channel* channel_;
  rdma_cm_id* id_ = nullptr;
  ibv_port_attr port_{};
  ibv_cq* cq_ = nullptr;
  ibv_mr* region_ = nullptr;
  ibv_ah* address_ = nullptr;
  std::vector<char> memory_ = std::vector<char>(kSlots * kSlotBytes);  ///< the first slot is for sending
};

/// Looks at completion queues: the next one finds nothing, and sends that later ones find are counted.
class FirstLookFindsNothing {
 public:
  FirstLookFindsNothing() : devices_(rdma_get_devices(nullptr)) {
    sent_ = 0;
    first_ = true;
    for (ibv_context** device = devices_; *device != nullptr; ++device)
      real_ = std::exchange((*device)->ops.poll_cq, poll);
  }
  ~FirstLookFindsNothing() {
    for (ibv_context** device = devices_; *device != nullptr; ++device) (*device)->ops.poll_cq = real_;
    rdma_free_devices(devices_);
  }
  FirstLookFindsNothing(const FirstLookFindsNothing&) = delete;
  FirstLookFindsNothing& operator=(const FirstLookFindsNothing&) = delete;

  static int sent() { return sent_; }

 private:
  static int poll(ibv_cq* cq, int count, ibv_wc* completions) {
    if (std::exchange(first_, false)) return 0;
    const int found = real_(cq, count, completions);
    for (int i = 0; i < found; ++i) sent_ += completions[i].opcode == IBV_WC_SEND ? 1 : 0;
    return found;
  }

  static inline int (*real_)(ibv_cq*, int, ibv_wc*) = nullptr;
  static inline bool first_ = false;
  static inline int sent_ = 0;
  ibv_context** devices_;
};

class DatagramsPeer : public Datagrams {
 protected:
  void SetUp() override {
    Datagrams::SetUp();
    open_udp();
  }
  /// The next datagram that the UDP socket has; nothing: there is none now.
  std::optional<std::string> by_udp_now() {
    char bytes[4096];
    const ssize_t count = recv(udp.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (count < 0) return std::nullopt;
    return std::string(bytes, static_cast<size_t>(count));
  }
  /// The queue pair that the rsocket `one` says in its first datagram to the UDP socket.
  uint32_t number_of_one() {
    EXPECT_EQ(send(one, udp, "first"), 0);
    const auto first = by_udp_now();
    if (!first || first->size() != 16 + 5) {
      ADD_FAILURE() << "the first datagram does not go over UDP";
      return 0;
    }
    UdpHeader header{};
    std::memcpy(&header, first->data(), 16);
    return be32toh(header.qpn);
  }
  /// Says the number of a queue pair to the rsocket `one`.
  void send_number(uint32_t number) {
    send_by_udp(one, Op::kControl, "", [&](UdpHeader& header) { header.qpn = htobe32(number); });
  }
  /// A datagram between queue pairs as it is on the wire.
  static std::string datagram(const sockaddr_in& from, const std::string& text, uint8_t version = 4,
                              uint8_t length = 8) {
    DatagramHeader header{};
    header.version = version;
    header.length = length;
    header.port = from.sin_port;
    header.addr.ipv4 = from.sin_addr.s_addr;
    return std::string(reinterpret_cast<const char*>(&header), 8) + text;
  }

  /// So many addresses that nobody sent from yet say the number of a queue pair to the rsocket `one`.
  void add_unknown_peers(uint32_t count) {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    const End silent = [] {
      End end;
      end.fd = socket(AF_INET, SOCK_DGRAM, 0);
      end.address = loopback(0);
      socklen_t length = sizeof end.address;
      EXPECT_EQ(bind(end.fd, as_sockaddr(end.address), sizeof end.address), 0);
      EXPECT_EQ(getsockname(end.fd, reinterpret_cast<sockaddr*>(&end.address), &length), 0);
      return end;
    }();
    constexpr uint32_t kTogether = 32;  // fewer than the kernel's buffer holds
    for (uint32_t i = 1; i <= count; ++i) {
      send_from(fd, INADDR_LOOPBACK + i);
      // A send to a peer whose queue pair is not known looks at what has come.
      if (i % kTogether == 0 || i == count) {
        ASSERT_EQ(send(one, silent, "x"), 0);
      }
    }
    close(fd);
    close(silent.fd);
  }
  void send_from(int fd, in_addr_t source) {
    UdpHeader header{};
    header.tag = htobe32(nupa::rsockets::kUdpTag);
    header.version = 4;
    header.op = static_cast<uint8_t>(Op::kControl);
    header.length = nupa::rsockets::kUdpHeaderV4;
    header.qpn = htobe32(0x77);
    iovec piece{&header, nupa::rsockets::kUdpHeaderV4};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(in_pktinfo))] = {};
    msghdr message{};
    message.msg_name = &one.address;
    message.msg_namelen = sizeof one.address;
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const first = CMSG_FIRSTHDR(&message);
    first->cmsg_level = IPPROTO_IP;
    first->cmsg_type = IP_PKTINFO;
    first->cmsg_len = CMSG_LEN(sizeof(in_pktinfo));
    in_pktinfo info{};
    info.ipi_spec_dst.s_addr = htonl(source);
    std::memcpy(CMSG_DATA(first), &info, sizeof info);
    ASSERT_EQ(sendmsg(fd, &message, 0), static_cast<ssize_t>(piece.iov_len)) << std::strerror(errno);
  }

  static constexpr uint32_t kMostPeers = 16384;  ///< that an rsocket knows at once

  UdPeer peer;
  uint32_t number_of_two = 0;
};

}  // namespace

TEST_F(DatagramsPeer, Send_AfterThePeersNumberArrived_GoesToItsQueuePair) {
  ASSERT_NE(number_of_one(), 0u);
  send_number(peer.number());
  ASSERT_EQ(send(one, udp, "second"), 0);
  EXPECT_FALSE(by_udp_now().has_value());
  EXPECT_EQ(peer.receive(), datagram(one.address, "second"));
}

TEST_F(DatagramsPeer, Send_AfterTwoNumbersArrived_GoesToTheLastOne) {
  ASSERT_NE(number_of_one(), 0u);
  send_number(0x77);
  ASSERT_EQ(send(one, udp, "to nobody"), 0);
  EXPECT_FALSE(by_udp_now().has_value());
  // A number has 24 bits, whatever the rest says.
  const uint32_t number = peer.number() | 0xab000000;
  send_by_udp(one, Op::kData, "question", [&](UdpHeader& header) { header.qpn = htobe32(number); });
  ASSERT_EQ(receive(one), "question");
  EXPECT_TRUE(by_udp_now().has_value()) << "its answer";
  ASSERT_EQ(send(one, udp, "third"), 0);
  EXPECT_FALSE(by_udp_now().has_value());
  EXPECT_EQ(peer.receive(), datagram(one.address, "third"));
}

TEST_F(DatagramsPeer, Send_LargerThanThePathMtu_GoesOverUdp) {
  ASSERT_NE(number_of_one(), 0u);
  send_number(peer.number());
  const size_t most = std::min<size_t>(peer.mtu(), 2048) - 8;
  const std::string longest(most, 'x');
  ASSERT_EQ(send(one, udp, longest), 0);
  EXPECT_EQ(peer.receive(), datagram(one.address, longest));
  const std::string longer(most + 1, 'y');
  if (longer.size() > kMostByUdp) {
    EXPECT_EQ(send(one, udp, longer), EMSGSIZE);
    return;
  }
  ASSERT_EQ(send(one, udp, longer), 0);
  const auto got = by_udp_now();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->substr(16), longer);
}

TEST_F(DatagramsPeer, WrongHeaders_BetweenQueuePairs_AreDroppedAndTakeNoRoom) {
  ASSERT_EQ(set_number(one.fd, SOL_RDMA, RDMA_RQSIZE, 4), 0);
  const uint32_t to = number_of_one();
  const sockaddr_in from = two.address;
  for (int round = 0; round < 4; ++round) {
    for (const std::string& wrong :
         {datagram(from, "x", 5), datagram(from, "x", 4, 7), datagram(from, std::string(16, 'x'), 4, 24),
          datagram(from, "x", 6, 24), datagram(from, "").substr(0, 7)}) {
      peer.send(to, wrong);
      peer.send(to, datagram(from, "good"));
      sockaddr_in source{};
      ASSERT_EQ(receive(one, &source), "good") << round;
      EXPECT_EQ(source.sin_port, from.sin_port);
      EXPECT_EQ(source.sin_addr.s_addr, from.sin_addr.s_addr);
    }
  }
  peer.send(to, datagram(from, ""));
  ASSERT_EQ(receive(one), "") << "a header alone is a datagram of nothing";
}

TEST_F(DatagramsPeer, ConnectedRsocket_DatagramsOfOthers_AreDroppedAndTakeNoRoom) {
  ASSERT_EQ(set_number(one.fd, SOL_RDMA, RDMA_RQSIZE, 4), 0);
  const uint32_t to = number_of_one();
  ASSERT_EQ(rconnect(one.fd, as_sockaddr(two.address), sizeof two.address), 0);
  for (int round = 0; round < 8; ++round) {
    peer.send(to, datagram(udp.address, "not for you"));
    peer.send(to, datagram(two.address, "for you"));
    ASSERT_EQ(receive(one), "for you") << round;
  }
}

TEST_F(DatagramsPeer, Receive_MoreThanBufferAndQueueHold_KeepsThatMany) {
  constexpr int kHeld = 4;
  constexpr int kBytes = 2048;
  for (const bool by_buffer : {true, false}) {
    rclose(one.fd);
    one = open();
    if (by_buffer) {
      ASSERT_EQ(set_number(one.fd, SOL_SOCKET, SO_RCVBUF, kHeld * kBytes / 2), 0);
    } else {
      ASSERT_EQ(set_number(one.fd, SOL_RDMA, RDMA_RQSIZE, kHeld), 0);
    }
    const uint32_t to = number_of_one();
    for (int i = 0; i < kHeld + 4; ++i) peer.send(to, datagram(two.address, std::to_string(i)));
    // What comes to another rsocket comes later.
    ASSERT_EQ(send(two, udp, "x"), 0);
    const auto said = by_udp_now();
    ASSERT_TRUE(said.has_value());
    UdpHeader header{};
    std::memcpy(&header, said->data(), 16);
    peer.send(be32toh(header.qpn), datagram(one.address, "later"));
    ASSERT_EQ(receive(two), "later");
    for (int i = 0; i < kHeld; ++i) ASSERT_EQ(receive(one), std::to_string(i));
    EXPECT_EQ(receive_error(one), EAGAIN);
  }
}

TEST_F(DatagramsPeer, Connect_WaitingDatagrams_OnlyThePeersAreKept) {
  send_by_udp(one, Op::kData, "early");
  ASSERT_EQ(send(two, one, "for you"), 0);
  ASSERT_EQ(rconnect(one.fd, as_sockaddr(two.address), sizeof two.address), 0);
  EXPECT_EQ(receive(one), "for you");
  EXPECT_EQ(receive_error(one), EAGAIN);
}

TEST(DatagramsPeerOfIPv6, HeaderCutShort_IsDropped) {
  const int six = rsocket(AF_INET6, SOCK_DGRAM, 0), udp = socket(AF_INET6, SOCK_DGRAM, 0);
  sockaddr_in6 ends[2] = {};
  for (sockaddr_in6& end : ends) {
    end.sin6_family = AF_INET6;
    end.sin6_addr = in6addr_loopback;
  }
  auto* const at = reinterpret_cast<sockaddr*>(&ends[0]);
  auto* const from = reinterpret_cast<sockaddr*>(&ends[1]);
  socklen_t length = sizeof ends[0];
  ASSERT_EQ(rbind(six, at, length), 0) << std::strerror(errno);
  ASSERT_EQ(bind(udp, from, length), 0);
  ASSERT_EQ(rgetsockname(six, at, &length), 0);
  ASSERT_EQ(getsockname(udp, from, &length), 0);
  UdpHeader header{};
  header.tag = htobe32(nupa::rsockets::kUdpTag);
  header.version = 6;
  header.op = static_cast<uint8_t>(Op::kControl);
  header.length = nupa::rsockets::kUdpHeaderV6;
  header.qpn = htobe32(0x77);
  const auto goes_over_udp = [&](size_t bytes) {
    EXPECT_EQ(sendto(udp, &header, bytes, 0, at, length), static_cast<ssize_t>(bytes));
    EXPECT_EQ(rsendto(six, "x", 1, 0, from, length), 1);
    char room[64];
    return recv(udp, room, sizeof room, MSG_DONTWAIT) == nupa::rsockets::kUdpHeaderV6 + 1;
  };
  EXPECT_TRUE(goes_over_udp(sizeof header - 1));
  header.version = 4;
  EXPECT_TRUE(goes_over_udp(sizeof header));
  header.length = nupa::rsockets::kUdpHeaderV4;
  EXPECT_TRUE(goes_over_udp(sizeof header)) << "a header of IPv4 from an IPv6 address";
  header.version = 6;
  header.length = nupa::rsockets::kUdpHeaderV6;
  EXPECT_FALSE(goes_over_udp(sizeof header));
  rclose(six);
  close(udp);
}

TEST_F(DatagramsPeer, Close_WithADatagramUnderWay_WaitsUntilItIsSent) {
  meet(one, two);
  EXPECT_EQ(receive_error(one), EAGAIN) << "it has polled its completed sends";
  ASSERT_EQ(send(one, two, "last"), 0);
  const FirstLookFindsNothing looks;
  EXPECT_EQ(rclose(std::exchange(one.fd, -1)), 0);
  EXPECT_GE(looks.sent(), 1) << "it does not wait for the queue pair";
  EXPECT_EQ(receive(two), "last");
}

TEST_F(DatagramsPeer, Send_ToSeveralPeers_UsesOneQueuePair) {
  const uint32_t number = number_of_one();
  const int before = udp.fd;
  open_udp();
  EXPECT_EQ(number_of_one(), number);
  close(before);
}

TEST_F(DatagramsPeer, UnknownPeers_MoreThanTheLimit_TheFirstIsRemoved) {
  send_number(peer.number());
  add_unknown_peers(kMostPeers);
  ASSERT_EQ(send(one, udp, "by UDP"), 0);
  const auto first = by_udp_now();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->substr(16), "by UDP");
  send_number(peer.number());
  ASSERT_EQ(send(one, udp, "known again"), 0);
  EXPECT_EQ(peer.receive(), datagram(one.address, "known again"));
}

TEST_F(DatagramsPeer, UnknownPeers_MoreThanTheLimit_PeersOfTheProgramStay) {
  ASSERT_NE(number_of_one(), 0u);
  send_number(peer.number());
  ASSERT_EQ(send(one, udp, "before"), 0);
  ASSERT_EQ(peer.receive(), datagram(one.address, "before"));
  add_unknown_peers(kMostPeers + 1);
  ASSERT_EQ(send(one, udp, "after"), 0);
  EXPECT_FALSE(by_udp_now().has_value());
  EXPECT_EQ(peer.receive(), datagram(one.address, "after"));
}
