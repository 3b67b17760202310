#pragma once
/// Sockets over queue pairs: librdmacm's rsocket functions and what the preload library needs of them. Streams and
/// datagrams run on the public verbs and rdma_cm API. Any thread, as with sockets.
#include "rsockets/descriptor_table.h"
#include "rsockets/endpoint.h"
#include "rsockets/poll.h"
#include "rsockets/socket.h"
#include "rsockets/stream.h"
#include "rsockets/waiter.h"
