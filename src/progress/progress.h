// SPDX-License-Identifier: Apache-2.0
#pragma once
/// One way to wait. This folder is to be the only one that spins, yields, sleeps, polls descriptors, starts threads, or
/// registers what runs at fork() and exit(): scripts/check-waits lists the places that do not use it yet. All other
/// code says what it waits for and until when. Any thread may call it; a call that may wait says so. The data path
/// calls only inline functions of it. It includes src/base and nothing else of the library, and so may be used
/// everywhere. The design is docs/design/progress.md.
#include "progress/adaptive_poller.h"
#include "progress/alarm.h"
#include "progress/clock.h"
#include "progress/condition.h"
#include "progress/cpu.h"
#include "progress/deadline.h"
#include "progress/descriptors.h"
#include "progress/event_catch.h"
#include "progress/event_descriptor.h"
#include "progress/file_lock.h"
#include "progress/late_events.h"
#include "progress/lifecycle.h"
#include "progress/loop.h"
#include "progress/neighbours.h"
#include "progress/of_process.h"
#include "progress/pauses.h"
#include "progress/packet_source.h"
#include "progress/poll_policy.h"
#include "progress/poller.h"
#include "progress/receive_right.h"
#include "progress/spin_lock.h"
#include "progress/thread.h"
#include "progress/wake_up.h"
#include "progress/waiter.h"
#include "progress/words.h"
