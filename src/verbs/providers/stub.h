// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Libraries of adapters' drivers that have no device. perftest, UCX and DPDK are linked to those of rdma-core, and do
/// not start on an image without them, although they use no function of them on a NUPA device. `nupa run` names these
/// only if the system has none (docs/design/sysfs.md).
///
/// Each function answers as that of rdma-core for a device of another driver: EOPNOTSUPP, a null pointer with that
/// errno, or false. The arguments do not matter, so the functions have none: in the calling conventions of the
/// supported processors the caller removes them.
#include <sys/types.h>

#include <cerrno>

#define NUPA_STUB __attribute__((visibility("default")))
#define NUPA_NO(name) \
  extern "C" NUPA_STUB bool name() { return false; }
#define NUPA_NO_OBJECT(name)          \
  extern "C" NUPA_STUB void* name() { \
    errno = EOPNOTSUPP;               \
    return nullptr;                   \
  }
#define NUPA_NO_SUPPORT(name) \
  extern "C" NUPA_STUB int name() { return EOPNOTSUPP; }
#define NUPA_NO_BYTES(name)             \
  extern "C" NUPA_STUB ssize_t name() { \
    errno = EOPNOTSUPP;                 \
    return -1;                          \
  }
/// A function that returns nothing, for an object that no other one has made.
#define NUPA_NOTHING(name) \
  extern "C" NUPA_STUB void name() {}
