// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The interface between the core and transports: what a transport implements (Transport, Endpoint), what the core
/// lends to it (ProcessContext, QpContext, Responder), and the values that pass between them. A transport includes this
/// folder and nothing else of the core; CONTRIBUTING.md describes how to write one. Each header states which thread
/// calls which function.
#include "core/seam/deferred_sends.h"
#include "core/seam/device_entry.h"
#include "core/seam/endpoint.h"
#include "core/seam/grh.h"
#include "core/seam/group_address.h"
#include "core/seam/mad_carrier.h"
#include "core/seam/qp_context.h"
#include "core/seam/relay.h"
#include "core/seam/request.h"
#include "core/seam/responder.h"
#include "core/seam/shared_target.h"
#include "core/seam/slot_table.h"
#include "core/seam/stat_fields.h"
#include "core/seam/timers.h"
#include "core/seam/transport.h"
#include "core/seam/transport_memory.h"
#include "core/seam/whole_message.h"
