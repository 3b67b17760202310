// SPDX-License-Identifier: Apache-2.0
/// Options of an rsocket: values that were set are returned, and invalid ones are refused.
#include <netinet/tcp.h>

#include <climits>

#include "api_edges.h"
#include "api_support.h"

using namespace nupa::rsockets_test;

namespace {

constexpr int kOtherOption = 12345;

}  // namespace

TEST_F(RsocketsEdges, Options_WrongLengthOrName_AreRefused) {
  const int number = 1;
  const auto set = [&](int level, int name, const void* value, socklen_t length) {
    return error_of(rsetsockopt(listener, level, name, value, length));
  };
  for (const auto& [level, name] : {std::pair(SOL_SOCKET, SO_REUSEADDR),
                                    {SOL_SOCKET, SO_RCVBUF},
                                    {SOL_SOCKET, SO_KEEPALIVE},
                                    {SOL_RDMA, RDMA_SQSIZE},
                                    {IPPROTO_TCP, TCP_NODELAY},
                                    {IPPROTO_IPV6, IPV6_V6ONLY}}) {
    EXPECT_EQ(set(level, name, &number, sizeof number - 1), EINVAL) << level << " " << name;
    EXPECT_EQ(set(level, name, nullptr, sizeof number), EINVAL) << level << " " << name;
    EXPECT_EQ(set(level, kOtherOption, &number, sizeof number), ENOPROTOOPT) << level;
    char room[16];
    socklen_t length = sizeof room;
    EXPECT_EQ(error_of(rgetsockopt(listener, level, kOtherOption, room, &length)), ENOPROTOOPT) << level;
    EXPECT_EQ(error_of(rgetsockopt(listener, level, name, nullptr, &length)), EFAULT);
    EXPECT_EQ(error_of(rgetsockopt(listener, level, name, room, nullptr)), EFAULT);
    length = 1;
    std::memset(room, 0x5a, sizeof room);
    EXPECT_EQ(rgetsockopt(listener, level, name, room, &length), 0) << level << " " << name;
    EXPECT_EQ(length, 1u);
    EXPECT_EQ(room[1], 0x5a) << "beyond the room";
  }
  const timeval time{};
  const linger end{};
  EXPECT_EQ(set(SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time - 1), EINVAL);
  EXPECT_EQ(set(SOL_SOCKET, SO_SNDTIMEO, &time, sizeof number), EINVAL);
  EXPECT_EQ(set(SOL_SOCKET, SO_LINGER, &end, sizeof number), EINVAL);
  EXPECT_EQ(set(SOL_IP, 1, &number, sizeof number), ENOPROTOOPT);
  EXPECT_EQ(set(IPPROTO_TCP, TCP_KEEPIDLE, &number, sizeof number), 0);
  const int none = 0;
  EXPECT_EQ(set(IPPROTO_TCP, TCP_KEEPIDLE, &none, sizeof none), EINVAL);
  const int negative = -1;
  for (const int name : {RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE, RDMA_IOMAPSIZE}) {
    EXPECT_EQ(set(SOL_RDMA, name, &negative, sizeof negative), EINVAL) << name;
  }
  EXPECT_EQ(set(SOL_RDMA, RDMA_ROUTE, &number, sizeof number), EINVAL);
  EXPECT_EQ(set(SOL_RDMA, RDMA_ROUTE, nullptr, sizeof(ibv_path_data)), EINVAL);
}

TEST_F(RsocketsEdges, Options_ReturnTheValueThatWasSet) {
  const auto check = [&](int level, int name, int value, int expected) {
    EXPECT_EQ(set_number(listener, level, name, value), 0) << level << " " << name;
    EXPECT_EQ(number_of(listener, level, name), expected) << level << " " << name;
  };
  for (const auto& [level, name] : {std::pair(SOL_SOCKET, SO_REUSEPORT),
                                    {SOL_SOCKET, SO_KEEPALIVE},
                                    {SOL_SOCKET, SO_OOBINLINE},
                                    {IPPROTO_TCP, TCP_NODELAY}}) {
    EXPECT_EQ(number_of(listener, level, name), 0);
    check(level, name, 7, 1);
    check(level, name, 0, 0);
  }
  check(IPPROTO_TCP, TCP_KEEPIDLE, 12, 12);
  check(IPPROTO_TCP, TCP_KEEPINTVL, 13, 13);
  check(IPPROTO_TCP, TCP_KEEPCNT, 14, 14);
  check(SOL_SOCKET, SO_RCVLOWAT, 9, 1);
  check(SOL_SOCKET, SO_RCVBUF, 10'000, 20'000);
  check(SOL_SOCKET, SO_SNDBUF, 11'000, 22'000);
  check(SOL_SOCKET, SO_RCVBUF, 1, 4096);
  check(SOL_SOCKET, SO_SNDBUF, -5, 4096);
  check(SOL_SOCKET, SO_RCVBUF, INT_MAX, 1 << 30);
  check(SOL_RDMA, RDMA_SQSIZE, 21, 21);
  check(SOL_RDMA, RDMA_RQSIZE, 22, 22);
  check(SOL_RDMA, RDMA_INLINE, 23, 23);
  check(SOL_RDMA, RDMA_IOMAPSIZE, 24, 24);
  check(SOL_RDMA, RDMA_SQSIZE, INT_MAX, 0xfffe);
  check(SOL_RDMA, RDMA_RQSIZE, INT_MAX, 0xfffe);
  EXPECT_EQ(set_number(listener, SOL_SOCKET, SO_PRIORITY, 1), 0);
  EXPECT_EQ(set_number(listener, IPPROTO_TCP, TCP_MAXSEG, 1000), 0);
  EXPECT_EQ(number_of(listener, IPPROTO_TCP, TCP_MAXSEG), 2048) << "before there is a path";
}

