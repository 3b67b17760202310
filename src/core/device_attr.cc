// SPDX-License-Identifier: Apache-2.0
#include "core/device_attr.h"

#include <cstdio>
#include <cstring>

#include "base/clock.h"
#include "base/tick_counter.h"
#include "host/peer.h"
#include "nupa_config.h"
#include "shm/layout.h"

namespace nupa::core {
namespace {

/// A locally administered identifier (bit 1 of the first octet), "NU", because there is no vendor.
constexpr uint32_t kVendor = 0x024e55;
constexpr int kNoneEntry = 1;          // entry 0 of the other tables means "none"
constexpr int kOutstandingReads = 16;  // the common value of adapters: programs size their windows by it
constexpr int kMaxWr = 32768;          // a receive ring of 2 MiB at two entries a receive
constexpr int kMaxCqe = (1 << shm::kMaxRingLog2) - 1;  // a ring of 64 MiB, one slot of which stays free
constexpr int kMaxHandles = 1 << 20;  // protection domains and address handles, which only the process's memory limits
constexpr uint32_t kMaxInline = 4096;
constexpr uint64_t kMaxDeviceMemory = 64 << 20;
constexpr uint64_t kPageSizes = ~uint64_t{0} << 12;  // 4 KiB, the smallest page, and every larger power of two
constexpr uint16_t kMaxModeration = 0xffff;          // the verbs' fields have 16 bits

struct Instant {
  uint64_t ticks;
  int64_t ns;
};

/// Reads both clocks at one moment: of several readings, the one that interrupts and preemption disturbed least.
Instant now_on_both_clocks() {
  constexpr int kReadings = 8;
  Instant best{};
  uint64_t narrowest = ~uint64_t{0};
  for (int i = 0; i < kReadings; ++i) {
    const uint64_t before = base::ticks();
    const int64_t ns = base::now_ns();
    const uint64_t width = base::ticks() - before;
    if (width >= narrowest) continue;
    narrowest = width;
    best = {before + width / 2, ns};
  }
  return best;
}

/// The processor's own value if it reports one, else a measurement.
uint64_t find_clock_khz() {
  if (const uint64_t reported = base::reported_tick_khz(); reported != 0) return reported;
  constexpr int64_t kMeasureNs = 500'000;
  const Instant start = now_on_both_clocks();
  while (base::now_ns() - start.ns < kMeasureNs) {
  }
  const Instant end = now_on_both_clocks();
  const auto ns = static_cast<uint64_t>(end.ns - start.ns);
  return ((end.ticks - start.ticks) * 1'000'000 + ns / 2) / ns;
}

DeviceAttr make() {
  DeviceAttr attr;
  std::snprintf(attr.fw_ver, sizeof attr.fw_ver, "%s", NUPA_VERSION);
  attr.vendor_id = kVendor;
  attr.max_mr_size = ~uint64_t{0};
  attr.page_size_cap = kPageSizes;
  attr.max_qp = static_cast<int>(shm::kMaxQp);
  attr.max_qp_wr = kMaxWr;
  attr.device_cap_flags = device_cap::kCurrQpStateMod | device_cap::kSysImageGuid | device_cap::kRcRnrNakGen |
                          device_cap::kMemWindow | device_cap::kXrc | device_cap::kMemMgtExtensions |
                          device_cap::kMemWindowType2b;
  attr.max_sge = kMaxSge;
  attr.max_sge_rd = kMaxSge;
  attr.max_cq = static_cast<int>(shm::kMaxCq) - kNoneEntry;
  attr.max_cqe = kMaxCqe;
  attr.max_mr = static_cast<int>(shm::kMaxMr) - kNoneEntry;
  attr.max_pd = kMaxHandles;
  attr.max_qp_rd_atom = kOutstandingReads;
  attr.max_qp_init_rd_atom = kOutstandingReads;
  attr.max_res_rd_atom = kOutstandingReads * attr.max_qp;
  attr.atomic_cap = AtomicCap::kGlob;
  attr.max_mw = attr.max_mr;
  attr.max_mcast_grp = static_cast<int>(shm::kMaxMcast);
  attr.max_mcast_qp_attach = static_cast<int>(shm::kMaxMcast);
  attr.max_total_mcast_qp_attach = static_cast<int>(shm::kMaxMcast);
  attr.max_ah = kMaxHandles;
  attr.max_srq = static_cast<int>(shm::kMaxSrq) - kNoneEntry;
  attr.max_srq_wr = kMaxWr;
  attr.max_srq_sge = kMaxSge;
  attr.max_pkeys = 1;
  attr.phys_port_cnt = 1;
  attr.max_inline_data = kMaxInline;
  attr.max_dm_size = kMaxDeviceMemory;
  attr.completion_timestamp_mask = ~uint64_t{0};
  attr.odp_general_caps = odp_general_cap::kSupport;
  attr.odp_caps_rc =
      odp_cap::kSend | odp_cap::kRecv | odp_cap::kWrite | odp_cap::kRead | odp_cap::kAtomic | odp_cap::kSrqRecv;
  attr.odp_caps_xrc = attr.odp_caps_rc;
  attr.odp_caps_uc = odp_cap::kSend | odp_cap::kRecv | odp_cap::kWrite | odp_cap::kSrqRecv;
  attr.odp_caps_ud = odp_cap::kSend | odp_cap::kRecv | odp_cap::kSrqRecv;
  attr.max_cq_count = kMaxModeration;
  attr.max_cq_period = kMaxModeration;
  return attr;
}

}  // namespace

const DeviceAttr& device_attr() {
  static const DeviceAttr attr = make();
  return attr;
}

uint64_t clock_khz() {
  static const uint64_t khz = find_clock_khz();
  return khz;
}

PortAttr port_attr() {
  PortAttr port;
  port.state = PortState::kActive;
  port.max_mtu = Mtu::k4096;
  port.active_mtu = Mtu::k4096;
  port.gid_tbl_len = static_cast<int>(shm::kMaxGids);
  port.port_cap_flags = port_cap::kIpBasedGids | port_cap::kCm;
  port.max_msg_sz = 1u << 31;
  port.lid = kHostLid;
  port.pkey_tbl_len = 1;
  // The fastest rate that programs written before 2021 can decode: a newer code, such as NDR, is invalid to them.
  port.active_width = LinkWidth::k4x;
  port.active_speed = LinkSpeed::kHdr;
  port.phys_state = PhysState::kLinkUp;
  port.link_layer = LinkLayer::kEthernet;
  return port;
}

std::vector<Capability> explain_capabilities() {
  const DeviceAttr& attr = device_attr();
  const PortAttr port = port_attr();
  const auto number = [](auto value) { return std::to_string(value); };
  return {
      {"max_qp", number(attr.max_qp),
       number(shm::kMaxBanks) + " slots of " + number(shm::kSlotQp) +
           " queue pairs; a process takes slots of the host as it needs them"},
      {"max_qp_wr", number(attr.max_qp_wr), "choice: a receive ring of 2 MiB, two entries a receive"},
      {"max_sge", number(attr.max_sge), "choice: the entries of one request are on the stack"},
      {"max_sge_rd", number(attr.max_sge_rd), "same as max_sge"},
      {"max_inline_data", number(attr.max_inline_data), "choice: the post call copies inline data, of any size"},
      {"max_cq", number(attr.max_cq), "size of the segment's completion queue table"},
      {"max_cqe", number(attr.max_cqe), "choice: a ring of 64 MiB"},
      {"comp_channels", number(host::Peer::kMaxChannels), "choice: each takes two descriptors of the process"},
      {"max_mr", number(attr.max_mr), "size of the segment's key table, shared with memory windows"},
      {"max_mw", number(attr.max_mw), "size of the segment's key table, shared with memory regions"},
      {"max_mr_size", "2^64-1", "the address space"},
      {"page_size_cap", "4 KiB and up", "the processor's pages"},
      {"max_pd", number(attr.max_pd), "choice: a protection domain is only a number"},
      {"max_ah", number(attr.max_ah), "choice: an address handle is memory of its process"},
      {"max_srq", number(attr.max_srq), "a shared receive queue number has 12 bits for the queue"},
      {"max_srq_wr", number(attr.max_srq_wr), "same ring as max_qp_wr"},
      {"max_srq_sge", number(attr.max_srq_sge), "same as max_sge"},
      {"max_qp_rd_atom", number(attr.max_qp_rd_atom), "shm completes a READ within its post: none is outstanding"},
      {"atomic_cap", "GLOB", "atomics are processor instructions"},
      {"max_mcast_grp", number(attr.max_mcast_grp), "size of the segment's multicast table"},
      {"max_mcast_attach", number(attr.max_total_mcast_qp_attach), "size of the segment's multicast table"},
      {"max_pkeys", number(attr.max_pkeys), "RoCE has one partition, the default one"},
      {"ack_delay", number(attr.local_ca_ack_delay), "shm executes a request within its post"},
      {"max_dm_size", number(attr.max_dm_size), "choice: device memory is shared memory of the host"},
      {"on-demand paging", "RC UC UD XRC", "peers use the page tables of the process"},
      {"cq moderation", number(attr.max_cq_count) + "/" + number(attr.max_cq_period), "width of the verbs' fields"},
      {"core_clock_khz", number(clock_khz()), "the processor's counter (CPUID 15h or CNTFRQ_EL0, else measured)"},
      {"gid_tbl_len", number(port.gid_tbl_len), "size of the segment's GID table"},
      {"max_msg_sz", number(port.max_msg_sz), "IBTA 9.3.2: messages to 2 GiB"},
      {"active_width", "4X", "as most adapters report"},
      {"active_speed", "50.0 Gbps a lane",
       "HDR, the fastest value that programs of before 2021 accept; it limits nothing"},
      {"active_mtu", "4096", "the largest value of the specification; shm sends no packets"},
  };
}

}  // namespace nupa::core
