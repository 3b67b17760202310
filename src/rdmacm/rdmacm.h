// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The functions of librdmacm on the public API: identifiers, events, addresses. Programs call them by the ABI.
/// rsockets also calls the functions of private.h, which are not in the ABI. Any thread.
#include "rdmacm/private.h"
