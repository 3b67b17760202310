// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The drop-in libibverbs: the functions of rdma-core's verbs.h, implemented with the public API and nothing else.
/// Programs use it through the ABI; rsockets also uses the calls of private.h, which the ABI does not have. Any thread.
#include "verbs/private.h"
