// SPDX-License-Identifier: Apache-2.0
// Datagram rsockets: source addresses, truncation, and datagrams of a plain UDP socket.
#include <atomic>

#include "api_datagrams.h"

using namespace nupa::rsockets_test;
using nupa::rsockets::Control;
using nupa::rsockets::Op;

TEST_F(Datagrams, Receive_FromSeveralSenders_ReturnsTheSource) {
  three = open();
  for (int round = 0; round < 4; ++round) {  // over UDP first, then between queue pairs
    sockaddr_in from{};
    ASSERT_EQ(send(one, two, "from one"), 0);
    ASSERT_EQ(receive(two, &from), "from one");
    EXPECT_EQ(from.sin_port, one.address.sin_port);
    EXPECT_EQ(from.sin_addr.s_addr, one.address.sin_addr.s_addr);
    ASSERT_EQ(send(three, two, "from three"), 0);
    ASSERT_EQ(receive(two, &from), "from three");
    EXPECT_EQ(from.sin_port, three.address.sin_port);
    ASSERT_EQ(send(two, one, "back"), 0);
    ASSERT_EQ(receive(one, &from), "back");
    EXPECT_EQ(from.sin_port, two.address.sin_port);
  }
}

TEST_F(Datagrams, Receive_SourceBufferTooSmall_CutsTheSource) {
  ASSERT_EQ(send(one, two, "x"), 0);
  ASSERT_EQ(receive(two), "x");
  ASSERT_EQ(send(one, two, "y"), 0);
  pollfd entry{two.fd, POLLIN, 0};
  ASSERT_EQ(rpoll(&entry, 1, kSoonMs), 1);
  char c;
  sockaddr_in from{};
  socklen_t length = 4;
  ASSERT_EQ(rrecvfrom(two.fd, &c, 1, 0, reinterpret_cast<sockaddr*>(&from), &length), 1);
  EXPECT_EQ(length, sizeof from);
  EXPECT_EQ(from.sin_port, one.address.sin_port);
  EXPECT_EQ(from.sin_addr.s_addr, 0u);
}

TEST_F(Datagrams, Receive_BufferTooSmall_CutsTheDatagram) {
  for (const bool by_udp : {true, false}) {
    if (!by_udp) meet(one, two);
    ASSERT_EQ(send(one, two, "abcdefgh"), 0);
    ASSERT_EQ(send(one, two, "next"), 0);
    pollfd entry{two.fd, POLLIN, 0};
    ASSERT_EQ(rpoll(&entry, 1, kSoonMs), 1);
    char room[4] = {};
    EXPECT_EQ(rrecv(two.fd, room, 3, MSG_PEEK | MSG_DONTWAIT), 3);
    EXPECT_EQ(rrecv(two.fd, room, 3, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT), 8) << "as long as it was";
    EXPECT_EQ(rrecv(two.fd, room, 3, MSG_DONTWAIT), 3);
    EXPECT_STREQ(room, "abc");
    ASSERT_EQ(receive(two), "next") << "the rest of the one before is gone";
  }
}

TEST_F(Datagrams, Send_OfZeroBytes_Arrives) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(send(one, two, ""), 0);
    ASSERT_EQ(receive(two), "");
  }
  EXPECT_EQ(receive_error(two), EAGAIN);
}

TEST_F(Datagrams, Send_LongestDatagram_ArrivesAndLongerOnesAreRefused) {
  EXPECT_EQ(send(one, two, std::string(kMostByUdp + 1, 'x')), EMSGSIZE);
  const std::string longest(kMostByUdp, 'y');
  ASSERT_EQ(send(one, two, longest), 0);
  ASSERT_EQ(receive(two), longest);
  meet(one, two);
  EXPECT_EQ(send(one, two, std::string(2048 - 8 + 1, 'x')), EMSGSIZE);
  // Between queue pairs the header is shorter, and the path's MTU counts; what is longer goes over UDP.
  for (const size_t length : {size_t{1016}, size_t{1017}, kMostByUdp - 1, kMostByUdp}) {
    const std::string text(length, 'z');
    ASSERT_EQ(send(one, two, text), 0) << length;
    ASSERT_EQ(receive(two), text);
  }
}

