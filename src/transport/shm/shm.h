#pragma once
/// The transport between processes of one user on one host: the initiator's thread carries out a work request
/// inside post, in the peer's tables and memory. The composition root names it by shm_transport.h. Any thread; a
/// queue pair's lock keeps others out.
#include "transport/shm/shm_transport.h"
