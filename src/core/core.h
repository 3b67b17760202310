#pragma once
/// The InfiniBand objects and their rules: devices, protection domains, memory regions, completion queues, queue
/// pairs, shared receive queues. A Process owns them. The public API (include/nupa) is implemented here, and
/// programs come by it; the communication manager and the composition root use the headers below. Any thread, as
/// the verbs allow.
#include "core/device_attr.h"
#include "core/device_table.h"
#include "core/process.h"
#include "core/transport_names.h"
#include "core/transports.h"
