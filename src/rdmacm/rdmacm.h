#pragma once
/// librdmacm's functions on the public API: identifiers, events, addresses. Programs come by the ABI; rsockets also
/// uses the calls of private.h, which the ABI has no name for. Any thread.
#include "rdmacm/private.h"
