// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/export.h>
#include <nupa/types.h>

#include <vector>

namespace nupa::base {

/// An address of this network namespace.
struct OwnAddress {
  Gid gid;  ///< IPv4 as ::ffff:a.b.c.d
  bool is_up;
  bool is_loopback;  ///< its interface is a loopback interface
};

/// All addresses in the system's order, also those of interfaces that are down. Empty if the system reports none.
NUPA_EXPORT std::vector<OwnAddress> own_addresses();

}  // namespace nupa::base
