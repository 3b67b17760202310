#pragma once
#include <nupa/types.h>

namespace nupa::core {

/// Whether a queue pair of `type` in state `current` may be modified so (IBTA 11.2.4.2, table 91). `mask` holds
/// qp_attr bits and says which fields of `attr` count; without kState the state stays. Touches nothing but `next`.
/// 0, with the state afterwards in `next`; EINVAL, with `next` as it was: the transition does not exist, an attribute
/// is missing or out of place, a value is out of range, or kCurState is given and wrong.
int check_modify(QpType type, QpState current, const QpAttr& attr, uint32_t mask, QpState* next);

}  // namespace nupa::core
