// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "ccl/connect/endpoint.h"

namespace nupa::ccl {

/// Derives the id of a new communicator from the id of the old one and two numbers.
CommunicatorId derive(const CommunicatorId& id, uint64_t first, uint64_t second);

}  // namespace nupa::ccl
