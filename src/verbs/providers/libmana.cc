// SPDX-License-Identifier: Apache-2.0
/// libmana.so.1 for systems that have none. See providers/stub.h.
#include "verbs/providers/stub.h"

NUPA_NO_SUPPORT(manadv_set_context_attr)
NUPA_NO_SUPPORT(manadv_init_obj)
