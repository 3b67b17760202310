// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The runtime directory: the folder in which the processes of one user find each other by the names of sockets. It
/// knows how the folder is found, whose it may be, its lock, and sockets of services that have a name. `host` knows
/// processes and slots, and adds their sockets. Any thread.
#include "runtime/directory.h"
