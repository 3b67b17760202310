// SPDX-License-Identifier: Apache-2.0
/// Tests of find_route(): the kernel's routing tables, and malformed answers.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/gid.h"
#include "base/unique_fd.h"
#include "net/find_route.h"

namespace nupa::net {
namespace {

using SendTo = ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t);
SendTo* const real_sendto = reinterpret_cast<SendTo*>(dlsym(RTLD_NEXT, "sendto"));
/// Called in this thread before a sendto() of this program takes place.
thread_local const std::function<void(int fd, const void* data)>* before_send = nullptr;

}  // namespace
}  // namespace nupa::net

// By label, since headers may have an inline sendto().
extern "C" __attribute__((visibility("default"))) ssize_t sendto_with_a_step(int fd, const void* data, size_t length,
                                                                             int flags, const sockaddr* to,
                                                                             socklen_t to_length) __asm__("sendto");
ssize_t sendto_with_a_step(int fd, const void* data, size_t length, int flags, const sockaddr* to,
                           socklen_t to_length) {
  if (nupa::net::before_send != nullptr) (*nupa::net::before_send)(fd, data);
  return nupa::net::real_sendto(fd, data, length, flags, to, to_length);
}

namespace nupa::net {
namespace {

Gid gid(const char* text) {
  Gid gid;
  const std::string mapped = std::strchr(text, ':') == nullptr ? std::string("::ffff:") + text : text;
  EXPECT_EQ(inet_pton(AF_INET6, mapped.c_str(), gid.raw.data()), 1) << text;
  return gid;
}

UdpAddress at(const char* text, uint32_t scope = 0) { return {gid(text), 0, scope}; }

int error_of(const Result<FoundRoute>& result) { return result ? 0 : result.error().code(); }

/// An address of an interface of this host.
struct Own {
  Gid gid;
  uint32_t index;
  bool loopback;
  bool link_local;
};

/// Those of interfaces that are up.
std::vector<Own> own_addresses() {
  std::vector<Own> found;
  ifaddrs* list = nullptr;
  EXPECT_EQ(getifaddrs(&list), 0);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    char text[INET6_ADDRSTRLEN];
    const void* address = nullptr;
    if (one->ifa_addr->sa_family == AF_INET)
      address = &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    else if (one->ifa_addr->sa_family == AF_INET6)
      address = &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
    else
      continue;
    inet_ntop(one->ifa_addr->sa_family, address, text, sizeof text);
    const Gid own = gid(text);
    found.push_back({own, if_nametoindex(one->ifa_name), (one->ifa_flags & IFF_LOOPBACK) != 0,
                     own.raw[0] == 0xfe && own.raw[1] == 0x80});
  }
  freeifaddrs(list);
  return found;
}

bool has_ipv6() {
  for (const Own& own : own_addresses())
    if (!base::is_ipv4(own.gid)) return true;
  return false;
}

TEST(FindRoute, FindRoute_Loopback_IsLocalAndItsOwnSource) {
  const uint32_t lo = if_nametoindex("lo");
  const auto v4 = find_route(at("127.0.0.1"), nullptr);
  ASSERT_TRUE(v4) << v4.error().what();
  EXPECT_EQ(*v4, (FoundRoute{gid("127.0.0.1"), lo, true, {}}));
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 here";
  const auto v6 = find_route(at("::1"), nullptr);
  ASSERT_TRUE(v6) << v6.error().what();
  EXPECT_EQ(*v6, (FoundRoute{gid("::1"), lo, true, {}}));
}

TEST(FindRoute, FindRoute_AddressOfALocalNetwork_IsLocal) {
  const auto route = find_route(at("127.9.8.7"), nullptr);
  ASSERT_TRUE(route) << route.error().what();
  EXPECT_TRUE(route->local);
  EXPECT_EQ(route->interface_index, if_nametoindex("lo"));
  const Gid from = gid("127.1.1.1");
  const auto chosen = find_route(at("127.9.8.7"), &from);
  ASSERT_TRUE(chosen) << chosen.error().what();
  EXPECT_EQ(chosen->source, from);
}

TEST(FindRoute, FindRoute_UnspecifiedAddress_IsTheLoopback) {
  const auto v4 = find_route(at("0.0.0.0"), nullptr);
  ASSERT_TRUE(v4) << v4.error().what();
  EXPECT_TRUE(v4->local);
  EXPECT_EQ(v4->source, gid("127.0.0.1"));
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 here";
  const auto v6 = find_route(at("::"), nullptr);
  ASSERT_TRUE(v6) << v6.error().what();
  EXPECT_TRUE(v6->local);
  EXPECT_EQ(v6->source, gid("::1"));
}

TEST(FindRoute, FindRoute_OwnAddress_IsLocalOnItsInterface) {
  for (const Own& own : own_addresses()) {
    const auto route = find_route({own.gid, 0, own.link_local ? own.index : 0}, nullptr);
    ASSERT_TRUE(route) << route.error().what();
    EXPECT_EQ(*route, (FoundRoute{own.gid, own.index, true, {}}));
    const auto from_itself = find_route({own.gid, 0, own.link_local ? own.index : 0}, &own.gid);
    ASSERT_TRUE(from_itself) << from_itself.error().what();
    EXPECT_EQ(*from_itself, *route);
  }
}

TEST(FindRoute, FindRoute_SourceOfThisHost_IsKept) {
  const auto addresses = own_addresses();
  for (const Own& to : addresses)
    for (const Own& from : addresses) {
      if (to.link_local || from.link_local || base::is_ipv4(to.gid) != base::is_ipv4(from.gid)) continue;
      const auto route = find_route({to.gid, 0, 0}, &from.gid);
      ASSERT_TRUE(route) << route.error().what();
      EXPECT_EQ(route->source, from.gid);
      EXPECT_EQ(route->interface_index, to.index);
      EXPECT_TRUE(route->local);
    }
}

TEST(FindRoute, FindRoute_UnspecifiedSource_IsIgnored) {
  const Gid any = gid("0.0.0.0"), zero = gid("::");
  for (const Gid* from : {&any, &zero}) {
    const auto route = find_route(at("127.0.0.1"), from);
    ASSERT_TRUE(route) << route.error().what();
    EXPECT_EQ(route->source, gid("127.0.0.1"));
  }
}

TEST(FindRoute, FindRoute_SourceOfAnotherHost_FailsWithEaddrnotavail) {
  const Gid v4 = gid("192.0.0.1"), v6 = gid("2001:db8::99"), group = gid("224.0.0.1");  // of no host
  EXPECT_EQ(error_of(find_route(at("127.0.0.1"), &v4)), EADDRNOTAVAIL);
  EXPECT_EQ(error_of(find_route(at("127.0.0.1"), &group)), EADDRNOTAVAIL);
  EXPECT_EQ(error_of(find_route(at("::1"), &v6)), EADDRNOTAVAIL);
}

TEST(FindRoute, FindRoute_FamiliesDiffer_FailsWithEinval) {
  const Gid v4 = gid("127.0.0.1"), v6 = gid("::1");
  EXPECT_EQ(error_of(find_route(at("::1"), &v4)), EINVAL);
  EXPECT_EQ(error_of(find_route(at("127.0.0.1"), &v6)), EINVAL);
}

TEST(FindRoute, FindRoute_LinkLocalWithoutAnInterface_FailsWithEinval) {
  const auto without = find_route(at("fe80::1"), nullptr);
  EXPECT_EQ(error_of(without), EINVAL);
  EXPECT_STREQ("fe80::1: a link-local address needs an interface", without.error().what());
  for (const Own& own : own_addresses()) {
    if (!own.link_local) continue;
    const auto route = find_route(at("fe80::1234:5678", own.index), nullptr);
    ASSERT_TRUE(route) << route.error().what();
    EXPECT_EQ(route->interface_index, own.index);
    EXPECT_FALSE(route->local);
    EXPECT_EQ(route->source, own.gid);
    EXPECT_EQ(route->gateway, Gid{});
    const auto by_source = find_route(at("fe80::1234:5678"), &own.gid);
    ASSERT_TRUE(by_source) << by_source.error().what();
    EXPECT_EQ(by_source->interface_index, own.index);
    return;
  }
  GTEST_SKIP() << "no interface has a link-local address";
}

TEST(FindRoute, FindRoute_MulticastGroup_LeavesByTheInterface) {
  for (const Own& own : own_addresses()) {
    if (own.loopback || !base::is_ipv4(own.gid)) continue;
    const auto route = find_route(at("239.1.2.3", own.index), nullptr);
    ASSERT_TRUE(route) << route.error().what();
    EXPECT_FALSE(route->local);
    EXPECT_EQ(route->interface_index, own.index);
    const auto chosen = find_route(at("239.1.2.3"), &own.gid);
    ASSERT_TRUE(chosen) << chosen.error().what();
    EXPECT_EQ(chosen->source, own.gid);
    return;
  }
  GTEST_SKIP() << "loopback only";
}

TEST(FindRoute, FindRoute_UnknownInterface_FailsWithEnodev) {
  EXPECT_EQ(error_of(find_route(at("192.0.0.1", 0x7ffffff0), nullptr)), ENODEV);
}

TEST(FindRoute, FindRoute_BroadcastAddress_FailsWithEacces) {
  for (const Own& own : own_addresses())
    if (!own.loopback && base::is_ipv4(own.gid)) {
      const auto refused = find_route(at("255.255.255.255"), nullptr);
      EXPECT_EQ(error_of(refused), EACCES);
      EXPECT_EQ(0u, std::string(refused.error().what()).find("255.255.255.255: ")) << refused.error().what();
      return;
    }
  GTEST_SKIP() << "loopback only";
}

constexpr uint32_t kSequence = 77;

/// A netlink message, part by part.
class Message {
 public:
  explicit Message(uint16_t type, uint32_t sequence = kSequence) {
    nlmsghdr header{};
    header.nlmsg_type = type;
    header.nlmsg_seq = sequence;
    append(&header, sizeof header);
  }
  Message& route(uint8_t family, uint8_t type) {
    rtmsg body{};
    body.rtm_family = family;
    body.rtm_type = type;
    append(&body, sizeof body);
    return *this;
  }
  Message& attribute(uint16_t type, std::string_view value, int length_error = 0) {
    const rtattr header{static_cast<uint16_t>(static_cast<int>(RTA_LENGTH(value.size())) + length_error), type};
    append(&header, sizeof header);
    append(value.data(), value.size());
    bytes_.resize(RTA_ALIGN(bytes_.size()));
    return *this;
  }
  Message& interface(uint32_t index) {
    return attribute(RTA_OIF, {reinterpret_cast<const char*>(&index), sizeof index});
  }
  Message& error(int code) {
    nlmsgerr body{};
    body.error = code;
    append(&body, sizeof body);
    return *this;
  }
  std::vector<std::byte> done(int length_error = 0) {
    const auto length = static_cast<uint32_t>(static_cast<int>(bytes_.size()) + length_error);
    std::memcpy(bytes_.data(), &length, sizeof length);
    return bytes_;
  }

