// SPDX-License-Identifier: Apache-2.0
/// libmlx4.so.1 for systems that have none. See providers/stub.h.
#include "verbs/providers/stub.h"

NUPA_NO_OBJECT(mlx4dv_create_qp)
NUPA_NO_SUPPORT(mlx4dv_init_obj)
NUPA_NO_SUPPORT(mlx4dv_query_device)
NUPA_NO_SUPPORT(mlx4dv_set_context_attr)
