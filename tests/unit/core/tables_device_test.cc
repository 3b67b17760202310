// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/clock.h"
#include "core/device_attr.h"
#include "nupa_config.h"
#include "shm/layout.h"

namespace nupa::core {
namespace {

struct Reading {
  int64_t ns_before;
  uint64_t ticks;
  int64_t ns_after;
};

Reading read_clocks() {
  Reading now;
  now.ns_before = base::now_ns();
  now.ticks = base::ticks();
  now.ns_after = base::now_ns();
  return now;
}

TEST(Ibta11212QueryHca, Limits_OfObjects_FitTheTables) {
  const DeviceAttr& attr = device_attr();
  EXPECT_EQ(65536, attr.max_qp);
  EXPECT_EQ(static_cast<int>(shm::kMaxCq) - 1, attr.max_cq);
  EXPECT_EQ(static_cast<int>(shm::kMaxSrq) - 1, attr.max_srq);
  EXPECT_EQ(static_cast<int>(shm::kMaxMr) - 1, attr.max_mr);
  EXPECT_EQ(attr.max_mr, attr.max_mw) << "one table";
  EXPECT_EQ(static_cast<int>(shm::kMaxMcast), attr.max_total_mcast_qp_attach);
  EXPECT_LE(attr.max_mcast_qp_attach, attr.max_total_mcast_qp_attach);
  EXPECT_LE(attr.max_mcast_grp, attr.max_total_mcast_qp_attach);
}

TEST(Ibta11212QueryHca, Limits_All_ArePositive) {
  const DeviceAttr& attr = device_attr();
  for (const int limit : {attr.max_qp_wr, attr.max_sge, attr.max_sge_rd, attr.max_cqe, attr.max_pd, attr.max_ah,
                          attr.max_srq_wr, attr.max_srq_sge})
    EXPECT_GT(limit, 0);
  EXPECT_GT(attr.max_mr_size, uint64_t{1} << 46);
  EXPECT_GT(attr.max_inline_data, 0u);
  EXPECT_GT(attr.max_dm_size, 0u);
  EXPECT_EQ(1, attr.max_pkeys);
  EXPECT_EQ(1, attr.phys_port_cnt);
}

TEST(Ibta11212QueryHca, ReadsAndAtomics_Limits_GrowWithTheQueuePairs) {
  const DeviceAttr& attr = device_attr();
  EXPECT_EQ(16, attr.max_qp_rd_atom);
  EXPECT_EQ(16, attr.max_qp_init_rd_atom);
  EXPECT_EQ(16 * attr.max_qp, attr.max_res_rd_atom);
  EXPECT_EQ(AtomicCap::kGlob, attr.atomic_cap);
}

TEST(Ibta11212QueryHca, FirmwareVersion_IsTheVersionOfNupa) { EXPECT_STREQ(NUPA_VERSION, device_attr().fw_ver); }

TEST(Ibta11212QueryHca, Flags_OfTheVerbsAbi_AreSet) {
  const uint32_t flags = device_attr().device_cap_flags;
  const auto has = [&](uint32_t bit) { return (flags & 1u << bit) != 0; };
  EXPECT_TRUE(has(7)) << "CURR_QP_STATE_MOD";
  EXPECT_TRUE(has(11)) << "SYS_IMAGE_GUID";
  EXPECT_TRUE(has(12)) << "RC_RNR_NAK_GEN";
  EXPECT_TRUE(has(17)) << "MEM_WINDOW";
  EXPECT_TRUE(has(20)) << "XRC";
  EXPECT_TRUE(has(21)) << "MEM_MGT_EXTENSIONS";
  EXPECT_TRUE(has(24)) << "MEM_WINDOW_TYPE_2B";
  EXPECT_FALSE(has(0)) << "RESIZE_MAX_WR";
  EXPECT_FALSE(has(4)) << "AUTO_PATH_MIG: alternate paths are refused";
  EXPECT_FALSE(has(13)) << "SRQ_RESIZE: a shared receive queue does not grow";
  EXPECT_FALSE(has(23)) << "MEM_WINDOW_TYPE_2A: 2B excludes it (IBTA 10.6.7.2.3)";
}

TEST(Ibta11212QueryHca, OnDemandPaging_Capabilities_AreExplicitOnly) {
  using namespace odp_cap;
  const DeviceAttr& attr = device_attr();
  EXPECT_EQ(odp_general_cap::kSupport, attr.odp_general_caps);
  EXPECT_EQ(kSend | kRecv | kWrite | kRead | kAtomic | kSrqRecv, attr.odp_caps_rc);
  EXPECT_EQ(attr.odp_caps_rc, attr.odp_caps_xrc);
  EXPECT_EQ(0u, attr.odp_caps_uc & (kRead | kAtomic)) << "UC has neither (IBTA 9.8)";
  EXPECT_EQ(0u, attr.odp_caps_ud & (kWrite | kRead | kAtomic)) << "UD has sends only (IBTA 9.8)";
}

TEST(Ibta11212QueryHca, ClockRate_Measured_IsThatOfTheTimestampCounter) {
  const DeviceAttr& attr = device_attr();
  EXPECT_EQ(~uint64_t{0}, attr.completion_timestamp_mask);
  constexpr int kPauseUs = 50'000;
  constexpr double kTolerance = 5e-4;  // five times what the short measurement is good for
  const Reading start = read_clocks();
  usleep(kPauseUs);  // sleep: the clocks are compared over so long
  const Reading end = read_clocks();
  // Bounds rather than one quotient: whoever interrupts a reading widens them and cannot make the test fail.
  const double ticks_per_ms = static_cast<double>(end.ticks - start.ticks) * 1e6;
  const double slowest = ticks_per_ms / static_cast<double>(end.ns_after - start.ns_before);
  const double fastest = ticks_per_ms / static_cast<double>(end.ns_before - start.ns_after);
  EXPECT_GE(static_cast<double>(clock_khz()), slowest * (1 - kTolerance));
  EXPECT_LE(static_cast<double>(clock_khz()), fastest * (1 + kTolerance));
}

TEST(Ibta11212QueryHca, DeviceAttr_AskedAgain_IsNotMeasuredAgain) {
  const DeviceAttr* first = &device_attr();
  // One measurement of the clock takes half a millisecond. The quickest of some rounds is one that nobody interrupted.
  constexpr int kRounds = 20, kTimes = 50;
  int64_t quickest = INT64_MAX;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t start = base::now_ns();
    for (int i = 0; i < kTimes; ++i) ASSERT_EQ(first, &device_attr());
    quickest = std::min(quickest, base::now_ns() - start);
  }
  EXPECT_LT(quickest, 5'000'000);
}

TEST(Ibta11214QueryPort, PortAttr_IsThatOfAnActiveEthernetPort) {
  const PortAttr port = port_attr();
  EXPECT_EQ(PortState::kActive, port.state);
  EXPECT_EQ(Mtu::k4096, port.max_mtu);
  EXPECT_EQ(Mtu::k4096, port.active_mtu);
  EXPECT_EQ(static_cast<int>(shm::kMaxGids), port.gid_tbl_len);
  EXPECT_EQ(1u << 31, port.max_msg_sz) << "messages to 2^31 bytes";
  EXPECT_EQ(1, port.pkey_tbl_len);
  EXPECT_EQ(kHostLid, port.lid);
  EXPECT_EQ(PhysState::kLinkUp, port.phys_state);
  EXPECT_EQ(LinkLayer::kEthernet, port.link_layer);
  EXPECT_NE(0u, port.port_cap_flags & port_cap::kIpBasedGids);
}

TEST(Ibta11214QueryPort, WidthAndSpeed_AreCodesThatOlderProgramsDecode) {
  // Programs written before 2021 decode these codes and call others invalid.
  const PortAttr port = port_attr();
  const std::set<int> widths{1, 2, 4, 8, 16};
  const std::set<int> speeds{1, 2, 4, 8, 16, 32, 64};
  EXPECT_EQ(1u, widths.count(static_cast<int>(port.active_width))) << static_cast<int>(port.active_width);
  EXPECT_EQ(1u, speeds.count(static_cast<int>(port.active_speed))) << static_cast<int>(port.active_speed);
}

TEST(Capabilities, Explain_EachCapability_HasOneNameAndItsValue) {
  std::set<std::string> names;
  for (const Capability& c : explain_capabilities()) {
    EXPECT_TRUE(names.insert(c.name).second) << c.name << " twice";
    EXPECT_FALSE(c.value.empty()) << c.name;
    EXPECT_FALSE(c.source.empty()) << c.name;
    if (c.name == "max_qp") {
      EXPECT_EQ(std::to_string(device_attr().max_qp), c.value);
    }
    if (c.name == "gid_tbl_len") {
      EXPECT_EQ(std::to_string(port_attr().gid_tbl_len), c.value);
    }
  }
  for (const char* name : {"max_qp", "max_qp_wr", "max_sge", "max_cq", "max_cqe", "comp_channels", "max_mr", "max_srq",
                           "max_srq_wr", "max_pd", "max_ah", "max_mcast_grp", "core_clock_khz", "gid_tbl_len"})
    EXPECT_EQ(1u, names.count(name)) << name;
}

}  // namespace
}  // namespace nupa::core
