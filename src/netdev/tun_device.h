#pragma once
#include <nupa/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "netdev/prefix.h"
#include "base/unique_fd.h"

namespace nupa::netdev {

/// A network interface whose other side is this process (Linux: Documentation/networking/tuntap.rst). It goes with the
/// last descriptor, also when the process is killed.
class TunDevice {
 public:
  /// In the network namespace of this thread; down, without addresses. EPERM: CAP_NET_ADMIN is missing; EBUSY: there
  /// is an interface of this name; ENOENT: the kernel has no TUN; EINVAL: the name.
  static Result<TunDevice> open(const std::string& name, uint32_t queues);

  const std::string& name() const { return name_; }
  /// Non-blocking. A read gives a VirtioHeader and a packet, a write takes one.
  const std::vector<base::UniqueFd>& queues() const { return queues_; }

  /// Whether the kernel has and takes large segments of datagrams (USO, Linux 6.2).
  bool takes_datagrams() const { return takes_datagrams_; }

  // errno values; 0: done.
  int set_mtu(uint32_t mtu) const;
  int add_address(const Prefix& prefix) const;
  /// The kernel gives it no addresses by itself; where no IPv6 is wanted, it has none at all.
  void have_own_addresses_only(bool ipv6) const;
  int bring_up() const;
  /// Of the interface, as the kernel counts: packets that had no room in its queue.
  uint64_t dropped() const;

 private:
  explicit TunDevice(std::string name) : name_(std::move(name)) {}
  std::string name_;
  std::vector<base::UniqueFd> queues_;
  bool takes_datagrams_ = true;
};

}  // namespace nupa::netdev
