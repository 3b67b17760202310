// SPDX-License-Identifier: Apache-2.0
/// Services that programs of this process listen for: their names on the host, and their entries in the tables that
/// peers read.
#include <algorithm>
#include <cerrno>

#include "base/gid.h"
#include "cm/connections.h"

namespace nupa::cm {

Result<std::vector<std::unique_ptr<Connections::Name>>> Connections::take_names(const ListenerAddress& address) {
  using Family = MadName::Family;
  std::vector<std::unique_ptr<Name>> names;
  const auto take = [&](const std::string& name) -> Result<void> {
    auto taken = MadName::take(name);
    if (!taken) return tl::unexpected(taken.error());
    names.push_back(std::make_unique<Name>(std::move(*taken)));
    return {};
  };
  // Takes the names first and then checks for names that exclude them. If two processes bind at the same moment, at
  // least one of them sees the other's name.
  const uint64_t service_id = address.service_id;
  Result<void> done;
  if (!address.any_address) {
    const Family family = base::is_ipv4(address.address) ? Family::kIpv4 : Family::kIpv6;
    done = take(MadName::of_service(service_id, address.address));
    if (done && MadName::is_taken(MadName::of_service(service_id, family)))
      return fail(EADDRINUSE, "a process of this host already listens to the service on all addresses");
  } else if (!is_ip_service(service_id)) {
    done = take(MadName::of_service(service_id, Family::kNone));
  } else {
    if (!address.only_v6) done = take(MadName::of_service(service_id, Family::kIpv4));
    if (done && !address.only_v4) done = take(MadName::of_service(service_id, Family::kIpv6));
    if (!done) return tl::unexpected(done.error());
    for (const Gid& own : process_.host_addresses())
      if ((base::is_ipv4(own) ? !address.only_v6 : !address.only_v4) &&
          MadName::is_taken(MadName::of_service(service_id, own)))
        return fail(EADDRINUSE, "a process of this host already listens to the service on one address");
  }
  if (!done) return tl::unexpected(done.error());
  return names;
}

int Connections::bind(uint64_t owner, const ListenerAddress& address) {
  if (abandoned_) return ENODEV;
  auto names = take_names(address);
  if (!names) return names.error().code();
  std::vector<int> fds;
  {
    std::lock_guard lock(mutex_);
    Service service;
    service.address = address;
    service.names = std::move(*names);
    for (const auto& name : service.names) fds.push_back(name->name.fd());
    services_[owner] = std::move(service);
  }
  // Messages that other processes pass on arrive at the names. They are rejected until the service listens. The mutex
  // is not held here, because the reader takes it.
  for (const int fd : fds) {
    const auto read = [this, owner, fd](uint32_t) {
      const MadName* name = nullptr;
      {
        std::lock_guard lock(mutex_);
        if (const Name* const found = find_name(owner, fd)) name = &found->name;
      }
      if (name != nullptr) on_relayed(*name);  // unbind() waits until this has returned
    };
    auto watched = process_.node().loop().watch(fd, read);
    if (!watched) {
      unbind(owner);
      return watched.error().code();
    }
    std::lock_guard lock(mutex_);
    if (Name* const name = find_name(owner, fd)) name->watch = std::move(*watched);
  }
  return 0;
}

Connections::Name* Connections::find_name(uint64_t owner, int fd) {
  const auto found = services_.find(owner);
  if (found == services_.end()) return nullptr;
  for (const auto& name : found->second.names)
    if (name->name.fd() == fd) return name.get();
  return nullptr;
}

int Connections::listen(uint64_t owner) {
  if (abandoned_) return ENODEV;
  {
    std::unique_lock lock(mutex_);
    const auto found = services_.find(owner);
    if (found == services_.end() || found->second.listens) return EINVAL;
    Service& service = found->second;
    const shm::Tables& tables = process_.tables();
    uint32_t index = 0;
    while (index < shm::kMaxListeners && tables.listeners[index].in_use.load() != 0) ++index;
    if (index == shm::kMaxListeners) return ENOSPC;
    shm::ListenerShared& shared = tables.listeners[index];
    shared.flags = (service.address.any_address ? shm::kListenAnyAddress : 0) |
                   (service.address.only_v4 ? shm::kListenOnlyV4 : 0) |
                   (service.address.only_v6 ? shm::kListenOnlyV6 : 0);
    shared.service_id = service.address.service_id;
    shared.mask = service.address.mask;
    shared.address = service.address.address;
    engine_.listen(owner, service.address);
    shared.in_use.store(1, std::memory_order_release);
    if (tables.header->listener_high_water.load() <= index) tables.header->listener_high_water.store(index + 1);
    service.shared = &shared;
    service.listens = true;
    settle(std::move(lock));  // the port where standard peers look may be free
  }
  return 0;
}

void Connections::unbind(uint64_t owner) {
  if (abandoned_) return;
  Service service;  // destroyed without the mutex: unbind() waits for the readers of its names
  {
    std::lock_guard lock(mutex_);
    const auto found = services_.find(owner);
    if (found == services_.end()) return;
    engine_.unlisten(owner);
    if (found->second.shared != nullptr) found->second.shared->in_use.store(0, std::memory_order_release);
    service = std::move(found->second);
    services_.erase(found);
  }
}

}  // namespace nupa::cm
