// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The transport over RoCEv2 packets: endpoints of connected and datagram queue pairs, built from the wire format, the
/// protocol, congestion control and the process's port. The composition root includes roce_transport.h; `nupa stat`
/// reads the statistics. Any thread.
#include "transport/roce/roce_transport.h"
#include "transport/roce/statistics.h"
