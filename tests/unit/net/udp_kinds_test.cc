// SPDX-License-Identifier: Apache-2.0
/// Tests of each kind of UDP socket: opening, errors, refusals, and a kernel without IPv6.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "net/udp_socket.h"
#include "udp_sockets.h"

namespace nupa::net::batch_test {
namespace {

Gid group(uint8_t last) {
  Gid gid = host(last);
  gid.raw[12] = 239;
  return gid;
}

GidEntry at_loopback(const Gid& gid) {
  GidEntry entry{};
  entry.gid = gid;
  entry.interface_index = 1;  // the kernel gives the loopback interface this one
  return entry;
}

int option(const UdpSocket& socket, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  return getsockopt(socket.fd(), level, name, &value, &length) == 0 ? value : -1;
}

// Sockets.

/// One of each kind, at one port.
class UdpSocketKinds : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(any_);
    made_.push_back(UdpSocket::open_address(host(1), any_->port(), kRoom));
    made_.push_back(UdpSocket::open_group(group(5), any_->port(), {at_loopback(host(1))}, kRoom));
    for (const auto& socket : made_) ASSERT_TRUE(socket) << socket.error().what();
  }
  std::vector<const UdpSocket*> all() const { return {&*any_, &*made_[0], &*made_[1]}; }
  const UdpSocket& of_group() const { return *made_[1]; }

  Result<UdpSocket> any_ = UdpSocket::open(0, kRoom);
  std::vector<Result<UdpSocket>> made_;
};

TEST_F(UdpSocketKinds, Open_EachKind_IsNonblockingAndCloseOnExec) {
  for (const UdpSocket* socket : all()) {
    EXPECT_NE(0, fcntl(socket->fd(), F_GETFD) & FD_CLOEXEC);
    EXPECT_NE(0, fcntl(socket->fd(), F_GETFL) & O_NONBLOCK);
  }
}

TEST_F(UdpSocketKinds, Open_EachKind_ForbidsFragmentation) {
  for (const UdpSocket* socket : all()) {
    EXPECT_EQ(IP_PMTUDISC_DO, option(*socket, IPPROTO_IP, IP_MTU_DISCOVER));
    if (!socket->is_dual()) continue;
    EXPECT_EQ(IPV6_PMTUDISC_DO, option(*socket, IPPROTO_IPV6, IPV6_MTU_DISCOVER));
  }
}

TEST_F(UdpSocketKinds, Receive_DatagramOfAGroupThatOthersJoined_IsNotReceived) {
  constexpr int kIpv6MulticastAll = 29;  // IPV6_MULTICAST_ALL, Linux 4.20
  for (const UdpSocket* socket : all()) {
    EXPECT_EQ(0, option(*socket, IPPROTO_IP, IP_MULTICAST_ALL));
    if (!socket->is_dual()) continue;
    EXPECT_EQ(0, option(*socket, IPPROTO_IPV6, kIpv6MulticastAll));
  }
  const auto sender = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(sender);
  UdpBatch batch;
  for (const uint8_t last : {5, 6}) {
    batch.begin(last, {group(last), any_->port(), 0}, host(1), 1, {}, 5);
    batch.add("group", 5);
  }
  int error = 0;
  ASSERT_EQ(0u, batch.flush(*sender, &error)) << strerror(error);
  const Datagram taken = take_from(of_group());
  EXPECT_EQ("group", taken.bytes);
  EXPECT_EQ(group(5), taken.received.to);
  EXPECT_EQ(host(1), taken.received.from.address);
  EXPECT_NE(0, taken.received.hop_limit) << "receivers of groups ask for it";
  for (const UdpSocket* socket : all()) EXPECT_TRUE(has_nothing(*socket));
}