TEST_F(Datagrams, Send_MoreThanTheBuffers_AllAreSent) {
  meet(one, two);
  constexpr int kMany = 2000;  // more than there are buffers
  int got = 0;
  for (int i = 0; i < kMany; ++i) {
    ASSERT_EQ(send(one, two, std::to_string(i)), 0);
    if (i % 16 == 15) {
      for (int k = i - 15; k <= i; ++k, ++got) ASSERT_EQ(receive(two), std::to_string(k));
    }
  }
  EXPECT_EQ(got, kMany);
}

TEST_F(Datagrams, ConnectedRsocket_ReceivesFromItsPeerOnly) {
  three = open();
  ASSERT_EQ(rconnect(one.fd, as_sockaddr(two.address), sizeof two.address), 0);
  sockaddr_in peer{};
  socklen_t length = sizeof peer;
  ASSERT_EQ(rgetpeername(one.fd, reinterpret_cast<sockaddr*>(&peer), &length), 0);
  EXPECT_EQ(peer.sin_port, two.address.sin_port);
  for (int round = 0; round < 4; ++round) {
    ASSERT_EQ(send(three, one, "not for you"), 0);
    ASSERT_EQ(send(two, one, "for you"), 0);
    ASSERT_EQ(receive(one), "for you");
    ASSERT_EQ(rsend(one.fd, "answer", 6, 0), 6);
    ASSERT_EQ(receive(two), "answer");
  }
  EXPECT_EQ(receive_error(one), EAGAIN);
}

TEST_F(Datagrams, Connect_Unspec_ReceivesFromAll) {
  three = open();
  // What comes then comes to one queue pair, in order.
  meet(one, three);
  meet(one, two);
  ASSERT_EQ(rconnect(one.fd, as_sockaddr(two.address), sizeof two.address), 0);
  ASSERT_EQ(send(three, one, "not for you"), 0);
  ASSERT_EQ(send(two, one, "for you"), 0);
  ASSERT_EQ(receive(one), "for you");
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  ASSERT_EQ(rconnect(one.fd, &nobody, sizeof nobody), 0);
  EXPECT_EQ(error_of(rsend(one.fd, "x", 1, 0)), EDESTADDRREQ);
  sockaddr_in peer{};
  socklen_t length = sizeof peer;
  EXPECT_EQ(error_of(rgetpeername(one.fd, reinterpret_cast<sockaddr*>(&peer), &length)), ENOTCONN);
  ASSERT_EQ(send(three, one, "for all"), 0);
  ASSERT_EQ(receive(one), "for all");
}

TEST_F(Datagrams, Send_WrongAddresses_AreRefused) {
  const auto send_to = [&](const void* address, socklen_t length) {
    return error_of(rsendto(one.fd, "x", 1, 0, static_cast<const sockaddr*>(address), length));
  };
  EXPECT_EQ(error_of(rsend(one.fd, "x", 1, 0)), EDESTADDRREQ);
  EXPECT_EQ(send_to(&two.address, 0), EDESTADDRREQ);
  EXPECT_EQ(send_to(&two.address, 1), EINVAL);
  EXPECT_EQ(send_to(&two.address, sizeof two.address - 1), EINVAL);
  sockaddr_in strange = two.address;
  strange.sin_family = AF_UNIX;
  EXPECT_EQ(send_to(&strange, sizeof strange), EAFNOSUPPORT);
  EXPECT_EQ(error_of(rconnect(one.fd, as_sockaddr(strange), sizeof strange)), EAFNOSUPPORT);
  EXPECT_EQ(error_of(rconnect(one.fd, nullptr, sizeof strange)), EINVAL);
  EXPECT_EQ(error_of(rconnect(one.fd, as_sockaddr(two.address), sizeof two.address - 1)), EINVAL);
  EXPECT_EQ(error_of(rbind(three.fd, as_sockaddr(two.address), sizeof two.address)), EBADF);
  three.fd = rsocket(AF_INET, SOCK_DGRAM, 0);
  EXPECT_EQ(error_of(rbind(three.fd, as_sockaddr(two.address), sizeof two.address)), EADDRINUSE);
}