TEST_F(RsocketsEdges, TimeoutsAndLinger_ReturnTheValueThatWasSet) {
  for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    const timeval set{3, 250'001};
    ASSERT_EQ(rsetsockopt(listener, SOL_SOCKET, name, &set, sizeof set), 0);
    timeval got{};
    socklen_t length = sizeof got;
    ASSERT_EQ(rgetsockopt(listener, SOL_SOCKET, name, &got, &length), 0);
    EXPECT_EQ(got.tv_sec, 3);
    EXPECT_EQ(got.tv_usec, 251'000) << "rounded up to milliseconds";
    const timeval none{};
    ASSERT_EQ(rsetsockopt(listener, SOL_SOCKET, name, &none, sizeof none), 0);
    ASSERT_EQ(rgetsockopt(listener, SOL_SOCKET, name, &got, &length), 0);
    EXPECT_EQ(got.tv_sec, 0);
    EXPECT_EQ(got.tv_usec, 0);
  }
  linger got{7, 7};
  socklen_t length = sizeof got;
  ASSERT_EQ(rgetsockopt(listener, SOL_SOCKET, SO_LINGER, &got, &length), 0);
  EXPECT_EQ(got.l_onoff, 0);
  const linger set{1, 5};
  ASSERT_EQ(rsetsockopt(listener, SOL_SOCKET, SO_LINGER, &set, sizeof set), 0);
  ASSERT_EQ(rgetsockopt(listener, SOL_SOCKET, SO_LINGER, &got, &length), 0);
  EXPECT_EQ(got.l_onoff, 1);
  EXPECT_EQ(got.l_linger, 5);
  const linger off{0, 9};
  ASSERT_EQ(rsetsockopt(listener, SOL_SOCKET, SO_LINGER, &off, sizeof off), 0);
  ASSERT_EQ(rgetsockopt(listener, SOL_SOCKET, SO_LINGER, &got, &length), 0);
  EXPECT_EQ(got.l_onoff, 0);
  EXPECT_EQ(got.l_linger, 0);
}

TEST_F(RsocketsEdges, Sizes_AfterConnect_AreFixed) {
  make_pair();
  const int before = number_of(client, SOL_SOCKET, SO_RCVBUF);
  EXPECT_EQ(set_number(client, SOL_SOCKET, SO_RCVBUF, 9999), 0);
  EXPECT_EQ(set_number(client, SOL_SOCKET, SO_SNDBUF, 9999), 0);
  EXPECT_EQ(number_of(client, SOL_SOCKET, SO_RCVBUF), before);
  EXPECT_EQ(number_of(client, SOL_SOCKET, SO_SNDBUF), before);
  for (const int name : {RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE, RDMA_IOMAPSIZE}) {
    EXPECT_EQ(set_number(client, SOL_RDMA, name, 20), EINVAL) << name;
  }
  EXPECT_EQ(set_number(client, SOL_SOCKET, SO_REUSEADDR, 1), 0) << "of no meaning, but programs set it";
  EXPECT_GT(number_of(client, IPPROTO_TCP, TCP_MAXSEG), 255);
  EXPECT_GT(number_of(client, SOL_RDMA, RDMA_INLINE), 0);
}

TEST_F(RsocketsEdges, Sizes_TooSmall_BecomeTheMinimum) {
  for (const int name : {RDMA_SQSIZE, RDMA_RQSIZE}) ASSERT_EQ(set_number(listener, SOL_RDMA, name, 1), 0);
  ASSERT_EQ(set_number(listener, SOL_SOCKET, SO_SNDBUF, 1), 0);
  ASSERT_EQ(set_number(listener, SOL_SOCKET, SO_RCVBUF, 1), 0);
  make_pair();
  EXPECT_EQ(number_of(server, SOL_RDMA, RDMA_SQSIZE), 16);
  EXPECT_EQ(number_of(server, SOL_RDMA, RDMA_RQSIZE), 16);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_SNDBUF), 4096);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_RCVBUF), 4096);
}

TEST_F(RsocketsEdges, Route_ReturnsAPathRecord) {
  make_pair();
  ibv_path_data path{};
  socklen_t length = sizeof path - 1;
  EXPECT_EQ(error_of(rgetsockopt(client, SOL_RDMA, RDMA_ROUTE, &path, &length)), EINVAL);
  length = sizeof path;
  EXPECT_EQ(error_of(rgetsockopt(client, SOL_RDMA, RDMA_ROUTE, nullptr, &length)), EFAULT);
  ASSERT_EQ(rgetsockopt(client, SOL_RDMA, RDMA_ROUTE, &path, &length), 0);
  EXPECT_EQ(length, sizeof path);
  EXPECT_EQ(path.flags, static_cast<uint32_t>(IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL));
  EXPECT_EQ(path.path.reversible_numpath, 0x81);
  EXPECT_EQ(path.path.mtu >> 6, 2);
  EXPECT_EQ(number_of(client, IPPROTO_TCP, TCP_MAXSEG), 128 << (path.path.mtu & 0x3f));
  // What was read leads there again.
  const Descriptor again(rsocket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(rsetsockopt(again, SOL_RDMA, RDMA_ROUTE, &path, sizeof path), 0);
  ibv_path_data back{};
  ASSERT_EQ(rgetsockopt(again, SOL_RDMA, RDMA_ROUTE, &back, &length), 0);
  EXPECT_EQ(std::memcmp(&path, &back, sizeof path), 0);
  length = sizeof path - 1;
  EXPECT_EQ(error_of(rgetsockopt(again, SOL_RDMA, RDMA_ROUTE, &back, &length)), EINVAL);
  EXPECT_EQ(rconnect(again, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
}
