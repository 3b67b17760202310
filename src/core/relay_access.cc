// SPDX-License-Identifier: Apache-2.0
#include "core/relay_access.h"

#include "core/qp.h"

namespace nupa::core {

void set_relay(QueuePair& qp, Relay& relay) { static_cast<Qp&>(qp).set_relay(&relay); }

void RelayLock::answer() { static_cast<Qp&>(qp_).answer(); }

bool RelayLock::awaits_receive() const { return static_cast<const Qp&>(qp_).awaits_receive(); }

}  // namespace nupa::core
