// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "host/node.h"

namespace nupa::core {

/// Waits until all operations on queue pairs of this host that began before this call have ended. Anything that was
/// revoked before the call (a key, a ring, a state) is not in use afterwards. This includes earlier requests to this
/// process's service thread.
///
/// Operations hold the send lock of their queue pair, or have a copy engine copy for it. So this function waits for the
/// send locks and copies in the tables of this process and of all processes that `node` has connected to. The caller
/// holds no send lock. Returns false if an operation did not end within 2 s in all, because its process is stopped. Any
/// thread.
bool quiesce(host::Node& node);

/// The same if only one queue pair can have an operation under way, the peer of a connected one: `qp_num` of the
/// process in `slot`. `slot` 0: there is no such peer.
bool quiesce_peer(host::Node& node, uint32_t slot, uint32_t qp_num);

}  // namespace nupa::core
