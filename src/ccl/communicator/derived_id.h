// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "ccl/connect/endpoint.h"

namespace nupa::ccl {

/// The name of a communicator that is made from another one: it depends on all of these.
CommunicatorId derive(const CommunicatorId& id, uint64_t first, uint64_t second);

}  // namespace nupa::ccl
