// SPDX-License-Identifier: Apache-2.0
/// Connecting and accepting behind the preload library: addresses, listeners, names, resets.
#include "api_peer.h"
#include "preload_edges.h"
#include "preload_support.h"

using nupa::preload_test::as_out;
using nupa::preload_test::connected_by_tcp;
using nupa::preload_test::error_of;
using nupa::preload_test::open_descriptors;
using nupa::preload_test::Preload;
using nupa::preload_test::PreloadEdges;
using nupa::rsockets_test::as_sockaddr;
using nupa::rsockets_test::await;
using nupa::rsockets_test::await_sleep;
using nupa::rsockets_test::kSoonMs;
using nupa::rsockets_test::loopback;
using nupa::rsockets_test::Peer;

TEST_F(PreloadEdges, Connect_BoundAddress_IsTheConnections) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in mine = loopback(0), seen{};
  socklen_t length = sizeof mine;
  ASSERT_EQ(bind(client, as_sockaddr(mine), sizeof mine), 0);
  ASSERT_EQ(getsockname(client, as_out(&mine), &length), 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  ASSERT_FALSE(connected_by_tcp(client));
  server = accept(listener, as_out(&seen), &length);
  ASSERT_GE(server, 0);
  EXPECT_EQ(seen.sin_port, mine.sin_port);
}

TEST_F(PreloadEdges, Connect_AgainAfterTcp_IsRefused) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = connect_plain();
  EXPECT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address)), EISCONN);
}

TEST_F(PreloadEdges, Connect_AddressOfAWrongLength_HasTheKernelsError) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  struct {
    sockaddr_in address;
    char more[sizeof(sockaddr_storage)];
  } longer{address, {}};
  EXPECT_EQ(error_of(connect(client, as_sockaddr(longer.address), sizeof longer)), EINVAL);
  EXPECT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address - 1)), EINVAL);
  EXPECT_EQ(error_of(connect(client, nullptr, sizeof address)), EFAULT);
  EXPECT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  EXPECT_FALSE(connected_by_tcp(client));
}

