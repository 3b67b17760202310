// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

namespace nupa::rsockets {

/// The system's defaults. They are rdma-core's numbers unless a file /etc/rdma/rsocket/NAME holds another one.
struct Settings {
  uint32_t polling_us = 10;             ///< polling_time: microseconds of polling before a thread sleeps
  uint32_t receive_bytes = 128 * 1024;  ///< mem_default
  uint32_t send_bytes = 128 * 1024;     ///< wmem_default
  uint32_t send_requests = 384;         ///< sqsize_default
  uint32_t receive_requests = 384;      ///< rqsize_default
  uint32_t inline_bytes = 64;           ///< inline_default
  uint32_t mappings = 0;                ///< iomap_size: buffers that the peer may map
};

/// Reads the files of a folder. A missing file, or one without a number, leaves the default.
Settings read_settings(const std::string& folder);

/// The settings of /etc/rdma/rsocket, which are read once. Any thread.
const Settings& settings();

}  // namespace nupa::rsockets
