#pragma once
/// The communication manager of a process: connections of the engine over other processes' sockets or packets,
/// listeners, and the watch on peers. It is a service that the composition root names; programs come by
/// include/nupa. Any thread; messages arrive on nupa-host, or on the thread that receives packets.
#include "cm/connections.h"
