// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Packets for `nupa capture` (docs/design/capture.md): the ring between a captured process and the command, the
/// process's side of it, and the packets that stand for requests of transports without packets. Any thread.
#include "capture/link_headers.h"
#include "capture/messages.h"
#include "capture/ring.h"
#include "capture/tap.h"