TEST_F(Datagrams, Send_Unbound_GetsAPort) {
  three.fd = rsocket(AF_INET, SOCK_DGRAM, 0);
  in_port_t port = 0;
  for (int round = 0; round < 4; ++round) {  // over UDP first, then between queue pairs
    ASSERT_EQ(send(three, two, "hello"), 0);
    sockaddr_in from{};
    ASSERT_EQ(receive(two, &from), "hello");
    EXPECT_NE(from.sin_port, 0);
    if (round == 0) port = from.sin_port;
    EXPECT_EQ(from.sin_port, port);
    EXPECT_EQ(from.sin_addr.s_addr, htonl(INADDR_LOOPBACK)) << "where it is reached, not where it is bound";
    ASSERT_EQ(rsendto(two.fd, "back", 4, 0, as_sockaddr(from), sizeof from), 4);
    ASSERT_EQ(receive(three), "back");
  }
}

TEST(RsocketsDescriptors, Rsocket_OfEitherType_IsClosedAtExec) {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    const int fd = rsocket(AF_INET, type, 0);
    ASSERT_GE(fd, 0) << std::strerror(errno);
    EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC) << type;
    rclose(fd);
  }
}

TEST_F(Datagrams, Poll_ReportsTheEventsThatThereAre) {
  pollfd entry{two.fd, POLLIN | POLLOUT, 0};
  EXPECT_EQ(rpoll(&entry, 1, 0), 1);
  EXPECT_EQ(entry.revents, POLLOUT);
  entry.events = POLLIN;
  EXPECT_EQ(rpoll(&entry, 1, 0), 0);
  ASSERT_EQ(send(one, two, "x"), 0);
  EXPECT_EQ(rpoll(&entry, 1, kSoonMs), 1);
  EXPECT_EQ(entry.revents, POLLIN);
  entry.events = POLLOUT;
  EXPECT_EQ(rpoll(&entry, 1, 0), 1);
  EXPECT_EQ(entry.revents, POLLOUT);
}

TEST_F(Datagrams, Receive_Waits_ReturnsForDatagramsOfEitherTransport) {
  for (int round = 0; round < 6; ++round) {
    std::atomic<pid_t> thread{0};
    std::string got;
    std::thread reader([&] {
      thread = gettid();
      char room[16];
      const ssize_t count = rrecv(two.fd, room, sizeof room, 0);
      if (count > 0) got.assign(room, static_cast<size_t>(count));
    });
    EXPECT_TRUE(await([&] { return thread != 0; }) && await_sleep(thread));
    ASSERT_EQ(send(one, two, "x"), 0);
    reader.join();
    EXPECT_EQ(got, "x");
    // From the second round on the datagrams go between queue pairs.
    ASSERT_EQ(send(two, one, "y"), 0);
    ASSERT_EQ(receive(one), "y");
  }
}

TEST_F(Datagrams, Shutdown_EndsBothDirections) {
  EXPECT_EQ(error_of(rshutdown(one.fd, 3)), EINVAL);
  EXPECT_EQ(error_of(rshutdown(one.fd, -1)), EINVAL);
  EXPECT_EQ(rshutdown(one.fd, SHUT_WR), 0);
  EXPECT_EQ(send(one, two, "still"), 0) << "one direction is not ended";
  ssize_t count = -1;
  std::atomic<bool> waits{false};
  std::thread reader([&] {
    waits = true;
    char c;
    count = rrecv(one.fd, &c, 1, 0);
  });
  ASSERT_TRUE(await([&] { return waits.load(); }));
  EXPECT_EQ(rshutdown(one.fd, SHUT_RDWR), 0);
  reader.join();
  EXPECT_EQ(count, 0);
  EXPECT_EQ(send(one, two, "x"), EPIPE);
  pollfd entry{one.fd, POLLIN, 0};
  EXPECT_EQ(rpoll(&entry, 1, 0), 1);
  EXPECT_EQ(entry.revents, POLLIN);
}

