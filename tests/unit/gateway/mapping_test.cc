// SPDX-License-Identifier: Apache-2.0
/// Tests of --for of `nupa gateway`.
#include <gtest/gtest.h>

#include "base/gid.h"
#include "gateway/mapping.h"

namespace nupa::gateway {
namespace {

TEST(GatewayMapping, Parse_AcceptsAddressesWithAndWithoutPorts) {
  const auto plain = Mapping::parse("10.1.0.1=10.2.0.2");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->listen, base::ipv4_gid(10, 1, 0, 1));
  EXPECT_EQ(plain->far, base::ipv4_gid(10, 2, 0, 2));
  EXPECT_EQ(plain->listen_port, 0);
  EXPECT_EQ(plain->far_port, 0);
  const auto ports = Mapping::parse("10.1.0.1:7000=10.2.0.2:65535");
  ASSERT_TRUE(ports);
  EXPECT_EQ(ports->listen_port, 7000);
  EXPECT_EQ(ports->far_port, 65535);
  EXPECT_EQ(ports->text(), "10.1.0.1:7000=10.2.0.2:65535");
  const auto one_port = Mapping::parse("10.1.0.1:7000=10.2.0.2");
  ASSERT_TRUE(one_port);
  EXPECT_EQ(one_port->far_port, 0);
  const auto ipv6 = Mapping::parse("[fd00::1]:80=fd01::2");
  ASSERT_TRUE(ipv6);
  EXPECT_EQ(ipv6->listen_port, 80);
  EXPECT_EQ(ipv6->text(), "[fd00::1]:80=fd01::2");
  EXPECT_TRUE(Mapping::parse("fd00::1=fd01::2"));
  EXPECT_TRUE(Mapping::parse("fd00::1=10.2.0.2"));
}

TEST(GatewayMapping, Parse_RejectsTheRest) {
  for (const char* const text :
       {"", "10.1.0.1", "10.1.0.1=", "=10.1.0.1", "10.1.0.1=10.2.0.2=10.3.0.3", "10.1.0=10.2.0.2", "host=10.2.0.2",
        "10.1.0.1:0=10.2.0.2", "10.1.0.1:65536=10.2.0.2", "10.1.0.1:7x=10.2.0.2", "10.1.0.1:=10.2.0.2",
        "10.1.0.1=10.2.0.2:70", "[fd00::1=fd01::1", "[fd00::1]80=fd01::1"})
    EXPECT_FALSE(Mapping::parse(text)) << text;
}

}  // namespace
}  // namespace nupa::gateway
