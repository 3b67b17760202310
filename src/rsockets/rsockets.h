// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Sockets over queue pairs: the rsocket functions of librdmacm and the interface for the preload library. Streams and
/// datagrams run on the verbs and rdma_cm API. Any thread, as with sockets.
#include "rsockets/descriptor_table.h"
#include "rsockets/endpoint.h"
#include "rsockets/poll.h"
#include "rsockets/socket.h"
#include "rsockets/stream.h"
#include "rsockets/waiter.h"
