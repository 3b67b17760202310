// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The processes of this host: the runtime directory in which they find each other, the handshake that passes their
/// memory to peers, the peers, and nupa-host, the service thread of a process. The core opens a Node; transports and
/// the communication manager use it. Any thread. A call by the service thread never waits.
#include "host/agent.h"
#include "host/completion_port.h"
#include "host/node.h"
#include "host/observation.h"
#include "host/peer.h"
#include "host/peer_memory.h"
#include "host/runtime_dir.h"
#include "host/wire.h"
