// SPDX-License-Identifier: Apache-2.0
/// The composition root: the list of all transports, in order of cost, and of all services. A new transport needs its
/// folder and a line here.
#include <array>

#include "cm/connections.h"
#include "core/transports.h"
#include "transport/pool/create.h"
#include "transport/pool/medium/make_pool.h"
#include "transport/pool/statistics.h"
#include "transport/roce/roce_transport.h"
#include "transport/roce/statistics.h"
#include "transport/shm/shm_transport.h"

namespace nupa::core {

namespace {

std::optional<OwnDevice> pool_device() {
  const auto spec = pool::spec_from_environment();
  if (!spec || !*spec) return std::nullopt;
  const auto pool = pool::make_pool(**spec);
  if (!pool) return std::nullopt;
  OwnDevice device{"nupa_pool0", (*pool)->gid_of((*pool)->host()), {}};
  for (uint16_t number = 0; number < (*pool)->hosts(); ++number)
    if (number != (*pool)->host()) device.neighbours.push_back((*pool)->gid_of(number));
  return device;
}

constexpr std::array kTransports = {
    TransportEntry{"shm", "window", &shm_transport::ShmTransport::create},
    TransportEntry{"pool", "", &pool::create, &pool::explain, &pool_device},
    TransportEntry{"roce", "", &roce::RoceTransport::create, &roce::explain},
};

constexpr std::array kServices = {&cm::Connections::kEntry};

}  // namespace

std::span<const TransportEntry> transport_entries() { return kTransports; }

std::span<const ServiceEntry* const> service_entries() { return kServices; }

}  // namespace nupa::core
