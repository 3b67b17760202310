// SPDX-License-Identifier: Apache-2.0
/// The composition root of a library that has the loopback transport too.
#include "cm/connections.h"
#include "core/transports.h"

#include <array>

#include "loopback/loopback_transport.h"
#include "transport/roce/roce_transport.h"
#include "transport/roce/statistics.h"
#include "transport/shm/shm_transport.h"

namespace nupa::core {

namespace {

constexpr std::array kTransports = {
    TransportEntry{"loopback", "", &loopback::make_transport},
    TransportEntry{"shm", "window", &shm_transport::ShmTransport::create},
    TransportEntry{"roce", "", &roce::RoceTransport::create, &roce::explain},
};

constexpr std::array kServices = {&cm::Connections::kEntry};

}  // namespace

std::span<const TransportEntry> transport_entries() { return kTransports; }

std::span<const ServiceEntry* const> service_entries() { return kServices; }

}  // namespace nupa::core
