// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

/// Starts another rendezvous server in this process, which runs until the process exits.
Result<UniqueId> root_here();
/// The same as meet(), in the next rendezvous of this id that is not over.
Result<Met> meet_next(const UniqueId& id, uint32_t rank, uint32_t world, const Card& card, int64_t limit_ns);

}  // namespace nupa::ccl
