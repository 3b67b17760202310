// SPDX-License-Identifier: Apache-2.0
// Abstract socket names at which a process receives messages that another process has relayed.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "cm/mad_name.h"

namespace nupa::cm {
namespace {

constexpr uint64_t kService = 0x0000000001061234;

Gid gid_of(uint8_t last) {
  Gid gid;
  gid.raw[0] = 0x20;
  gid.raw[15] = last;
  return gid;
}
/// Of this test alone, and of none that runs at the same time.
std::string own_name(const char* what = "a") { return "test/" + std::to_string(getpid()) + "/" + what; }

Mad mad_of(uint8_t byte) {
  Mad mad{};
  mad.fill(std::byte{byte});
  return mad;
}

TEST(CmMadName, Take_NameOfARunningProcess_FailsUntilItEnds) {
  {
    const auto taken = MadName::take(own_name());
    ASSERT_TRUE(taken);
    EXPECT_TRUE(MadName::is_taken(own_name()));
    EXPECT_FALSE(MadName::is_taken(own_name("b")));
    const auto again = MadName::take(own_name());
    ASSERT_FALSE(again);
    EXPECT_EQ(EADDRINUSE, again.error().code());
  }
  EXPECT_FALSE(MadName::is_taken(own_name()));
  EXPECT_TRUE(MadName::take(own_name()));
}

TEST(CmMadName, Name_ServiceAddressOrFamilyDiffers_Differs) {
  const std::string names[] = {MadName::of_slot(17),
                               MadName::of_slot(18),
                               MadName::of_service(kService, gid_of(1)),
                               MadName::of_service(kService, gid_of(2)),
                               MadName::of_service(kService + 1, gid_of(1)),
                               MadName::of_service(kService, MadName::Family::kIpv4),
                               MadName::of_service(kService, MadName::Family::kIpv6),
                               MadName::of_service(kService, MadName::Family::kNone)};
  for (size_t i = 0; i < std::size(names); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(names[i], names[j]);
  EXPECT_EQ("slot/17", names[0]);
  EXPECT_EQ("service/0000000001061234/20000000000000000000000000000001", names[2]);
  EXPECT_EQ("service/0000000001061234/4", names[5]);
}

TEST(CmMadName, Pass_Message_ArrivesWithItsReturnPath) {
  const auto name = MadName::take(own_name());
  const auto relay = MadRelay::open();
  ASSERT_TRUE(name && relay);
  EXPECT_FALSE(name->receive()) << "nothing has come";
  for (const bool of_nupa : {false, true}) {
    Way way;
    way.local = gid_of(1);
    way.remote = gid_of(2);
    way.interface = 7;
    way.port = 4791;
    way.of_nupa = of_nupa;
    ASSERT_TRUE(relay->pass(own_name(), way, mad_of(5)));
    const auto relayed = name->receive();
    ASSERT_TRUE(relayed);
    EXPECT_EQ(way, relayed->way);
    EXPECT_EQ(mad_of(5), relayed->mad);
  }
  EXPECT_FALSE(name->receive());
}

TEST(CmMadName, Pass_WithoutAProcess_Fails) {
  const auto relay = MadRelay::open();
  EXPECT_FALSE(relay->pass(own_name("nobody"), {}, mad_of(1)));
}

TEST(CmMadName, Pass_ReceiverDoesNotRead_LosesMessages) {
  const auto name = MadName::take(own_name());
  const auto relay = MadRelay::open();
  size_t passed = 0;
  for (int i = 0; i < 10'000; ++i) passed += relay->pass(own_name(), {}, mad_of(1)) ? 1 : 0;
  EXPECT_EQ(10'000u, passed) << "the name is taken, although the process does not read";
  size_t arrived = 0;
  while (name->receive()) ++arrived;
  EXPECT_GT(arrived, 0u);
  EXPECT_LT(arrived, 10'000u);
}

TEST(CmMadName, Receive_InvalidMessage_IsSkipped) {
  const auto name = MadName::take(own_name());
  const auto relay = MadRelay::open();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string full = "nupa-cm/" + own_name();
  std::memcpy(address.sun_path + 1, full.data(), full.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + full.size());
  const base::UniqueFd other_socket(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // A message as a process of this project sends it, read back, for the other socket to imitate.
  constexpr size_t kBytes = 8 + 32 + 8 + 256;
  char bytes[kBytes + 8] = {};
  ASSERT_TRUE(relay->pass(own_name(), {}, mad_of(1)));
  ASSERT_EQ(static_cast<ssize_t>(kBytes), recv(name->fd(), bytes, sizeof bytes, 0));
  const auto send = [&](size_t count) {
    ASSERT_EQ(static_cast<ssize_t>(count),
              sendto(other_socket.get(), bytes, count, 0, reinterpret_cast<const sockaddr*>(&address), length));
  };
  send(kBytes - 1);
  send(kBytes + 1);
  send(0);
  bytes[0] = static_cast<char>(bytes[0] ^ 1);
  send(kBytes);
  bytes[0] = static_cast<char>(bytes[0] ^ 1);
  ASSERT_TRUE(relay->pass(own_name(), {}, mad_of(9)));
  const auto relayed = name->receive();
  ASSERT_TRUE(relayed);
  EXPECT_EQ(mad_of(9), relayed->mad) << "the first message that is one";
  send(kBytes);
  EXPECT_TRUE(name->receive()) << "but for that it was right";
}

}  // namespace
}  // namespace nupa::cm
