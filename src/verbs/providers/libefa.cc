// SPDX-License-Identifier: Apache-2.0
/// libefa.so.1 for systems that have none. See providers/stub.h.
#include "verbs/providers/stub.h"

NUPA_NO_OBJECT(efadv_create_driver_qp)
NUPA_NO_OBJECT(efadv_create_qp_ex)
NUPA_NO_OBJECT(efadv_cq_from_ibv_cq_ex)
NUPA_NO_OBJECT(efadv_create_cq)
NUPA_NO_OBJECT(efadv_qp_from_ibv_qp_ex)
NUPA_NO_OBJECT(efadv_create_comp_cntr)
NUPA_NO_SUPPORT(efadv_query_ah)
NUPA_NO_SUPPORT(efadv_query_device)
NUPA_NO_SUPPORT(efadv_query_mr)
NUPA_NO_SUPPORT(efadv_query_qp_wqs)
NUPA_NO_SUPPORT(efadv_query_cq)
NUPA_NO_SUPPORT(efadv_get_max_sq_depth)
NUPA_NO_SUPPORT(efadv_get_max_rq_depth)
