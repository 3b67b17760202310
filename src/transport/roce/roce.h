#pragma once
/// The transport over RoCEv2 packets: endpoints of connected queue pairs and of datagrams, put together from the
/// wire, the protocol, congestion control and the process's port. The composition root names it by
/// roce_transport.h; `nupa stat` reads its statistics. Any thread.
#include "transport/roce/roce_transport.h"
#include "transport/roce/statistics.h"
