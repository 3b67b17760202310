// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The program's send and recv with tags: messages between two ranks, in fragments of a channel. Communicators create
/// Messages at the first use. Thread-safe. Messages move while a thread waits for one of them; otherwise a thread of
/// this folder moves them.
#include "ccl/p2p/messages.h"
