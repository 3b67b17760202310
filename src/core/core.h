// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The InfiniBand objects and their rules: devices, protection domains, memory regions, completion queues, queue pairs,
/// shared receive queues. A Process owns them. Programs use them through the public API (include/nupa), which is
/// implemented here; the communication manager and the composition root use the headers below. Any thread, within the
/// rules of verbs.
#include "core/device_attr.h"
#include "core/device_table.h"
#include "core/interfaces.h"
#include "core/port_totals.h"
#include "core/process.h"
#include "core/relay_access.h"
#include "core/transport_names.h"
#include "core/transports.h"
