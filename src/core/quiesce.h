// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "host/node.h"

namespace nupa::core {

/// Waits until no process of this host, this one too, is inside an operation on a queue pair that it began before this
/// call. What was revoked before the call (a key, a ring, a state) is then not used any more, nor by requests to this
/// process's service thread that began before. Operations hold the send
/// lock of their queue pair, so this watches the send locks in the tables of all processes that `node` has met; the
/// caller holds none. False: one or more did not move on within 2 s in all (they are stopped). Any thread.
bool quiesce(host::Node& node);

/// The same where only one queue pair can be inside, the peer of a connected one: `qp_num` of the process in `slot`.
/// `slot` 0: none can.
bool quiesce_peer(host::Node& node, uint32_t slot, uint32_t qp_num);

}  // namespace nupa::core