 private:
  void append(const void* data, size_t length) {
    const size_t before = bytes_.size();
    bytes_.resize(before + length);
    std::memcpy(bytes_.data() + before, data, length);
  }
  std::vector<std::byte> bytes_;
};

std::string_view raw(const char* text) { return {text, 4}; }

Message good() {
  return Message(RTM_NEWROUTE)
      .route(AF_INET, RTN_UNICAST)
      .attribute(RTA_PREFSRC, raw("\x0a\x00\x00\x01"))
      .attribute(RTA_GATEWAY, raw("\x0a\x00\x00\xfe"))
      .interface(3);
}

const FoundRoute kGood{gid("10.0.0.1"), 3, false, gid("10.0.0.254")};

int reply_error(const std::vector<std::byte>& bytes) {
  const auto result = read_route_reply(bytes, kSequence);
  return result ? 0 : result.error().code();
}

TEST(RouteReply, ReadReply_ValidRoute_IsRead) {
  const auto result = read_route_reply(good().done(), kSequence);
  ASSERT_TRUE(result && *result);
  EXPECT_EQ(**result, kGood);
}

TEST(RouteReply, ReadReply_OtherSequenceNumber_IsSkipped) {
  auto bytes = Message(RTM_NEWROUTE, kSequence + 1).route(AF_INET, RTN_LOCAL).done();
  EXPECT_FALSE(*read_route_reply(bytes, kSequence));
  const auto mine = good().done();
  bytes.insert(bytes.end(), mine.begin(), mine.end());
  const auto result = read_route_reply(bytes, kSequence);
  ASSERT_TRUE(result && *result);
  EXPECT_EQ(**result, kGood);
  EXPECT_FALSE(*read_route_reply({}, kSequence));
}

TEST(RouteReply, ReadReply_GatewayOfTheOtherFamily_IsRead) {
  std::string via(18, '\0');  // a family of two bytes, and fe80::5
  via[0] = AF_INET6;
  via[2] = '\xfe';
  via[3] = '\x80';
  via[17] = 5;
  const auto result = read_route_reply(
      Message(RTM_NEWROUTE).route(AF_INET, RTN_UNICAST).attribute(RTA_VIA, via).interface(3).done(), kSequence);
  ASSERT_TRUE(result && *result);
  EXPECT_EQ((*result)->gateway, gid("fe80::5"));
}

TEST(RouteReply, ReadReply_ErrorMessage_GivesTheKernelsErrno) {
  for (const int error : {ENETUNREACH, EHOSTUNREACH, EACCES, EINVAL, ENODEV, 4095})
    EXPECT_EQ(reply_error(Message(NLMSG_ERROR).error(-error).done()), error);
  EXPECT_EQ(reply_error(Message(NLMSG_ERROR).error(0).done()), EBADMSG) << "an acknowledgement is no route";
  EXPECT_EQ(reply_error(Message(NLMSG_ERROR).error(5).done()), EBADMSG);
  EXPECT_EQ(reply_error(Message(NLMSG_ERROR).error(-4096).done()), EBADMSG);
  EXPECT_EQ(reply_error(Message(NLMSG_ERROR).error(INT32_MIN).done()), EBADMSG);
  EXPECT_EQ(reply_error(Message(NLMSG_ERROR).done()), EBADMSG);
}

TEST(RouteReply, ReadReply_RouteThatForbids_GivesItsErrno) {
  const auto error = [](uint8_t type) {
    return reply_error(Message(RTM_NEWROUTE).route(AF_INET6, type).interface(1).done());
  };
  EXPECT_EQ(error(RTN_BLACKHOLE), EINVAL);
  EXPECT_EQ(error(RTN_UNREACHABLE), EHOSTUNREACH);
  EXPECT_EQ(error(RTN_PROHIBIT), EACCES);
  EXPECT_EQ(error(RTN_THROW), ENETUNREACH);
  EXPECT_EQ(error(RTN_BROADCAST), EACCES);
  EXPECT_EQ(error(200), ENETUNREACH);
  EXPECT_EQ(error(RTN_MULTICAST), 0);
}

TEST(RouteReply, ReadReply_WrongLengths_FailWithEbadmsg) {
  const auto route = [] { return Message(RTM_NEWROUTE).route(AF_INET, RTN_UNICAST); };
  EXPECT_EQ(reply_error(good().done(1)), EBADMSG) << "longer than what came";
  EXPECT_EQ(reply_error(Message(RTM_NEWROUTE).done(-1)), EBADMSG) << "shorter than its header";
  EXPECT_EQ(reply_error(Message(RTM_NEWROUTE).done()), EBADMSG) << "no body";
  EXPECT_EQ(reply_error(route().attribute(RTA_GATEWAY, raw("1234"), 1).done()), EBADMSG);
  EXPECT_EQ(reply_error(route().attribute(RTA_GATEWAY, raw("1234"), -5).done()), EBADMSG);
  EXPECT_EQ(reply_error(route().attribute(RTA_GATEWAY, "", -4).interface(3).done()), EBADMSG) << "would go round";
  EXPECT_EQ(reply_error(route().attribute(RTA_GATEWAY, "12").interface(3).done()), EBADMSG);
  EXPECT_EQ(reply_error(route().attribute(RTA_PREFSRC, "1234567890123456").interface(3).done()), EBADMSG);
  EXPECT_EQ(reply_error(route().attribute(RTA_OIF, "12").done()), EBADMSG);
  EXPECT_EQ(reply_error(route().attribute(RTA_VIA, "1").interface(3).done()), EBADMSG);
  EXPECT_EQ(reply_error(route().attribute(RTA_VIA, "\x02").interface(3).done()), EBADMSG);
  for (const size_t bytes : {0, 3, 5, 16}) {  // AF_INET takes four
    std::string via(2 + bytes, '\1');
    via[0] = AF_INET;
    via[1] = 0;
    EXPECT_EQ(reply_error(route().attribute(RTA_VIA, via).interface(3).done()), EBADMSG) << bytes;
  }
  for (const int more : {1, 4})
    EXPECT_EQ(reply_error(route().interface(3).attribute(RTA_METRICS, raw("1234"), more).done()), EBADMSG)
        << "also of one that is not read";
  EXPECT_EQ(reply_error(route().done()), EBADMSG) << "no interface";
  EXPECT_EQ(reply_error(Message(RTM_NEWROUTE).route(AF_UNIX, RTN_UNICAST).interface(3).done()), EBADMSG);
}

TEST(RouteReply, ReadReply_TruncatedOrDamaged_IsRefusedSafely) {
  // Exactly as long as it is, so that a sanitizer sees what is read behind it.
  const auto bytes = good().done();
  for (size_t length = 1; length < bytes.size(); ++length)
    EXPECT_EQ(reply_error({bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length)}), EBADMSG) << length;
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    auto wrong = bytes;
    for (uint32_t i = 0; i <= random() % 4; ++i) wrong[random() % wrong.size()] = static_cast<std::byte>(random());
    wrong.resize(1 + random() % wrong.size());
    wrong.shrink_to_fit();
    (void)read_route_reply(wrong, kSequence);
  }
}

