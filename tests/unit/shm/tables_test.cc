// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cerrno>

#include "core/gid_table.h"
#include "core/qp_state.h"
#include "core/seam/timers.h"

namespace nupa::core {
namespace {

using core::ack_timeout_ns;
using core::rnr_timer_ns;

QpAttr good_path() {
  QpAttr attr;
  attr.av.is_global = true;
  attr.av.port_num = 1;
  attr.path_mtu = Mtu::k1024;
  attr.port_num = 1;
  return attr;
}

constexpr uint32_t kInit = qp_attr::kState | qp_attr::kPkeyIndex | qp_attr::kPort | qp_attr::kAccessFlags;
constexpr uint32_t kRtr = qp_attr::kState | qp_attr::kAv | qp_attr::kPathMtu | qp_attr::kDestQpn | qp_attr::kRqPsn |
                          qp_attr::kMaxDestRdAtomic | qp_attr::kMinRnrTimer;
constexpr uint32_t kRts = qp_attr::kState | qp_attr::kTimeout | qp_attr::kRetryCnt | qp_attr::kRnrRetry |
                          qp_attr::kSqPsn | qp_attr::kMaxQpRdAtomic;

int move(QpType type, QpState from, QpState to, uint32_t mask, QpAttr attr = good_path()) {
  attr.state = to;
  QpState next;
  return check_modify(type, from, attr, mask, &next);
}

TEST(QpStateTable91, RcTransitions_WithRequiredAttributes_Succeed) {
  EXPECT_EQ(0, move(QpType::kRc, QpState::kReset, QpState::kInit, kInit));
  EXPECT_EQ(0, move(QpType::kRc, QpState::kInit, QpState::kRtr, kRtr));
  EXPECT_EQ(0, move(QpType::kRc, QpState::kRtr, QpState::kRts, kRts));
}

TEST(QpStateTable91, MissingRequiredAttribute_IsRefused) {
  for (uint32_t bit = 1; bit < 1u << 26; bit <<= 1) {
    if ((kRtr & bit) == 0 || bit == qp_attr::kState) continue;
    EXPECT_EQ(EINVAL, move(QpType::kRc, QpState::kInit, QpState::kRtr, kRtr & ~bit)) << bit;
  }
}

TEST(QpStateTable91, AttributesOfOtherTransitionsAreRefused) {
  EXPECT_EQ(EINVAL, move(QpType::kRc, QpState::kReset, QpState::kInit, kInit | qp_attr::kSqPsn));
  EXPECT_EQ(EINVAL, move(QpType::kUd, QpState::kReset, QpState::kInit, kInit));
  EXPECT_EQ(EINVAL, move(QpType::kRc, QpState::kRts, QpState::kErr, qp_attr::kState | qp_attr::kTimeout));
}

TEST(QpStateTable91, SkippedStates_AreRefused) {
  EXPECT_EQ(EINVAL, move(QpType::kRc, QpState::kReset, QpState::kRtr, kRtr));
  EXPECT_EQ(EINVAL, move(QpType::kRc, QpState::kInit, QpState::kRts, kRts));
  EXPECT_EQ(EINVAL, move(QpType::kRc, QpState::kErr, QpState::kRts, kRts));
}

TEST(QpStateTable91, ResetAndError_FromEachState_AreReached) {
  for (uint32_t from = 0; from <= static_cast<uint32_t>(QpState::kErr); ++from) {
    EXPECT_EQ(0, move(QpType::kRc, static_cast<QpState>(from), QpState::kReset, qp_attr::kState));
    EXPECT_EQ(0, move(QpType::kRc, static_cast<QpState>(from), QpState::kErr, qp_attr::kState));
  }
}

TEST(QpStateTable91, SqeToRts_UnreliableServicesOnly_Succeeds) {
  EXPECT_EQ(0, move(QpType::kUd, QpState::kSqe, QpState::kRts, qp_attr::kState));
  EXPECT_EQ(0, move(QpType::kUc, QpState::kSqe, QpState::kRts, qp_attr::kState));
  EXPECT_EQ(EINVAL, move(QpType::kRc, QpState::kSqe, QpState::kRts, qp_attr::kState));
}

TEST(QpStateTable91, ValuesOutOfRangeAreRefused) {
  QpAttr attr = good_path();
  attr.path_mtu = Mtu{6};
  EXPECT_EQ(EINVAL, move(QpType::kRc, QpState::kInit, QpState::kRtr, kRtr, attr));
  attr = good_path();
  attr.av.is_global = false;
  attr.av.dlid = 7;
  EXPECT_EQ(EINVAL, move(QpType::kRc, QpState::kInit, QpState::kRtr, kRtr, attr));
  attr = good_path();
  attr.dest_qp_num = 1 << 24;
  EXPECT_EQ(EINVAL, move(QpType::kRc, QpState::kInit, QpState::kRtr, kRtr, attr));
  attr = good_path();
  attr.timeout = 32;
  EXPECT_EQ(EINVAL, move(QpType::kRc, QpState::kRtr, QpState::kRts, kRts, attr));
  attr = good_path();
  attr.port_num = 2;
  EXPECT_EQ(EINVAL, move(QpType::kRc, QpState::kReset, QpState::kInit, kInit, attr));
}

TEST(Timers, TimerCodes_HaveTheSpecifiedTimes) {
  EXPECT_EQ(655'360'000, rnr_timer_ns(0));
  EXPECT_EQ(10'000, rnr_timer_ns(1));
  EXPECT_EQ(640'000, rnr_timer_ns(12));
  EXPECT_EQ(491'520'000, rnr_timer_ns(31));
  EXPECT_EQ(0, ack_timeout_ns(0));
  EXPECT_EQ(4096 * 16384, ack_timeout_ns(14));
}

TEST(GidTable, FirstEntries_AreLinkLocalAndIpv4) {
  const auto table = gid_table_of(read_host_addresses());
  ASSERT_GE(table.size(), 2u);
  EXPECT_EQ(0xfe, table[0].gid.raw[0]);
  EXPECT_EQ(0x80, table[0].gid.raw[1]);
  EXPECT_EQ(0xff, table[1].gid.raw[10]);
  EXPECT_EQ(0xff, table[1].gid.raw[11]);
  for (size_t i = 0; i < table.size(); ++i) EXPECT_EQ(i, table[i].index);
}

}  // namespace
}  // namespace nupa::core
