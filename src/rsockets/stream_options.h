// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rsockets/settings.h"

namespace nupa::rsockets {

/// The options of a stream. Accepted connections inherit those of their listener.
struct StreamOptions {
  uint32_t receive_bytes = settings().receive_bytes;
  uint32_t send_bytes = settings().send_bytes;
  uint32_t send_requests = settings().send_requests;
  uint32_t receive_requests = settings().receive_requests;
  uint32_t inline_bytes = settings().inline_bytes;
  uint32_t mappings = settings().mappings;

  bool reuse_address = false;
  bool reuse_port = false;
  bool out_of_band_inline = false;
  bool no_delay = false;
  bool v6_only = false;
  bool linger = true;       ///< closing waits until sent data has arrived
  int linger_seconds = -1;  ///< -1: the default
  bool keep_alive = false;
  int keep_idle = 0;  ///< seconds; 0: the system's value
  int keep_interval = 0;
  int keep_count = 0;
  int64_t receive_timeout_ms = -1;
  int64_t send_timeout_ms = -1;
  std::vector<std::byte> route;  ///< path records of RDMA_ROUTE, used until connect
};

}  // namespace nupa::rsockets
