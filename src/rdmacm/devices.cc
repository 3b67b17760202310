// SPDX-License-Identifier: Apache-2.0
/// The devices and the communication manager. They are opened at the first use and then kept, as
/// rdma_get_devices(3) states.
#include "rdmacm/id.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <optional>

#include "progress/lifecycle.h"

namespace nupa::rdmacm {
namespace {

std::mutex g_mutex;
std::mutex g_manager_mutex;
using Devices = std::vector<std::unique_ptr<OpenDevice>>;

/// An object for each process. A forked child has no access to the parent's objects and opens new ones.
template <class T>
class OfProcess {
 public:
  T& get() {
    if (!owner_ || !owner_->holds()) {
      kept_ = new T;  // the old object is not freed, because its parts belong to the parent
      owner_.emplace();
    }
    return *kept_;
  }

 private:
  T* kept_ = nullptr;
  std::optional<progress::OfThisProcess> owner_;
};

Devices& devices() {
  static auto* opened = new OfProcess<Devices>;
  return opened->get();
}

/// Opens a device of the list that programs get. The verbs library uses the same order as the core.
std::unique_ptr<OpenDevice> open_at(uint32_t index) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr) return nullptr;
  auto made = std::make_unique<OpenDevice>();
  if (index < static_cast<uint32_t>(count))
    made->verbs = ibv_open_device(list[index]);
  else
    errno = ENODEV;
  ibv_free_device_list(list);
  if (made->verbs == nullptr) return nullptr;
  made->pd = ibv_alloc_pd(made->verbs);
  if (made->pd == nullptr || ibv_query_device(made->verbs, &made->attr) != 0) {
    const int error = errno;
    if (made->pd != nullptr) ibv_dealloc_pd(made->pd);
    ibv_close_device(made->verbs);
    errno = error;
    return nullptr;
  }
  return made;
}

}  // namespace

OpenDevice* open_device(uint32_t index) {
  std::lock_guard lock(g_mutex);
  auto& opened = devices();
  if (opened.size() <= index) opened.resize(index + 1);
  if (opened[index] == nullptr) opened[index] = open_at(index);
  return opened[index].get();
}

OpenDevice* device_of(const ibv_context* verbs) {
  std::lock_guard lock(g_mutex);
  for (const auto& device : devices())
    if (device != nullptr && device->verbs == verbs) return device.get();
  return nullptr;
}

ibv_xrcd* shared_xrcd(OpenDevice& device) {
  std::lock_guard lock(g_mutex);
  if (device.xrcd != nullptr) return device.xrcd;
  ibv_xrcd_init_attr attr{};
  attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  attr.fd = -1;
  attr.oflags = O_CREAT;
  device.xrcd = ibv_open_xrcd(device.verbs, &attr);
  return device.xrcd;
}

ConnectionManager* manager() {
  // Never freed: events may arrive until the process exits, and the exit then notifies the peers.
  static auto* of_process = new OfProcess<std::shared_ptr<ConnectionManager>>;
  std::lock_guard lock(g_manager_mutex);
  std::shared_ptr<ConnectionManager>& kept = of_process->get();
  if (kept == nullptr) {
    auto opened = ConnectionManager::open(sink());
    if (!opened) {
      errno = opened.error().code();
      return nullptr;
    }
    kept = std::move(*opened);
  }
  return kept.get();
}

void renew_devices_in_child() {
  new (&g_mutex) std::mutex;
  new (&g_manager_mutex) std::mutex;
}

}  // namespace nupa::rdmacm

using namespace nupa::rdmacm;

NUPA_RDMACM ibv_context** rdma_get_devices(int* num_devices) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr) return nullptr;
  ibv_free_device_list(list);
  if (count == 0) {
    errno = ENODEV;
    return nullptr;
  }
  auto** contexts = static_cast<ibv_context**>(calloc(static_cast<size_t>(count) + 1, sizeof(ibv_context*)));
  if (contexts == nullptr) return nullptr;
  int found = 0;
  for (int i = 0; i < count; ++i)
    if (const OpenDevice* device = open_device(static_cast<uint32_t>(i)); device != nullptr)
      contexts[found++] = device->verbs;
  if (num_devices != nullptr) *num_devices = found;
  return contexts;
}

NUPA_RDMACM void rdma_free_devices(ibv_context** list) { free(list); }
