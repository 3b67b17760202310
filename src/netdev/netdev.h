// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The network device of `nupa net`: a TUN interface whose packets travel to other nodes over queue pairs of the public
/// API. The command line creates a Node and runs it. One thread runs a node, and each queue of the interface has
/// another thread.
#include "netdev/node.h"
