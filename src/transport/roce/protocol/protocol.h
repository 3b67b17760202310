// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The RoCEv2 protocol of one queue pair, without I/O: packets, the time and work requests go in; packets, the next
/// deadline and completions come out. A Connection is a requester and a responder; its Host provides memory and
/// completions. Endpoints run it over sockets, tests in simulated time. One thread at a time, under the queue pair's
/// lock.
#include "transport/roce/protocol/connection.h"
#include "transport/roce/protocol/host.h"
#include "transport/roce/protocol/reorder.h"