TEST_F(UdpSocketKinds, Open_ForAnAddressOrAGroup_IsOfThatFamily) {
  EXPECT_TRUE(any_->is_dual() || !has_ipv6_loopback());
  EXPECT_FALSE(made_[0]->is_dual());
  EXPECT_FALSE(made_[1]->is_dual());
  EXPECT_TRUE(made_[0]->has_address());
  EXPECT_FALSE(any_->has_address());
  if (!has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
  const auto six = UdpSocket::open_address(host6(), any_->port(), kRoom);
  ASSERT_TRUE(six) << six.error().what();
  EXPECT_TRUE(six->is_dual());
}

TEST_F(UdpSocketKinds, SetGroupLoop_EachValue_IsSet) {
  for (const bool loop : {false, true}) {
    any_->set_group_loop(loop);
    EXPECT_EQ(loop, option(*any_, IPPROTO_IP, IP_MULTICAST_LOOP));
    if (!any_->is_dual()) continue;
    EXPECT_EQ(loop, option(*any_, IPPROTO_IPV6, IPV6_MULTICAST_LOOP));
  }
}

TEST(UdpSocketOpen, Open_PortInUse_FailsWithEaddrinuse) {
  const auto first = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(first);
  EXPECT_NE(0, first->port());
  const auto second = UdpSocket::open(first->port(), kRoom);
  ASSERT_FALSE(second);
  EXPECT_EQ(EADDRINUSE, second.error().code());
  EXPECT_EQ("cannot bind UDP port " + std::to_string(first->port()) + ": Address already in use",
            second.error().what());
  auto chosen = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(chosen);
  const uint16_t port = chosen->port();
  chosen->close();
  const auto again = UdpSocket::open(port, kRoom);
  ASSERT_TRUE(again) << again.error().what();
  EXPECT_EQ(port, again->port());
}

TEST(UdpSocketOpen, Open_BufferSize_IsWhatTheKernelGrants) {
  for (const uint32_t wanted : {uint32_t{1} << 14, uint32_t{1} << 15, uint32_t{1} << 16}) {  // any user may
    const auto socket = UdpSocket::open(0, wanted);
    ASSERT_TRUE(socket);
    EXPECT_GE(socket->buffer_bytes(), wanted);
    EXPECT_EQ(socket->buffer_bytes(), static_cast<uint32_t>(option(*socket, SOL_SOCKET, SO_RCVBUF)));
    EXPECT_GE(option(*socket, SOL_SOCKET, SO_SNDBUF), static_cast<int>(wanted));
    EXPECT_LT(option(*socket, SOL_SOCKET, SO_SNDBUF), static_cast<int>(4 * wanted));
    EXPECT_LT(socket->buffer_bytes(), 4 * wanted);
  }
}

TEST(UdpSocketOpen, OpenGroup_NoInterfaceJoins_Fails) {
  const auto error = [](const std::vector<GidEntry>& at) {
    const auto socket = UdpSocket::open_group(group(9), 0, at, kRoom);
    return socket ? 0 : socket.error().code();
  };
  EXPECT_EQ(EADDRNOTAVAIL, error({}));
  EXPECT_EQ(EADDRNOTAVAIL, error({at_loopback(host6())})) << "another family's";
  GidEntry gone = at_loopback(host(1));
  gone.interface_index = 0x7ffffff0;
  EXPECT_EQ(ENODEV, error({gone}));
  EXPECT_EQ(0, error({gone, at_loopback(host6()), at_loopback(host(1))})) << "one is enough";
  EXPECT_EQ(0, error({at_loopback(host(1)), gone}));
  EXPECT_EQ(0, error({at_loopback(host(1)), at_loopback(host(2))})) << "two addresses of an interface";
}

TEST(UdpSocketOpen, OpenGroup_OfLinkScope_IsBoundToItsInterface) {
  if (!has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
  const auto group_of = [](uint8_t flags_and_scope) {
    Gid gid = host6();
    gid.raw[0] = 0xff;
    gid.raw[1] = flags_and_scope;
    return gid;
  };
  for (const uint8_t bytes : {0x01, 0x11, 0x02, 0x12, 0x05, 0x15, 0x0e, 0x1e}) {
    const auto socket = UdpSocket::open_group(group_of(bytes), 0, {at_loopback(host6())}, kRoom);
    ASSERT_TRUE(socket) << int{bytes} << ": " << socket.error().what();
    sockaddr_in6 name{};
    socklen_t length = sizeof name;
    ASSERT_EQ(0, getsockname(socket->fd(), reinterpret_cast<sockaddr*>(&name), &length));
    EXPECT_EQ((bytes & 0xf) <= 2 ? 1u : 0u, name.sin6_scope_id) << int{bytes};
    EXPECT_EQ(is_of_one_link(group_of(bytes)), (bytes & 0xf) <= 2) << int{bytes};
  }
  EXPECT_FALSE(is_of_one_link(group(5)));
  EXPECT_FALSE(is_of_one_link(host6()));
}

TEST(UdpSocketReceive, Receive_EmptyDatagram_IsSkipped) {
  const auto from = UdpSocket::open(0, kRoom), to = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(from && to);
  UdpBatch batch;
  for (const std::string_view text : {"", "x"}) {
    batch.begin(text.size(), {host(1), to->port(), 0}, host(1), 0, {}, static_cast<uint32_t>(text.size()));
    batch.add(text.data(), static_cast<uint32_t>(text.size()));
  }
  int error = 0;
  ASSERT_EQ(0u, batch.flush(*from, &error));
  std::array<std::byte, 16> buffer;
  UdpSocket::Received received;
  EXPECT_FALSE(to->receive(buffer.data(), buffer.size(), &received));
  EXPECT_EQ("x", take_from(*to).bytes);
  EXPECT_FALSE(to->receive(buffer.data(), buffer.size(), &received)) << "and waits for none";
}

TEST(UdpSocketReceive, Receive_DatagramLongerThanTheBuffer_IsTruncated) {
  const auto from = UdpSocket::open(0, kRoom), to = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(from && to);
  UdpBatch batch;
  batch.begin(1, {host(1), to->port(), 0}, host(1), 0, {}, 10);
  batch.add("0123456789", 10);
  int error = 0;
  ASSERT_EQ(0u, batch.flush(*from, &error));
  std::array<std::byte, 16> buffer{};
  UdpSocket::Received received;
  ASSERT_TRUE(to->receive(buffer.data(), 4, &received));
  EXPECT_EQ(4u, received.length);
  EXPECT_LE(received.segment, 10u);
  EXPECT_EQ(std::byte{'3'}, buffer[3]);
  EXPECT_EQ(std::byte{0}, buffer[4]);
  EXPECT_TRUE(has_nothing(*to)) << "the rest of it is gone";
}

// A kernel without IPv6, which the tests play: a thread that may make no such socket.

bool forget_ipv6() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),  // the lower half
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog all{static_cast<unsigned short>(std::size(program)), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0;
}

class UdpWithoutIpv6 : public ::testing::Test {
 protected:
  /// Both sockets are made where there is no IPv6.
  void SetUp() override {
    bool forgot = false;
    std::thread thread([&] {
      forgot = forget_ipv6();
      if (!forgot) return;
      from_ = UdpSocket::open(0, kRoom);
      to_ = UdpSocket::open(0, kRoom);
    });
    thread.join();
    if (!forgot) GTEST_SKIP() << "system calls cannot be forbidden";
    ASSERT_TRUE(from_) << from_.error().what();
    ASSERT_TRUE(to_) << to_.error().what();
  }
  Datagram pass(const Gid& to, const Gid& from, const IpFields& fields = {}) {
    UdpBatch batch;
    batch.begin(1, {to, to_->port(), 0}, from, 1, fields, 4);
    batch.add("four", 4);
    int error = 0;
    EXPECT_EQ(0u, batch.flush(*from_, &error)) << strerror(error);
    return take_from(*to_);
  }
  Result<UdpSocket> from_ = fail(0, ""), to_ = fail(0, "");
};

TEST_F(UdpWithoutIpv6, Open_WithoutIpv6_IsAnIpv4Socket) {
  for (const auto* socket : {&from_, &to_}) {
    EXPECT_FALSE((*socket)->is_dual());
    EXPECT_NE(0, (*socket)->port());
    EXPECT_NE(0, fcntl((*socket)->fd(), F_GETFD) & FD_CLOEXEC);
    EXPECT_NE(0, fcntl((*socket)->fd(), F_GETFL) & O_NONBLOCK);
    EXPECT_EQ(IP_PMTUDISC_DO, option(**socket, IPPROTO_IP, IP_MTU_DISCOVER));
  }
  const auto taken = UdpSocket::open(from_->port(), kRoom);
  EXPECT_FALSE(taken) << "the port is taken for both families";
}

TEST_F(UdpWithoutIpv6, Receive_WithoutIpv6_HasAddressesAndFields) {
  to_->report_more();
  for (const uint8_t last : {3, 4}) {
    const Datagram taken = pass(host(last), host(static_cast<uint8_t>(last + 10)), {0x40, last, 0x123});
    EXPECT_EQ("four", taken.bytes);
    EXPECT_EQ(host(static_cast<uint8_t>(last + 10)), taken.received.from.address);
    EXPECT_EQ(from_->port(), taken.received.from.port);
    EXPECT_EQ(host(last), taken.received.to);
    EXPECT_EQ(0x40 | kEct0, taken.received.traffic_class);
    EXPECT_EQ(last, taken.received.hop_limit);
    EXPECT_EQ(0u, taken.received.flow_label) << "IPv4 has none";
  }
}

TEST_F(UdpWithoutIpv6, NextRefusal_WithoutIpv6_IsReported) {
  from_->report_refusals();
  const uint16_t port = to_->port();
  to_->close();
  UdpBatch batch;
  batch.begin(1, {host(1), port, 0}, host(1), 0, {}, 4);
  batch.add("lost", 4);
  int error = 0;
  EXPECT_EQ(0u, batch.flush(*from_, &error));
  pollfd ready_error{from_->fd(), 0, 0};
  ASSERT_EQ(1, poll(&ready_error, 1, kSoonMs));
  UdpSocket::Refusal refusal;
  ASSERT_TRUE(from_->next_refusal(&refusal));
  EXPECT_EQ(host(1), refusal.to.address);
  EXPECT_EQ(port, refusal.to.port);
}

// Refusals: what the host of a port that nobody has says.

class UdpRefusals : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(socket_);
    auto gone = UdpSocket::open(0, kRoom);
    ASSERT_TRUE(gone);
    port_ = gone->port();
  }
  void send_to(const Gid& gid, const Gid& from) {
    UdpBatch batch;
    batch.begin(1, {gid, port_, 0}, from, 0, {}, 4);
    batch.add("lost", 4);
    int error = 0;
    EXPECT_EQ(0u, batch.flush(*socket_, &error)) << strerror(error);
  }
  static std::string quoted(const UdpSocket::Refusal& refusal) {
    return {reinterpret_cast<const char*>(refusal.quoted.data()), refusal.quoted_length};
  }
  void wait_for_error() const {
    pollfd ready_error{socket_->fd(), 0, 0};
    ASSERT_EQ(1, poll(&ready_error, 1, HasFailure() ? 0 : kSoonMs));
  }
  Result<UdpSocket> socket_ = UdpSocket::open(0, kRoom);
  uint16_t port_ = 0;
};

