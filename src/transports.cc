// SPDX-License-Identifier: Apache-2.0
/// The composition root: the transports that exist, in order of cost. Adding one adds its folder and a line here.
#include <array>

#include "core/transports.h"
#include "transport/roce/roce_transport.h"
#include "transport/roce/statistics.h"
#include "transport/window/window.h"

namespace nupa::core {

namespace {

constexpr std::array kTransports = {
    TransportEntry{"shm", "window", &window::Window::create},
    TransportEntry{"roce", "", &roce::RoceTransport::create, &roce::explain},
};

}  // namespace

std::span<const TransportEntry> transport_entries() { return kTransports; }

}  // namespace nupa::core
