// SPDX-License-Identifier: Apache-2.0
/// Names and numbers: texts of enumerations, rates, sysfs files.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>

#include "verbs/wrappers.h"

namespace {

template <size_t N>
const char* pick(const std::array<const char*, N>& names, uint32_t value) {
  return value < N && names[value] != nullptr ? names[value] : "unknown";
}

struct Rate {
  ibv_rate code;
  int mult;  ///< multiples of 2.5 Gb/s; -1: not a multiple
  int mbps;
};

/// IBTA table 235 (static rate): lanes times the bits that a lane carries after encoding.
constexpr Rate kRates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},     {IBV_RATE_5_GBPS, 2, 5000},         {IBV_RATE_10_GBPS, 4, 10000},
    {IBV_RATE_20_GBPS, 8, 20000},     {IBV_RATE_30_GBPS, 12, 30000},      {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},    {IBV_RATE_80_GBPS, 32, 80000},      {IBV_RATE_120_GBPS, 48, 120000},
    {IBV_RATE_14_GBPS, -1, 14062},    {IBV_RATE_56_GBPS, -1, 56250},      {IBV_RATE_112_GBPS, -1, 112500},
    {IBV_RATE_168_GBPS, -1, 168750},  {IBV_RATE_25_GBPS, -1, 25781},      {IBV_RATE_100_GBPS, -1, 103125},
    {IBV_RATE_200_GBPS, -1, 206250},  {IBV_RATE_300_GBPS, -1, 309375},    {IBV_RATE_28_GBPS, 11, 28125},
    {IBV_RATE_50_GBPS, 20, 53125},    {IBV_RATE_400_GBPS, 160, 425000},   {IBV_RATE_600_GBPS, 240, 637500},
    {IBV_RATE_800_GBPS, 320, 850000}, {IBV_RATE_1200_GBPS, 480, 1275000},
};

}  // namespace

NUPA_VERBS const char* ibv_wc_status_str(ibv_wc_status status) {
  static constexpr std::array<const char*, 24> kNames = {
      "success",
      "local length error",
      "local QP operation error",
      "local EE context operation error",
      "local protection error",
      "Work Request Flushed Error",
      "memory management operation error",
      "bad response error",
      "local access error",
      "remote invalid request error",
      "remote access error",
      "remote operation error",
      "transport retry counter exceeded",
      "RNR retry counter exceeded",
      "local RDD violation error",
      "remote invalid RD request",
      "aborted error",
      "invalid EE context number",
      "invalid EE context state",
      "fatal error",
      "response timeout error",
      "general error",
      "TM error",
      "TM software rendezvous",
  };
  return pick(kNames, nupa::verbs::number_in(status));
}

NUPA_VERBS const char* ibv_event_type_str(ibv_event_type event) {
  static constexpr std::array<const char*, 20> kNames = {
      "CQ error",
      "local work queue catastrophic error",
      "invalid request local work queue error",
      "local access violation work queue error",
      "communication established",
      "send queue drained",
      "path migrated",
      "path migration request error",
      "local catastrophic error",
      "port active",
      "port error",
      "LID change",
      "P_Key change",
      "SM change",
      "SRQ catastrophic error",
      "SRQ limit reached",
      "last WQE reached",
      "client reregistration",
      "GID table change",
      "WQ fatal",
  };
  return pick(kNames, nupa::verbs::number_in(event));
}

NUPA_VERBS const char* ibv_node_type_str(ibv_node_type type) {
  static constexpr std::array<const char*, 8> kNames = {nullptr,
                                                        "InfiniBand channel adapter",
                                                        "InfiniBand switch",
                                                        "InfiniBand router",
                                                        "iWARP NIC",
                                                        "usNIC",
                                                        "usNIC UDP",
                                                        "unspecified"};
  return pick(kNames, nupa::verbs::number_in(type));
}

NUPA_VERBS const char* ibv_port_state_str(ibv_port_state state) {
  static constexpr std::array<const char*, 6> kNames = {"no state change (NOP)", "down", "init", "armed", "active",
                                                        "active defer"};
  return pick(kNames, nupa::verbs::number_in(state));
}

NUPA_VERBS int ibv_rate_to_mult(ibv_rate rate) {
  for (const Rate& known : kRates)
    if (known.code == nupa::verbs::number_in(rate)) return known.mult;
  return -1;
}

NUPA_VERBS ibv_rate mult_to_ibv_rate(int mult) {
  for (const Rate& known : kRates)
    if (known.mult == mult && mult > 0) return known.code;
  return IBV_RATE_MAX;
}

NUPA_VERBS int ibv_rate_to_mbps(ibv_rate rate) {
  for (const Rate& known : kRates)
    if (known.code == nupa::verbs::number_in(rate)) return known.mbps;
  return -1;
}

NUPA_VERBS ibv_rate mbps_to_ibv_rate(int mbps) {
  for (const Rate& known : kRates)
    if (known.mbps == mbps) return known.code;
  return IBV_RATE_MAX;
}

NUPA_VERBS const char* ibv_get_sysfs_path(void) { return "/sys"; }

NUPA_VERBS int ibv_read_sysfs_file(const char* folder, const char* file, char* buffer, size_t size) {
  if (folder == nullptr || file == nullptr || buffer == nullptr || size == 0) return -1;
  char path[512];
  if (std::snprintf(path, sizeof path, "%s/%s", folder, file) >= static_cast<int>(sizeof path)) return -1;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t length = read(fd, buffer, size);
  close(fd);
  if (length <= 0) return -1;
  if (buffer[length - 1] == '\n')
    buffer[--length] = '\0';
  else if (static_cast<size_t>(length) < size)
    buffer[length] = '\0';
  else
    return -1;
  return static_cast<int>(length);
}

NUPA_VERBS int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attr, uint8_t* mac, uint16_t* vid) {
  if (context == nullptr || attr == nullptr || mac == nullptr) {
    errno = EINVAL;
    return -1;
  }
  // No packet leaves through an Ethernet port. The interface identifier of a link-local address contains a hardware
  // address (RFC 4291, appendix A); any other destination has none.
  const uint8_t* gid = attr->grh.dgid.raw;
  if (gid[0] != 0xfe || gid[1] != 0x80 || gid[11] != 0xff || gid[12] != 0xfe) {
    errno = EOPNOTSUPP;
    return -1;
  }
  const uint8_t address[ETHERNET_LL_SIZE] = {
      static_cast<uint8_t>(gid[8] ^ 2), gid[9], gid[10], gid[13], gid[14], gid[15]};
  std::memcpy(mac, address, sizeof address);
  if (vid != nullptr) *vid = 0xffff;
  return 0;
}
