// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A transport between queue pairs of one process. It takes each request and finishes it later, in a thread that it
/// starts or in one that polls: as a wire does. No program is meant to use it. It shows that a transport needs nothing
/// of the core but core/seam.

#include <memory>

#include "core/seam/transport.h"

namespace nupa::loopback {

Result<std::unique_ptr<core::Transport>> make_transport();

}  // namespace nupa::loopback
