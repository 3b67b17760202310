// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/doorbell.h"

namespace nupa::pool {

const char* name_of(DoorbellKind kind) {
  switch (kind) {
    case DoorbellKind::kFutex:
      return "futex";
    case DoorbellKind::kIvshmem:
      return "ivshmem";
    case DoorbellKind::kNone:
      break;
  }
  return "none";
}

}  // namespace nupa::pool
