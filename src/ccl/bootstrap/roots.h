#pragma once
#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

/// A root of its own in this process, as long as it lives.
Result<UniqueId> root_here();
/// As meet(), in the next meeting of this id that is not over.
Result<Met> meet_next(const UniqueId& id, uint32_t rank, uint32_t world, const Card& card, int64_t limit_ns);

}  // namespace nupa::ccl
