#pragma once
#include <nupa/types.h>

namespace nupa::core {

/// Whether a queue pair of `type` in state `current` may be modified so (IBTA 11.2.4.2, tables 91 to 95).
/// 0, with the state afterwards in `next`; EINVAL: transition, attribute or value not allowed.
int check_modify(QpType type, QpState current, const QpAttr& attr, uint32_t mask, QpState* next);

}  // namespace nupa::core
