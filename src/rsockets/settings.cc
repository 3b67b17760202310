// SPDX-License-Identifier: Apache-2.0
#include "rsockets/settings.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "rsockets/limits.h"
#include "rsockets/wire.h"

namespace nupa::rsockets {
namespace {

void read_number(const std::string& path, uint32_t* value) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return;
  unsigned int number;
  if (std::fscanf(file, "%u", &number) == 1) *value = number;
  std::fclose(file);
}

}  // namespace

Settings read_settings(const std::string& folder) {
  Settings result;
  read_number(folder + "/polling_time", &result.polling_us);
  read_number(folder + "/mem_default", &result.receive_bytes);
  read_number(folder + "/wmem_default", &result.send_bytes);
  read_number(folder + "/sqsize_default", &result.send_requests);
  read_number(folder + "/rqsize_default", &result.receive_requests);
  read_number(folder + "/inline_default", &result.inline_bytes);
  read_number(folder + "/iomap_size", &result.mappings);
  result.send_requests = std::min(result.send_requests, kMaxRequests);
  result.receive_requests = std::min(result.receive_requests, kMaxRequests);
  result.inline_bytes = std::min(result.inline_bytes, kMaxRequests);
  result.mappings = scale_up(scale_down(result.mappings));
  return result;
}

const Settings& settings() {
  static const Settings instance = read_settings("/etc/rdma/rsocket");
  return instance;
}

}  // namespace nupa::rsockets
