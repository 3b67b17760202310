// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "netdev/prefix.h"
#include "base/unique_fd.h"

namespace nupa::netdev {

/// A network interface whose packets this process reads and writes (Linux: Documentation/networking/tuntap.rst). The
/// kernel removes it with its last descriptor, also when the process is killed.
class TunDevice {
 public:
  /// Creates the interface in the network namespace of this thread, down and without addresses. EPERM: CAP_NET_ADMIN is
  /// missing. EBUSY: an interface of this name exists. ENOENT: the kernel has no TUN. EINVAL: the name is invalid.
  static Result<TunDevice> open(const std::string& name, uint32_t queues);

  const std::string& name() const { return name_; }
  /// The non-blocking descriptors. A read returns a VirtioHeader and a packet, and a write takes them.
  const std::vector<base::UniqueFd>& queues() const { return queues_; }

  /// True if the kernel sends and accepts large segments of datagrams (USO, Linux 6.2).
  bool takes_datagrams() const { return takes_datagrams_; }

  // These functions return 0 or an errno value.
  int set_mtu(uint32_t mtu) const;
  int add_address(const Prefix& prefix) const;
  /// Keeps the kernel from adding addresses automatically. Without `ipv6` the interface gets no IPv6 at all.
  void have_own_addresses_only(bool ipv6) const;
  int bring_up() const;
  /// Returns the kernel's count of packets that were dropped because the interface's queue was full.
  uint64_t dropped() const;

 private:
  explicit TunDevice(std::string name) : name_(std::move(name)) {}
  std::string name_;
  std::vector<base::UniqueFd> queues_;
  bool takes_datagrams_ = true;
};

}  // namespace nupa::netdev
