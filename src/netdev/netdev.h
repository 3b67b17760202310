#pragma once
/// The network device of `nupa net`: a TUN interface whose packets travel to other nodes over queue pairs of the
/// public API. The command line makes a Node and runs it. One thread runs a node, one more each of the interface's
/// queues.
#include "netdev/node.h"
