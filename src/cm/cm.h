// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The communication manager of a process: connections of the engine over sockets between processes or over packets,
/// listeners, and the watch on peers. It is a service that the composition root names. Programs use it by include/nupa.
/// Any thread. Messages arrive on the thread nupa-host or on the thread that receives packets.
#include "cm/connections.h"
