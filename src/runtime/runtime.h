// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The runtime directory: the folder in which the processes of one user find each other by the names of sockets. It
/// contains how the folder is found, whose it may be, its lock, and the named sockets of services. `host` adds
/// processes, slots and their sockets. Any thread.
#include "runtime/directory.h"
