// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The transport between processes of one user on one host. The requester's thread executes a work request inside
/// post(), in the peer's tables and memory. The composition root includes shm_transport.h. Any thread; a queue pair's
/// lock serialises its calls.
#include "transport/shm/shm_transport.h"
