// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <map>
#include <mutex>

#include "ccl/api/handles.h"
#include "progress/of_process.h"

namespace nupa::ccl {
namespace {

/// The endpoint of each allocation, which must not end before the memory is freed.
struct Owners {
  progress::ForkMutex mutex;
  std::map<void*, std::shared_ptr<Endpoint>> by_address;
};

Owners& g_owners = *new Owners;  // never freed: programs may free memory until they exit

}  // namespace
}  // namespace nupa::ccl

using namespace nupa::ccl;

extern "C" {

NUPA_EXPORT void* nupa_ccl_alloc(size_t bytes) {
  auto endpoint = Endpoint::acquire();
  if (!endpoint) {
    report(endpoint.error());
    return nullptr;
  }
  auto memory = (*endpoint)->allocations().allocate(bytes);
  if (!memory) {
    report(memory.error());
    return nullptr;
  }
  std::lock_guard lock(g_owners.mutex);
  g_owners.by_address[*memory] = std::move(*endpoint);
  return *memory;
}

NUPA_EXPORT int nupa_ccl_free(void* memory) {
  if (memory == nullptr) return 0;
  std::shared_ptr<Endpoint> endpoint;
  {
    std::lock_guard lock(g_owners.mutex);
    const auto found = g_owners.by_address.find(memory);
    if (found == g_owners.by_address.end())
      return report(EINVAL, "no allocation by nupa_ccl_alloc() begins at this address");
    endpoint = std::move(found->second);
    g_owners.by_address.erase(found);
  }
  if (endpoint->is_here()) endpoint->allocations().release(memory);
  return 0;
}

}  // extern "C"