TEST_F(Datagrams, Receive_Timeout_FailsWithEagain) {
  // One that does not come back gets a datagram after a while.
  const auto error_of_receive = [&](int flags) {
    std::atomic<bool> back{false};
    int error = 0;
    std::thread receiving([&] {
      char c;
      error = error_of(rrecv(one.fd, &c, 1, flags));
      back = true;
    });
    if (!await([&] { return back.load(); })) {
      EXPECT_EQ(send(two, one, "x"), 0);
    }
    receiving.join();
    return error;
  };
  const auto set_timeout = [&](const timeval& limit) {
    ASSERT_EQ(rsetsockopt(one.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  };
  set_timeout({0, 10'000});
  EXPECT_EQ(error_of_receive(0), EAGAIN);
  timeval got{};
  socklen_t length = sizeof got;
  ASSERT_EQ(rgetsockopt(one.fd, SOL_SOCKET, SO_RCVTIMEO, &got, &length), 0);
  EXPECT_EQ(got.tv_usec, 10'000);
  ASSERT_EQ(rgetsockopt(one.fd, SOL_SOCKET, SO_SNDTIMEO, &got, &length), 0);
  EXPECT_EQ(got.tv_usec, 0);
  set_timeout({0, 0});  // there is none
  EXPECT_EQ(error_of_receive(MSG_DONTWAIT), EAGAIN);
  ASSERT_EQ(rfcntl(one.fd, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(error_of_receive(0), EAGAIN);
}

TEST_F(Datagrams, Options_AfterTheFirstPeer_AreFixed) {
  const auto check = [&](int level, int name, int value, int expected) {
    EXPECT_EQ(set_number(one.fd, level, name, value), 0) << name;
    EXPECT_EQ(number_of(one.fd, level, name), expected) << name;
  };
  check(SOL_SOCKET, SO_RCVBUF, 30'000, 60'000);
  check(SOL_SOCKET, SO_SNDBUF, 40'000, 80'000);
  check(SOL_SOCKET, SO_RCVBUF, 0, 2048);
  check(SOL_RDMA, RDMA_SQSIZE, 20, 20);
  check(SOL_RDMA, RDMA_RQSIZE, 0, 1);
  check(SOL_RDMA, RDMA_RQSIZE, 100'000, 0xfffe);
  check(SOL_RDMA, RDMA_RQSIZE, 30, 30);
  check(SOL_RDMA, RDMA_INLINE, 16, 16);
  check(SOL_SOCKET, SO_REUSEADDR, 1, 1);
  EXPECT_EQ(set_number(one.fd, SOL_SOCKET, SO_RCVBUF, -1), EINVAL);
  EXPECT_EQ(set_number(one.fd, SOL_RDMA, RDMA_SQSIZE, -1), EINVAL);
  EXPECT_EQ(set_number(one.fd, SOL_RDMA, 77, 1), ENOPROTOOPT);
  const int number = 1;
  EXPECT_EQ(error_of(rsetsockopt(one.fd, SOL_RDMA, RDMA_SQSIZE, &number, 3)), EINVAL);
  const timeval limit{.tv_sec = 3, .tv_usec = 0};
  ASSERT_EQ(rsetsockopt(one.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(error_of(rsetsockopt(one.fd, SOL_SOCKET, SO_RCVTIMEO, &number, sizeof number)), EINVAL);
  timeval kept{};
  socklen_t length = sizeof kept;
  ASSERT_EQ(rgetsockopt(one.fd, SOL_SOCKET, SO_RCVTIMEO, &kept, &length), 0);
  EXPECT_EQ(kept.tv_sec, 3) << "a refused option changes nothing";
  char room[8];
  length = sizeof room;
  EXPECT_EQ(error_of(rgetsockopt(one.fd, SOL_RDMA, 77, room, &length)), ENOPROTOOPT);
  ASSERT_EQ(send(one, two, "x"), 0);
  EXPECT_EQ(set_number(one.fd, SOL_RDMA, RDMA_SQSIZE, 10), EINVAL);
  EXPECT_EQ(set_number(one.fd, SOL_SOCKET, SO_RCVBUF, 10'000), 0) << "the UDP socket's";
  EXPECT_EQ(number_of(one.fd, SOL_SOCKET, SO_RCVBUF), 2048);
}

// The UDP socket's side of it.

TEST_F(Datagrams, Send_FirstDatagram_HasTheSendersQueuePair) {
  open_udp();
  ASSERT_EQ(send(one, udp, "payload"), 0);
  char bytes[64];
  ASSERT_EQ(recv(udp.fd, bytes, sizeof bytes, 0), 16 + 7);
  const unsigned char expected[] = {0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0};
  EXPECT_EQ(std::memcmp(bytes, expected, sizeof expected), 0);
  UdpHeader header{};
  std::memcpy(&header, bytes, 16);
  EXPECT_NE(be32toh(header.qpn), 0u);
  EXPECT_LE(be32toh(header.qpn), 0xffffffu);
  EXPECT_EQ(header.addr.ipv4, htonl(INADDR_LOOPBACK));
  EXPECT_EQ(std::string(bytes + 16, 7), "payload");
}

TEST_F(Datagrams, Receive_FromANewPeer_SendsTheQueuePairsNumberOnce) {
  open_udp();
  send_by_udp(one, Op::kData, "question");
  sockaddr_in from{};
  ASSERT_EQ(receive(one, &from), "question");
  EXPECT_EQ(from.sin_port, udp.address.sin_port);
  char bytes[64];
  ASSERT_EQ(recv(udp.fd, bytes, sizeof bytes, 0), 16);
  const unsigned char expected[] = {0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0};
  EXPECT_EQ(std::memcmp(bytes, expected, sizeof expected), 0);
  // An answer is not answered.
  send_by_udp(one, Op::kControl, "no data");
  send_by_udp(one, Op::kData, "again");
  ASSERT_EQ(receive(one), "again");
  ASSERT_EQ(recv(udp.fd, bytes, sizeof bytes, 0), 16);
  EXPECT_EQ(recv(udp.fd, bytes, sizeof bytes, MSG_DONTWAIT), -1);
}

TEST_F(Datagrams, WrongHeaders_OverUdp_AreDropped) {
  open_udp();
  send_by_udp(
      one, Op::kData, "", [](UdpHeader&) {}, 15);
  send_by_udp(one, Op::kData, "x", [](UdpHeader& header) { header.tag = htobe32(0x55555554); });
  send_by_udp(one, Op::kData, "x", [](UdpHeader& header) { header.version = 6; });
  send_by_udp(one, Op::kData, "x", [](UdpHeader& header) { header.version = 5; });
  send_by_udp(one, Op::kData, "x", [](UdpHeader& header) { header.length = 15; });
  send_by_udp(one, Op::kData, "x", [](UdpHeader& header) { header.length = 28; });
  send_by_udp(one, Op::kData, std::string(20, 'x'), [](UdpHeader& header) {
    header.version = 6;
    header.length = 28;
  });
  send_by_udp(one, Op::kMapping, "x");
  send_by_udp(one, Op::kData, "good");
  ASSERT_EQ(receive(one), "good");
  char bytes[64];
  ASSERT_EQ(recv(udp.fd, bytes, sizeof bytes, 0), 16) << "one answer, to the good one";
  EXPECT_EQ(recv(udp.fd, bytes, sizeof bytes, MSG_DONTWAIT), -1);
}

TEST_F(Datagrams, Receive_MoreThanTheQueueHolds_LosesTheRest) {
  constexpr int kMostQueued = 1024;
  constexpr int kTogether = 32;  // fewer than the kernel's buffer holds
  open_udp();
  for (int i = 0; i < kMostQueued + 2 * kTogether; ++i) {
    send_by_udp(one, Op::kData, std::to_string(i));
    if (i % kTogether != kTogether - 1) continue;
    // A send to a peer whose queue pair is not known looks at what has come.
    three = open();
    EXPECT_EQ(send(one, three, "x"), 0);
    rclose(three.fd);
    three.fd = -1;
    char answer[64];
    while (recv(udp.fd, answer, sizeof answer, MSG_DONTWAIT) > 0) continue;
  }
  for (int i = 0; i < kMostQueued; ++i) ASSERT_EQ(receive(one), std::to_string(i));
  EXPECT_EQ(receive_error(one), EAGAIN) << "the rest is lost";
}

TEST_F(Datagrams, Peers_SamePortAtTwoAddresses_AreTwo) {
  three.fd = rsocket(AF_INET, SOCK_DGRAM, 0);
  three.address = two.address;
  three.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  ASSERT_EQ(rbind(three.fd, as_sockaddr(three.address), sizeof three.address), 0) << std::strerror(errno);
  for (int round = 0; round < 4; ++round) {
    sockaddr_in from{};
    ASSERT_EQ(send(one, two, "for two"), 0);
    ASSERT_EQ(send(one, three, "for three"), 0);
    ASSERT_EQ(receive(two), "for two");
    ASSERT_EQ(receive(three), "for three");
    ASSERT_EQ(send(three, one, "from three"), 0);
    ASSERT_EQ(receive(one, &from), "from three");
    EXPECT_EQ(from.sin_addr.s_addr, three.address.sin_addr.s_addr);
  }
}

TEST_F(Datagrams, IPv6_Datagrams_HaveTheIPv6Header) {
  const auto open_six = [] {
    const int fd = rsocket(AF_INET6, SOCK_DGRAM, 0);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    socklen_t length = sizeof address;
    EXPECT_EQ(rbind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << std::strerror(errno);
    EXPECT_EQ(rgetsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
    return std::pair(fd, address);
  };
  const auto [from, from_address] = open_six();
  const auto [to, to_address] = open_six();
  for (int i = 0; i < 4; ++i) {
    const std::string text = "round " + std::to_string(i);
    ASSERT_EQ(
        rsendto(from, text.data(), text.size(), 0, reinterpret_cast<const sockaddr*>(&to_address), sizeof to_address),
        static_cast<ssize_t>(text.size()))
        << std::strerror(errno);
    pollfd entry{to, POLLIN, 0};
    ASSERT_EQ(rpoll(&entry, 1, kSoonMs), 1) << i;
    char room[16];
    sockaddr_in6 source{};
    socklen_t length = sizeof source;
    ASSERT_EQ(rrecvfrom(to, room, sizeof room, 0, reinterpret_cast<sockaddr*>(&source), &length),
              static_cast<ssize_t>(text.size()));
    EXPECT_EQ(std::string(room, text.size()), text);
    EXPECT_EQ(length, sizeof source);
    EXPECT_EQ(source.sin6_port, from_address.sin6_port);
    EXPECT_EQ(std::memcmp(&source.sin6_addr, &in6addr_loopback, 16), 0);
    ASSERT_EQ(rsendto(to, "y", 1, 0, reinterpret_cast<const sockaddr*>(&source), length), 1);
    entry.fd = from;
    ASSERT_EQ(rpoll(&entry, 1, kSoonMs), 1);
    ASSERT_EQ(rrecv(from, room, sizeof room, 0), 1);
  }
  rclose(from);
  rclose(to);
}
