// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The transport between hosts that share memory: a PCIe BAR, a CXL device, or a file that stands for one
/// (docs/design/pool.md). The engine reads and writes records; medium/ has the rings and the directory. The composition
/// root includes this header. Any thread; a queue pair's lock serialises its calls.
#include "transport/pool/create.h"
#include "transport/pool/statistics.h"
