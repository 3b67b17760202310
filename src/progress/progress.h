// SPDX-License-Identifier: Apache-2.0
#pragma once
/// All waiting of the library. Only this folder is to spin, yield, sleep, poll descriptors, start threads, or register
/// functions that run at fork() and exit(); scripts/check-waits lists the places that do not use it yet. Other code
/// states what it waits for and until when. Any thread may call it. The comment of a call states if it may wait. The
/// data path calls only its inline functions. It includes src/base and nothing else of the library, so it may be used
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
#include "progress/word_descriptor.h"
#include "progress/words.h"