TEST_F(UdpRefusals, NextRefusal_AfterReportRefusals_IsReported) {
  UdpSocket::Refusal refusal;
  send_to(host(1), host(1));
  EXPECT_FALSE(socket_->next_refusal(&refusal)) << "reports are off";
  socket_->report_refusals();
  send_to(host(1), host(1));
  wait_for_error();
  ASSERT_TRUE(socket_->next_refusal(&refusal));
  EXPECT_EQ(host(1), refusal.to.address);
  EXPECT_EQ(port_, refusal.to.port);
  EXPECT_EQ("lost", quoted(refusal));
  EXPECT_FALSE(socket_->next_refusal(&refusal));
  if (!has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
  send_to(host6(), host6());
  wait_for_error();
  ASSERT_TRUE(socket_->next_refusal(&refusal));
  EXPECT_EQ(host6(), refusal.to.address);
  EXPECT_EQ(port_, refusal.to.port);
  EXPECT_EQ("lost", quoted(refusal));
}

TEST_F(UdpRefusals, Send_AfterARefusal_Leaves) {
  auto there = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(there);
  socket_->report_refusals();
  send_to(host(1), host(1));
  wait_for_error();
  port_ = there->port();
  send_to(host(1), host(1));
  pollfd came{there->fd(), POLLIN, 0};
  EXPECT_EQ(1, poll(&came, 1, kSoonMs)) << "it has not left";
}

TEST_F(UdpRefusals, NextRefusal_SocketOfOneFamily_IsReported) {
  auto own = UdpSocket::open_address(host(1), socket_->port(), kRoom);
  ASSERT_TRUE(own);
  own->report_refusals();
  ASSERT_TRUE(own->lead_to({host(1), port_, 0}));
  UdpBatch batch;
  batch.begin(1, {host(1), port_, 0}, host(1), 0, {}, 4);
  batch.add("lost", 4);
  int error = 0;
  EXPECT_EQ(0u, batch.flush(*own, &error));
  pollfd ready_error{own->fd(), 0, 0};
  ASSERT_EQ(1, poll(&ready_error, 1, kSoonMs));
  UdpSocket::Refusal refusal;
  ASSERT_TRUE(own->next_refusal(&refusal));
  EXPECT_EQ(host(1), refusal.to.address);
  EXPECT_EQ(port_, refusal.to.port);
}

// Sockets that lead somewhere.

TEST(UdpSocketLeads, LeadTo_UnreachableAddress_Fails) {
  const auto any = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(any);
  auto own = UdpSocket::open_address(host(1), any->port(), kRoom);
  ASSERT_TRUE(own);
  Gid broadcast = host(255);
  for (size_t i = 12; i < 16; ++i) broadcast.raw[i] = 255;
  const auto led = own->lead_to({broadcast, 9, 0});
  ASSERT_FALSE(led);
  EXPECT_NE(0, led.error().code());
  EXPECT_FALSE(own->leads_somewhere());
  ASSERT_TRUE(own->lead_to({host(1), any->port(), 0}));
  EXPECT_TRUE(own->leads_somewhere());
}

TEST(UdpSocketLeads, LearnIdentification_Afterwards_LeavesNoCopies) {
  const auto any = UdpSocket::open(0, kRoom);
  auto peer = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(any && peer);
  auto own = UdpSocket::open_address(host(1), any->port(), kRoom);
  ASSERT_TRUE(own && own->lead_to({host(1), peer->port(), 0}));
  const auto first = own->learn_identification();
  if (!first) GTEST_SKIP() << first.error().what() << " (net.core.tstamp_allow_data)";
  const auto send = [&] {
    UdpBatch batch;
    batch.begin(1, {}, host(1), 0, {}, 4);
    batch.add("next", 4);
    int error = 0;
    EXPECT_EQ(0u, batch.flush(*own, &error)) << strerror(error);
  };
  const auto has_error = [&] {
    pollfd ready_error{own->fd(), 0, 0};
    return poll(&ready_error, 1, 0) != 0;
  };
  send();
  EXPECT_FALSE(has_error()) << "of later messages there are no copies";
  // An earlier message's refusal is not this one's failure.
  const uint16_t port = peer->port();
  peer->close();
  send();
  pollfd ready_error{own->fd(), 0, 0};
  ASSERT_EQ(1, poll(&ready_error, 1, kSoonMs));
  peer = UdpSocket::open(port, kRoom);
  ASSERT_TRUE(peer);
  const auto second = own->learn_identification();
  ASSERT_TRUE(second) << second.error().what();
  EXPECT_EQ(static_cast<uint16_t>(*first + 3), *second) << "two messages, and its own";
  EXPECT_FALSE(has_error());
}

constexpr uint32_t kCopies = 1u << 4 | 1u << 8;  // SOF_TIMESTAMPING_SOFTWARE, SOF_TIMESTAMPING_TX_SCHED

/// The IPv4 identification of the oldest message whose copy the kernel has; -1: it has none.
int identification_of_copy(const UdpSocket& socket, size_t payload) {
  std::array<uint8_t, 256> copy;
  const ssize_t length = recv(socket.fd(), copy.data(), copy.size(), MSG_ERRQUEUE | MSG_DONTWAIT);
  const ssize_t ip = length - static_cast<ssize_t>(payload) - 8 - 20;  // before it are the link's headers
  if (ip < 0 || copy[static_cast<size_t>(ip)] != 0x45) return -1;
  return copy[static_cast<size_t>(ip) + 4] << 8 | copy[static_cast<size_t>(ip) + 5];
}

TEST(UdpSocketLeads, LearnIdentification_Value_IsThatOfTheNextMessage) {
  const auto any = UdpSocket::open(0, kRoom), peer = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(any && peer);
  auto own = UdpSocket::open_address(host(1), any->port(), kRoom);
  ASSERT_TRUE(own && own->lead_to({host(1), peer->port(), 0}));
  const auto next = own->learn_identification();
  if (!next) GTEST_SKIP() << next.error().what() << " (net.core.tstamp_allow_data)";
  ASSERT_EQ(0, setsockopt(own->fd(), SOL_SOCKET, SO_TIMESTAMPING, &kCopies, sizeof kCopies));
  ASSERT_EQ(4, ::send(own->fd(), "next", 4, MSG_DONTWAIT));
  pollfd ready_error{own->fd(), 0, 0};
  ASSERT_EQ(1, poll(&ready_error, 1, kSoonMs));
  EXPECT_EQ(*next, identification_of_copy(*own, 4));
}

TEST(UdpSocketLeads, LearnIdentification_LateCopy_IsDiscarded) {
  const auto any = UdpSocket::open(0, kRoom), peer = UdpSocket::open(0, kRoom);
  ASSERT_TRUE(any && peer);
  auto own = UdpSocket::open_address(host(1), any->port(), kRoom);
  ASSERT_TRUE(own && own->lead_to({host(1), peer->port(), 0}));
  if (!own->learn_identification()) GTEST_SKIP() << "the kernel makes no copies (net.core.tstamp_allow_data)";
  // As if the kernel had handed it out after the question.
  ASSERT_EQ(0, setsockopt(own->fd(), SOL_SOCKET, SO_TIMESTAMPING, &kCopies, sizeof kCopies));
  for (int i = 0; i < 2; ++i) ASSERT_EQ(4, ::send(own->fd(), "copy", 4, MSG_DONTWAIT));
  pollfd ready_error{own->fd(), 0, 0};
  ASSERT_EQ(1, poll(&ready_error, 1, kSoonMs));
  UdpSocket::Refusal refusal;
  EXPECT_FALSE(own->next_refusal(&refusal));
  EXPECT_EQ(0, poll(&ready_error, 1, 0)) << "poll() would tell of it for ever";
}

}  // namespace
}  // namespace nupa::net::batch_test
