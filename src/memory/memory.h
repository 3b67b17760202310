// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Registered memory that peers reach. The pages of a region move into a file that peers map. They stay the program's
/// own memory through fork(), and become private again when they are deregistered. The core registers by a Remapper. A
/// WriteGuard blocks the program's threads at pages that are being moved. Any thread. No call of it is part of the data
/// path.
#include "memory/remapper.h"
#include "memory/write_guard.h"
