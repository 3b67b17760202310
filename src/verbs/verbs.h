#pragma once
/// The drop-in libibverbs: the functions of verbs.h of rdma-core on the public API, and nothing else. Programs come by
/// the ABI; rsockets also uses the calls of private.h, which the ABI has no name for. Any thread.
#include "verbs/private.h"
