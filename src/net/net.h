// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Sockets and routes of this host: UDP in batches with the kernel's data about each datagram, and the interface that
/// leads to an address. Transports and the communication manager use them. Any thread may send by a socket, and one at
/// a time receives. Routes are for any thread; a query waits for the kernel.
#include "net/find_route.h"
#include "net/route.h"
#include "net/udp_socket.h"
