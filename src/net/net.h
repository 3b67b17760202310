#pragma once
/// Sockets and routes of this host: UDP in batches with what the kernel says of each datagram, and by which
/// interface an address is reached. Transports and the communication manager use it. A socket sends and receives
/// for one thread at a time; routes are for any thread, and a query waits for the kernel.
#include "net/find_route.h"
#include "net/route.h"
#include "net/udp_socket.h"