TEST_F(PreloadEdges, Connect_PortIsRefused_OtherPortsStillUseRsockets) {
  const int nobody = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in closed = loopback(0);
  socklen_t length = sizeof closed;
  ASSERT_EQ(bind(nobody, as_sockaddr(closed), sizeof closed), 0);
  ASSERT_EQ(getsockname(nobody, as_out(&closed), &length), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(error_of(connect(client, as_sockaddr(closed), sizeof closed)), ECONNREFUSED);
  close(client);
  close(nobody);
  make_pair();
}

TEST_F(PreloadEdges, Connect_FallsBackToTcp_LeavesNoDescriptorOfTheRsocket) {
  const auto fall_back = [&] {
    client = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
    ASSERT_TRUE(connected_by_tcp(client)) << "a listener that has not waited yet has no rsocket";
    close(client);
    close(listener);
    client = -1;
    Preload::SetUp();  // a new port, for which the rsocket is tried again
  };
  ASSERT_NO_FATAL_FAILURE(fall_back());  // the library has what a process needs once
  const size_t before = open_descriptors();
  for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(fall_back());
  EXPECT_TRUE(await([&] { return open_descriptors() <= before; })) << open_descriptors() << " after " << before;
}

TEST_F(PreloadEdges, Shutdown_OfAListener_RefusesBothKinds) {
  make_pair();
  ASSERT_EQ(shutdown(listener, SHUT_RD), 0);
  const int late = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(syscall(SYS_connect, late, &address, sizeof address), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  EXPECT_EQ(error_of(connect(late, as_sockaddr(address), sizeof address)), ECONNREFUSED);
  close(late);
}

TEST_F(PreloadEdges, Close_OfAListenerWhereAnotherThreadAccepts_DoesNotWait) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  std::atomic<pid_t> thread{0};
  int error = 0;
  std::thread waiting([&] {
    thread = gettid();
    error = error_of(accept(listener, nullptr, nullptr));
  });
  EXPECT_TRUE(await([&] { return thread != 0; }) && await_sleep(thread));
  EXPECT_EQ(close(listener), 0);
  waiting.join();
  EXPECT_EQ(error, EBADF);
  listener = -1;
}

TEST_F(PreloadEdges, Accept_ReceiveTimeout_FailsWithEagain) {
  const timeval limit{0, 10'000};
  ASSERT_EQ(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  std::atomic<bool> back{false};
  int error = 0;
  std::thread waiting([&] {
    error = error_of(accept(listener, nullptr, nullptr));
    back = true;
  });
  const bool in_time = await([&] { return back.load(); });
  EXPECT_TRUE(in_time);
  if (!in_time) close(connect_plain());
  waiting.join();
  EXPECT_EQ(error, EAGAIN);
}

TEST_F(PreloadEdges, Accept_KeepaliveOfTheListener_IsTheConnections) {
  const int on = 1;  // and a second
  ASSERT_EQ(setsockopt(listener, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on), 0);
  ASSERT_EQ(setsockopt(listener, IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof on), 0);
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  Peer peer;
  peer.retries = 0;
  ASSERT_TRUE(peer.connect(address));
  server = accept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0);
  EXPECT_TRUE(finds_silence(&peer, server));
}

TEST_F(PreloadEdges, Listener_AfterOneThatWasClosed_HasAnRsocket) {
  ASSERT_NO_FATAL_FAILURE(make_pair());
  for (const int fd : {client, server, listener}) close(fd);
  client = server = listener = -1;
  ASSERT_NO_FATAL_FAILURE(Preload::SetUp());
  make_pair();
}

TEST_F(PreloadEdges, SocketOfAnotherProtocol_GetsNoRsocket) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  const int multipath = socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
  if (multipath < 0) GTEST_SKIP() << "the kernel has no MPTCP";
  EXPECT_EQ(connect(multipath, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
  EXPECT_TRUE(connected_by_tcp(multipath));
  close(multipath);
}

TEST_F(PreloadEdges, Listeners_OfBothFamilies_ShareAPort) {
  const int six = socket(AF_INET6, SOCK_STREAM, 0);
  if (six < 0) GTEST_SKIP() << "the machine has no IPv6";
  const int only = 1;
  ASSERT_EQ(setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only), 0);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = address.sin_port;
  ASSERT_EQ(bind(six, reinterpret_cast<sockaddr*>(&any), sizeof any), 0) << std::strerror(errno);
  ASSERT_EQ(listen(six, 4), 0);
  EXPECT_EQ(poll_one(six, POLLIN, 0), 0);  // now it has its rsocket
  make_pair();
  close(six);
}

namespace {

/// An end as TCP names it in a socket of that family: "::ffff:127.0.0.1", or "127.0.0.1".
std::string name_of(const sockaddr_storage& name, socklen_t length) {
  char text[INET6_ADDRSTRLEN] = "?";
  const bool six = name.ss_family == AF_INET6;
  EXPECT_EQ(length, six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  const void* address = six ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(name).sin6_addr)
                            : &reinterpret_cast<const sockaddr_in&>(name).sin_addr;
  inet_ntop(name.ss_family, address, text, sizeof text);
  return text;
}

template <class Call>
std::string name_by(Call call, int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  const int result = call(fd, reinterpret_cast<sockaddr*>(&name), &length);
  EXPECT_GE(result, 0) << std::strerror(errno);
  return name_of(name, length);
}

}  // namespace

TEST_F(PreloadEdges, NamesOfIpv4Ends_InSocketsOfIpv6_AreMappedAddresses) {
  const int six = socket(AF_INET6, SOCK_STREAM, 0);
  if (six < 0) GTEST_SKIP() << "the machine has no IPv6";
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  socklen_t length = sizeof any;
  ASSERT_EQ(bind(six, reinterpret_cast<sockaddr*>(&any), sizeof any), 0) << std::strerror(errno);
  ASSERT_EQ(getsockname(six, reinterpret_cast<sockaddr*>(&any), &length), 0);
  ASSERT_EQ(listen(six, 4), 0);
  EXPECT_EQ(poll_one(six, POLLIN, 0), 0);       // now it has its rsocket
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);  // and the one for IPv4, too
  const std::string four_name = "127.0.0.1", mapped_name = "::ffff:127.0.0.1";
  sockaddr_in6 mapped = any;
  ASSERT_EQ(inet_pton(AF_INET6, mapped_name.c_str(), &mapped.sin6_addr), 1);
  for (const bool client_has_six : {false, true}) {
    for (const bool server_has_six : {false, true}) {
      const in_port_t port = server_has_six ? any.sin6_port : address.sin_port;
      const sockaddr_in to_four = loopback(ntohs(port));
      mapped.sin6_port = port;
      client = socket(client_has_six ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
      ASSERT_EQ(client_has_six ? connect(client, reinterpret_cast<sockaddr*>(&mapped), sizeof mapped)
                               : connect(client, as_sockaddr(to_four), sizeof to_four),
                0)
          << std::strerror(errno);
      ASSERT_FALSE(connected_by_tcp(client)) << client_has_six << server_has_six;
      const auto take = [&](int fd, sockaddr* name, socklen_t* size) { return server = accept(fd, name, size); };
      const std::string& of_server = server_has_six ? mapped_name : four_name;
      const std::string& of_client = client_has_six ? mapped_name : four_name;
      EXPECT_EQ(name_by(take, server_has_six ? six : listener), of_server);
      EXPECT_EQ(name_by(getpeername, server), of_server);
      EXPECT_EQ(name_by(getsockname, server), of_server);
      EXPECT_EQ(name_by(getpeername, client), of_client);
      EXPECT_EQ(name_by(getsockname, client), of_client);
      close(client);
      close(server);
      client = server = -1;
    }
  }
  close(six);
}

TEST_F(PreloadEdges, SoError_AfterAReset_ReportsItOnce) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  Peer peer;
  ASSERT_TRUE(peer.connect(address));
  server = accept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0);
  peer.disconnect();
  ASSERT_NE(poll_one(server, 0, kSoonMs) & POLLERR, 0);
  int error = -1;
  socklen_t length = sizeof error;
  ASSERT_EQ(getsockopt(server, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, ECONNRESET);
  ASSERT_EQ(getsockopt(server, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, 0);
}
