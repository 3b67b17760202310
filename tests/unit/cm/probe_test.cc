// SPDX-License-Identifier: Apache-2.0
// Probes of processes on other hosts, and the result of answers, refusals and missing answers.
#include <gtest/gtest.h>

#include "cm/engine/probe.h"

namespace nupa::cm {
namespace {

constexpr size_t kHeaderBytes = 24;

TEST(CmProbe, Probe_WrittenAndRead_IsTheSame) {
  for (const bool is_echo : {false, true}) {
    const Probe sent{is_echo, 0x12345678, 0x1122334455667788};
    const Mad mad = write_probe(sent);
    const auto found = read_probe(mad);
    ASSERT_TRUE(found);
    EXPECT_EQ(sent.is_echo, found->is_echo);
    EXPECT_EQ(sent.port, found->port);
    EXPECT_EQ(sent.instance, found->instance);
    EXPECT_FALSE(read_envelope(mad)) << "it is none of the communication manager's";
  }
}

TEST(CmProbe, Probe_HasTheSpecifiedLayout) {
  const Mad mad = write_probe({true, 0x0a0b0c0d, 0x1122334455667788});
  constexpr uint8_t kStart[] = {1, 0x0a, 1, 3};  // version, a vendor's class, its version, send
  constexpr uint8_t kBody[] = {0x45, 0x56, 0x4c, 0x41, 0x41, 0x50, 0x55, 0x41, 0x0a, 0x0b, 0x0c, 0x0d,
                               0,    0,    0,    0,    0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88};
  for (size_t i = 0; i < sizeof kStart; ++i) EXPECT_EQ(std::byte{kStart[i]}, mad[i]) << i;
  EXPECT_EQ(std::byte{2}, mad[17]) << "an echo";
  for (size_t i = 0; i < sizeof kBody; ++i) EXPECT_EQ(std::byte{kBody[i]}, mad[kHeaderBytes + i]) << i;
}

TEST(CmProbe, Probe_OfAnotherKind_IsRefused) {
  const Mad mad = write_probe({false, 1, 2});
  for (const size_t at : {size_t{0}, size_t{1}, size_t{17}, kHeaderBytes, kHeaderBytes + 7}) {
    Mad other = mad;
    other[at] ^= std::byte{0x40};
    EXPECT_FALSE(read_probe(other)) << "byte " << at;
  }
  Mad other = mad;
  for (const uint8_t attribute : {0, 3}) {
    other[17] = std::byte{attribute};
    EXPECT_FALSE(read_probe(other)) << int{attribute};
  }
}

TEST(PeerPulse, MoreThanThirtyProbesWithoutAnAnswer_AreSilence) {
  PeerPulse pulse;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 30; ++i) pulse.asked();
    EXPECT_FALSE(pulse.is_silent());
    pulse.asked();
    EXPECT_TRUE(pulse.is_silent());
    pulse.heard(7);
    EXPECT_FALSE(pulse.is_silent());
  }
}

TEST(PeerPulse, TwoRefusalsInARow_EndTheProcess) {
  PeerPulse pulse;
  EXPECT_TRUE(pulse.refused());
  pulse.heard(7);
  EXPECT_TRUE(pulse.refused()) << "it has answered in between";
  EXPECT_FALSE(pulse.refused());
}

TEST(PeerPulse, NewInstance_AfterThreeProbes_ConnectionsAreConfirmedToIt) {
  PeerPulse pulse;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(pulse.heard(7)) << i;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(pulse.heard(7));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(pulse.heard(8)) << "another process has the port";
  EXPECT_FALSE(pulse.heard(8));
  EXPECT_TRUE(pulse.heard(9));
  EXPECT_TRUE(pulse.heard(10));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(pulse.heard(10));
  EXPECT_FALSE(pulse.heard(10));
}

}  // namespace
}  // namespace nupa::cm
