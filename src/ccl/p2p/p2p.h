#pragma once
/// Send and recv of the program, with tags: messages between two ranks in pieces of a lane. Communicators make Messages
/// when they are first used. Any thread; messages move while somebody waits for one, and else by a thread of their own.
#include "ccl/p2p/messages.h"
