#pragma once
/// Registered memory that others reach: a region's pages are moved into a file that peers map, stay the program's
/// own through fork(), and come back when they are deregistered or unmapped. The core registers by a Remapper; the
/// library's own writes into the program's memory are guarded by a WriteGuard. Any thread. No call of it is part of
/// the data path.
#include "memory/remapper.h"
#include "memory/write_guard.h"
