// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Functions of the drop-in librdmacm.so.1 for the rest of NUPA. Its version script exports them as RDMACM_PRIVATE.
#include <rdma/rdma_cma.h>

extern "C" {

/// For the preload library: calls nupa::set_lowest_descriptor(), and sets lowest_descriptor() of this library.
__attribute__((visibility("default"))) void nupa_rdmacm_set_lowest_descriptor(int lowest);
/// For rsockets: calls use_stand_in(). Returns 0, or -1 with errno set.
__attribute__((visibility("default"))) int nupa_rdmacm_use_stand_in(rdma_cm_id* id);

}  // extern "C"
