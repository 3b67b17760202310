// SPDX-License-Identifier: Apache-2.0
/// The composition root of a library that has the loopback transport too.
#include "core/transports.h"

#include <array>

#include "loopback/loopback_transport.h"
#include "transport/roce/roce_transport.h"
#include "transport/roce/statistics.h"
#include "transport/window/window.h"

namespace nupa::core {

namespace {

constexpr std::array kTransports = {
    TransportEntry{"loopback", "", &loopback::LoopbackTransport::create},
    TransportEntry{"shm", "window", &window::Window::create},
    TransportEntry{"roce", "", &roce::RoceTransport::create, &roce::explain},
};

}  // namespace

std::span<const TransportEntry> transport_entries() { return kTransports; }

}  // namespace nupa::core
