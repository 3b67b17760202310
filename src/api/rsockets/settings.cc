#include "settings.h"

#include <algorithm>
#include <cstdio>

#include "limits.h"
#include "wire.h"

namespace nupa::rsockets {
namespace {

void read_number(const char* path, uint32_t* value) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return;
  unsigned int number;
  if (std::fscanf(file, "%u", &number) == 1) *value = number;
  std::fclose(file);
}

Settings read_settings() {
  Settings result;
  read_number("/etc/rdma/rsocket/polling_time", &result.polling_us);
  read_number("/etc/rdma/rsocket/mem_default", &result.receive_bytes);
  read_number("/etc/rdma/rsocket/wmem_default", &result.send_bytes);
  read_number("/etc/rdma/rsocket/sqsize_default", &result.send_requests);
  read_number("/etc/rdma/rsocket/rqsize_default", &result.receive_requests);
  read_number("/etc/rdma/rsocket/inline_default", &result.inline_bytes);
  read_number("/etc/rdma/rsocket/iomap_size", &result.mappings);
  result.send_requests = std::min(result.send_requests, kMaxRequests);
  result.receive_requests = std::min(result.receive_requests, kMaxRequests);
  result.inline_bytes = std::min(result.inline_bytes, kMaxRequests);
  result.mappings = scale_up(scale_down(result.mappings));
  return result;
}

}  // namespace

const Settings& settings() {
  static const Settings instance = read_settings();
  return instance;
}

}  // namespace nupa::rsockets