// ---- answers of other processes

TEST(FindRoute, FindRoute_AnswerOfAnotherProcess_IsIgnored) {
  const base::UniqueFd other(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  int requests = 0;
  int refused = 0;
  const std::function<void(int, const void*)> forge = [&](int fd, const void* data) {
    if (++requests != 2) return;  // with the first one the socket gets its address
    sockaddr_nl address{};
    socklen_t length = sizeof address;
    ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
    nlmsghdr request;
    std::memcpy(&request, data, sizeof request);
    const auto answer = Message(RTM_NEWROUTE, request.nlmsg_seq).route(AF_INET, RTN_UNICAST).interface(77).done();
    if (real_sendto(other.get(), answer.data(), answer.size(), 0, reinterpret_cast<sockaddr*>(&address), length) < 0)
      refused = errno;
  };
  const Gid from = gid("127.0.0.1");
  before_send = &forge;
  const auto route = find_route(at("127.0.0.1"), &from);
  before_send = nullptr;
  if (refused == EPERM) GTEST_SKIP() << "only CAP_NET_ADMIN may send such messages";
  EXPECT_EQ(refused, 0);
  EXPECT_GE(requests, 2);
  ASSERT_TRUE(route) << route.error().what();
  EXPECT_EQ(*route, (FoundRoute{from, if_nametoindex("lo"), true, {}}));
}

}  // namespace
}  // namespace nupa::net
