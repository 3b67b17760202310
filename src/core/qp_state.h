// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/types.h>

namespace nupa::core {

/// Checks whether a queue pair of `type` in state `current` may be modified with `attr` (IBTA 11.2.4.2, table 91).
/// `mask` holds qp_attr bits and selects the fields of `attr`; without kState the state stays. Changes nothing but
/// `next`.
///
/// Returns 0, with the resulting state in `next`, or EINVAL, with `next` unchanged. EINVAL: the transition does not
/// exist, an attribute is missing or not allowed, a value is out of range, or kCurState is given with a wrong state.
int check_modify(QpType type, QpState current, const QpAttr& attr, uint32_t mask, QpState* next);

/// Cuts packet sequence numbers, retry counts and the RNR timer to the bits of their fields in the wire format.
/// Adapters and Linux's rdma_rxe accept higher bits and ignore them, and programs rely on it.
void cut_to_fields(QpAttr& attr);

}  // namespace nupa::core
