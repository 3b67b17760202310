#pragma once
/// Functions of the drop-in librdmacm.so.1 for the rest of NUPA: its version script has them as RDMACM_PRIVATE.
#include <rdma/rdma_cma.h>

extern "C" {

/// For the preload library: nupa::set_lowest_descriptor(), and lowest_descriptor() of this library.
__attribute__((visibility("default"))) void nupa_rdmacm_set_lowest_descriptor(int lowest);
/// For rsockets: use_stand_in(). 0, or -1 with errno.
__attribute__((visibility("default"))) int nupa_rdmacm_use_stand_in(rdma_cm_id* id);

}  // extern "C"
