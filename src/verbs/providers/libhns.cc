// SPDX-License-Identifier: Apache-2.0
/// libhns.so.1 for systems that have none. See providers/stub.h.
#include "verbs/providers/stub.h"

NUPA_NO(hnsdv_is_supported)
NUPA_NO_OBJECT(hnsdv_create_qp)
NUPA_NO_SUPPORT(hnsdv_query_device)
